"""What the card of a run says: a reader can tell the method, and do the run again."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from sage_trl import GuideFunction, SAGEGRPOConfig, sft, train
from sage_trl.card import about_run, describe_method

ROOT = Path(__file__).parents[1]
COUNTDOWN = str(ROOT / "recipes" / "countdown" / "sage_branch.yaml")
SMALL = [
    *("--model_name_or_path", str(ROOT / "examples" / "countdown" / "model"), "--max_steps", "1", "--use_cpu", "true"),
    *(
        "--report_to",
        "none",
        "--per_device_train_batch_size",
        "4",
        "--disable_tqdm",
        "true",
        "--save_strategy",
        "steps",
    ),
    *("--save_steps", "1", "--bf16", "false"),
]


@pytest.mark.parametrize("lora", [[], ["--use_peft", "--lora_r", "4"]], ids=["full", "lora"])
def test_the_card_tells_method_run_data_versions_and_whom_to_cite(tmp_path, lora):
    train.run(["--config", COUNTDOWN, *SMALL, *lora, "--num_generations", "4", "--output_dir", str(tmp_path / "run")])
    text = (tmp_path / "run" / "README.md").read_text()
    headings = re.findall("^##+ .*", text, flags=re.M)
    assert headings == [
        *("## Quick start", "## Training procedure", "### Method", "### Run", "### Framework versions", "## Citations")
    ]
    for row in (
        "| guide | `BranchGuide` |",
        "| guide `threshold` | `1.3` |",
        "| `q_max` | `1.4` |",
        "| `anchor` | `k3` |",
        "| `beta` | `0.05` |",
        "All settings are in [recipe.yaml](recipe.yaml)",
        "accelerate launch -m sage_trl.train --config recipe.yaml",
        "It was trained on problems of the task `countdown`",
        "- TRL: ",
        "@inproceedings{lee2026sage,",
        "@software{vonwerra2020trl,",
    ):
        assert text.count(row) == 1, row
    assert re.search(r"\| software \| sage-trl \d+\.\d+\.\d+ \|", text)
    assert str(tmp_path) not in text and str(ROOT) not in text and "None" not in text
    assert {"sage", "grpo", "trl"} <= set(ModelCard.load(tmp_path / "run" / "README.md").data.tags)


def test_the_card_of_the_first_stage_tells_its_own_command(tmp_path):
    row = {"problem": "1+1?", "expected_answer": "2", "generated_solution": "2"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    data = ["--dataset_name", str(tmp_path / "data.jsonl"), "--prompt_format", "tags", "--max_length", "1000"]
    small = [str(ROOT / "tests" / "golden" / "model") if part.endswith("countdown/model") else part for part in SMALL]
    sft.run([*data, *small, "--output_dir", str(tmp_path / "run")])
    text = (tmp_path / "run" / "README.md").read_text()
    assert "accelerate launch -m sage_trl.sft --config recipe.yaml" in text
    assert "It was trained on a dataset that is not published." in text and str(tmp_path) not in text


@pytest.mark.parametrize(
    ("task", "dataset", "words"),
    [
        ("countdown", None, "problems of the task `countdown`"),
        (None, "someone/problems", "[someone/problems](https://huggingface.co/datasets/someone/problems)"),
        (None, str(ROOT), "a dataset that is not published"),
        (None, "no/such/file.jsonl", "a dataset that is not published"),
    ],
)
def test_data_are_named_only_where_others_can_find_them(task, dataset, words):
    assert f"It was trained on {words}" in about_run("sage_trl.train", task, dataset)


class Private(GuideFunction):
    def __init__(self):
        self.api_key, self.files, self.shown = "sk-secret", [{"where": "/home/me/a.txt"}], [0.5]

    def __call__(self, signals):
        raise NotImplementedError


def test_a_guide_s_secrets_and_paths_are_not_in_the_card(tmp_path):
    (tmp_path / "README.md").write_text("---\ntags: []\n---\n# Card\n")
    describe_method(SAGEGRPOConfig(str(tmp_path), use_cpu=True, bf16=False), Private())
    text = (tmp_path / "README.md").read_text()
    assert "`[0.5]`" in text and "secret" not in text and "/home/me" not in text
