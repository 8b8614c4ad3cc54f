"""A comparison in a model's card, through the real client."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest
import yaml
from hub_server import Hub
from huggingface_hub import EvalResult, ModelCard

from sage_trl.eval import evaluate
from sage_trl.evaluation.settings import EvalArguments
from sage_trl.reports.publish import BEGIN, resolve_target, with_results, with_section

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "examples" / "countdown" / "model")
CARD = """---
library_name: peft
tags:
- sage
model-index:
- name: mine
  results:
  - task:
      type: text-generation
    dataset:
      name: other
      type: other
    metrics:
    - type: accuracy
      value: 0.5
---

# My model

Words of mine.
"""


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluations")
    for seed, name in enumerate(("base", "sage")):
        arguments = EvalArguments(
            MODEL, None, "countdown", 4, num_problems=10, max_completion_length=12, seed=seed, backend="transformers"
        )
        arguments.output_dir = str(folder / name)
        evaluate(arguments)
    return folder


def push(evaluations, hub, target, token="hf_secretSecretSecret"):
    names = [f"{name}={evaluations / name}" for name in ("base", "sage")]
    command = [sys.executable, "-m", "sage_trl.compare", *names, "--output", str(evaluations / "report")]
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    environment |= {"HF_TOKEN": token, "HF_HOME": mkdtemp(dir=evaluations)}  # nothing cached
    return subprocess.run(
        [*command, "--push_to_hub", target], env=environment, capture_output=True, text=True, timeout=120
    )


def test_table_picture_and_figures_reach_the_card_and_what_was_there_stays(evaluations):
    with Hub() as hub:
        hub.files["README.md"] = CARD.encode()
        for _ in range(2):  # the second replaces the first
            pushed = push(evaluations, hub, "sage=someone/model")
            assert pushed.returncode == 0, pushed.stderr[-2000:]
            assert "Pushed to https://huggingface.co/someone/model" in pushed.stdout
    assert set(hub.files) == {"README.md", "evaluation/pass_at_k.png", "evaluation/compare.json"}
    assert hub.files["evaluation/pass_at_k.png"].startswith(b"\x89PNG")
    text = hub.files["README.md"].decode()
    card = ModelCard(text)
    assert "Words of mine." in text and card.data.tags == ["sage"] and card.data.model_name == "mine"
    assert text.count("## Evaluation") == 1 and text.count("| sage |") == 1
    assert "![pass@k](evaluation/pass_at_k.png)" in text and "This model is *sage*" in text
    figures = {(each.dataset_name, each.metric_type): each for each in card.data.eval_results}
    assert len(figures) == len(card.data.eval_results) == 3  # another's accuracy, pass@1 and pass@4
    results = json.loads((evaluations / "sage" / "results.json").read_text())["benchmarks"]["countdown"]
    for k in ("1", "4"):
        figure = figures["countdown", f"pass@{k}"]
        assert figure.metric_value == pytest.approx(results["pass_at_k"][k]["value"], abs=1e-4)
        assert figure.metric_args["n"] == 4 and figure.metric_args["problems"] == 10
    for content in [*hub.files.values(), pushed.stdout.encode(), pushed.stderr.encode()]:
        assert b"secretSecret" not in content
    assert str(evaluations) not in text and str(evaluations).encode() not in hub.files["evaluation/compare.json"]


def test_a_model_without_a_card_gets_one(evaluations):
    with Hub() as hub:
        assert push(evaluations, hub, "base=someone/model").returncode == 0
    assert (
        "# model" in hub.files["README.md"].decode() and ModelCard(hub.files["README.md"].decode()).data.eval_results
    )


def test_a_model_that_is_not_there_is_one_line(evaluations):
    with Hub() as hub:
        pushed = push(evaluations, hub, "base=nobody/nothing")
    assert pushed.returncode == 2 and not hub.files
    assert "names 'nobody/nothing', which is no model on the Hub" in pushed.stderr and "Traceback" not in pushed.stderr


@pytest.mark.parametrize("target", ["someone/model", "other=someone/model", "sage="])
def test_a_target_names_an_evaluation_and_a_model(target):
    with pytest.raises(ValueError, match=r"one of \['base', 'sage'\]"):
        resolve_target(target, ["base", "sage"])


def test_a_target_s_repository_has_a_user():
    with pytest.raises(ValueError, match=r"`--push_to_hub` is 'model', .* Write user/name"):
        resolve_target("sage=model", ["base", "sage"])


def test_the_section_stays_where_it_is():
    once = with_section("# Model\n\nWords.\n", "first")
    assert with_section(once.replace("first", "second") + "\nMore.\n", "first") == once + "\nMore.\n"
    assert with_section(f"{BEGIN}\nMine.\n\n{once}", "first") == f"{BEGIN}\nMine.\n\n{once}"


ODD = """---
# a comment
language: no
version: 1.10
model-index:
- name: one
  results:
  - task: {type: text-generation}
    dataset: {name: other, type: other, note: mine}
    metrics:
    - {type: accuracy, value: 0.5, extra: kept}

- name: two
  results: []
tags: [sage]  # mine
---
# Title

---
Words.
"""
RESULT = EvalResult("text-generation", "d", "d", "pass@1", 0.25)


def test_the_front_matter_stays_letter_by_letter_but_for_the_model_index():
    card = with_results(ODD, "two", [RESULT])
    before, _, after = card.partition("model-index:")
    assert before == ODD.partition("model-index:")[0] and after.endswith(ODD[ODD.index("tags:") :])
    models = yaml.safe_load(card.split("---")[1])["model-index"]
    assert [each["name"] for each in models] == ["one", "two"]
    assert models[0] == yaml.safe_load(ODD.split("---")[1])["model-index"][0]
    assert models[1]["results"][0]["metrics"][0]["value"] == 0.25
    assert with_results(card, "two", [RESULT]) == card
    third = with_results(card, "three", [RESULT])
    assert [each["name"] for each in yaml.safe_load(third.split("---")[1])["model-index"]] == ["one", "two", "three"]


@pytest.mark.parametrize("card", ["", "Words.\n", "---\n---\nWords.\n", "---\nlicense: [mit\n---\nWords.\n"])
def test_a_card_without_a_model_index_gets_one(card):
    found = with_results(card, "me", [RESULT])
    assert found.count("model-index:") == 1 and found.startswith("---\n") and "pass@1" in found
    assert found.endswith("Words.\n" if card else "---\n")
    assert with_results(found, "me", [RESULT]) == found


@pytest.mark.parametrize("index", ["- [", "- 1", "- name: me\n  results:\n  - 5", "- {results: [{metrics: 1}]}"])
def test_a_model_index_that_cannot_be_read_is_named(index):
    with pytest.raises(ValueError, match="`model-index` cannot be read"):
        with_results(f"---\nmodel-index:\n{index}\n---\n", "me", [RESULT])


def test_line_ends_of_a_card_stay_as_they_are(evaluations):
    with Hub() as hub:
        hub.files["README.md"] = CARD.replace("\n", "\r\n").encode()
        pushes = []
        for _ in range(2):
            assert push(evaluations, hub, "sage=someone/model").returncode == 0
            pushes.append(hub.files["README.md"])
    assert pushes[0] == pushes[1] and pushes[0].count(b"\n") == pushes[0].count(b"\r\n")
