"""`sage-trl guide` on the demo model: what its page and the terminal say."""

import json
import re
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.guide import run

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes" / "countdown"
MODEL = ROOT / "examples" / "countdown" / "model"
PROBLEM = {"role": "user", "content": "Numbers: 5 47 12 6 Target: 70"}


@pytest.fixture
def look(tmp_path, monkeypatch, capsys):
    """Runs the command; returns the page and what was printed."""
    monkeypatch.chdir(ROOT)

    def look(*arguments, recipe="sage_branch"):
        page = tmp_path / "guide.html"
        run(["--config", str(RECIPES / f"{recipe}.yaml"), "--output", str(page), *map(str, arguments)])
        return page.read_text(encoding="utf-8"), " ".join(capsys.readouterr().out.split())

    return look


@pytest.fixture
def refused(look, capsys):
    def refused(*arguments, **more):
        with pytest.raises(SystemExit) as end:
            look(*arguments, **more)
        assert end.value.code == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        return line

    return refused


def write_rows(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def tokens(page) -> list[tuple[str, list[float]]]:
    found = re.findall(r'<span[^>]* data-t="([^"]*)">([^<]*)</span>', page)
    return [(text, [float(value) for value in figures.split()]) for figures, text in found]


def test_a_page_shows_every_token_with_its_figures(look):
    page, printed = look("--num_prompts", 2, "--num_samples", 3)
    found = tokens(page)
    assert page.count('class="completion"') == 6
    # surprisal and entropy of policy and reference, q, log q
    for _, (surprisal, ref_surprisal, entropy, ref_entropy, q, _) in found:
        assert surprisal == ref_surprisal and entropy == ref_entropy
        assert q == pytest.approx(1 + 0.3 * max(0, entropy - 1.3), abs=2e-3)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)  # nothing is fetched
    assert f"6 of 2 problems, {len(found)} tokens" in printed
    assert "Tokens whose q is farthest from 1" in printed


def test_the_same_seed_makes_the_same_page(look):
    first, again, other = (look("--num_prompts", 1, "--seed", seed)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_a_threshold_that_never_fires_is_told(look):
    page, printed = look("--num_prompts", 1, "--guide_kwargs", '{"threshold": 50}')
    for text in (page.replace("&#39;", "'"), printed):
        assert "`threshold` 50 is above all of this model's entropies: this guide will do nothing" in text
    assert "0 % have q other than 1" in printed


def test_clamped_values_are_told(look):
    page, printed = look("--num_prompts", 2, "--guide_kwargs", '{"threshold": 0.0, "ratio": 5}')
    assert re.search(r"\d+(\.\d+)? % of values are clamped: [\d.]+ % at q_max 1.4\.", printed)


def test_completions_that_never_end_are_told(look):
    _, printed = look("--num_prompts", 1, "--max_completion_length", 2)
    assert "No completion came to its end within `max_completion_length` 2" in printed


def test_the_schedule_has_its_step(look):
    page, printed = look("--num_prompts", 1, "--step", 50, recipe="sage_token")
    assert (
        "At step 50 of 100" in printed
        and "alpha=0.3 to 0.1 in 8 cycles" in printed
        and "Strength over the run" in page
    )
    falling = ("--guide_kwargs", '{"probability": [0.9, 0.0]}')
    early, late = (look("--num_prompts", 1, *falling, "--step", step, recipe="sage_random")[0] for step in (0, 95))
    assert len(re.findall("class=[ud] ", early)) > 2 * len(re.findall("class=[ud] ", late))


def test_what_training_left_is_compared_with_where_it_began(look, tmp_path):
    folder = tmp_path / "run"
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    next(model.parameters()).data.mul_(1.05)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 30, "max_steps": 40}))
    page, printed = look("--model", folder, "--num_prompts", 1)
    assert "Reference: examples/countdown/model. At step 30 of 40." in printed
    assert any(figures[0] != figures[1] for _, figures in tokens(page))


def test_a_step_needs_a_run(refused):
    message = refused("--step", 5, "--max_steps", -1)
    assert "`step` is 5, and the recipe has no `max_steps`" in message
    assert "`step` is 100, and the run has 100 (`max_steps`), of which 99 is last" in refused("--step", 100)


def test_what_a_recipe_starts_from_is_at_its_first_step(look, tmp_path):
    """Also where an earlier stage left its own state, in that folder."""
    start = tmp_path / "sft"
    AutoModelForCausalLM.from_pretrained(MODEL).save_pretrained(start)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(start)
    (start / "trainer_state.json").write_text(json.dumps({"global_step": 500, "max_steps": 500}))
    _, printed = look("--model_name_or_path", start, "--num_prompts", 1)
    assert "At step 0 of 100" in printed and "the policy itself, as at the start" in printed
    _, printed = look("--model", start, "--num_prompts", 1)
    assert "At step 499 of 500" in printed and "Reference: examples/countdown/model" in printed


def test_every_end_token_of_the_model_ends_a_completion(look, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    plus = tokenizer.convert_tokens_to_ids("+")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, plus]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    page, printed = look("--model", tmp_path, "--num_prompts", 2)
    each = [[token for token, _ in tokens(part)] for part in page.split('class="completion"')[1:]]
    assert "cut off 0 of 8 completions" in printed and any(row[-1] == "+" for row in each)
    assert all("+" not in row[:-1] for row in each)


def test_a_completion_ends_where_sampling_would_end_it(look, tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", {"prompt": [PROBLEM], "completion": "47+6<|end|>+5+12"})
    page, _ = look("--prompts", file)
    assert [token for token, _ in tokens(page)] == ["47", "+", "6", "&lt;|end|&gt;"]


def test_truncated_completions_that_training_leaves_out_are_said(look):
    _, printed = look("--num_prompts", 1, "--max_completion_length", 2, "--mask_truncated_completions", "true")
    assert "4 of 4 completions are cut off: training leaves them out" in printed


def test_prompts_are_padded_on_the_left(look, tmp_path):
    guide = tmp_path / "spy.py"
    guide.write_text(
        "from sage_trl import GuideFunction\n"
        "class Spy(GuideFunction):\n"
        "    requires = ('prompt_ids',)\n"
        "    def __call__(self, signals):\n"
        "        assert len(set(signals.prompt_ids[:, -1].tolist())) == 1\n"
        "        return 1.5 + 0 * signals.policy_logps\n"
    )
    rows = ({"prompt": [PROBLEM]}, {"prompt": [{"role": "user", "content": "Numbers: 1 2 Target: 3"}]})
    look("--prompts", write_rows(tmp_path / "r.jsonl", *rows), "--guide", f"{guide}:Spy", "--guide_kwargs", "{}")


def test_what_prepare_returns_is_checked(refused, tmp_path):
    guide = tmp_path / "bad.py"
    guide.write_text(
        "import torch\nfrom sage_trl import GuideFunction\n"
        "class Bad(GuideFunction):\n"
        "    requires = ()\n"
        "    def prepare(self, rollout):\n"
        "        return {'a': torch.ones(2, 3, 4)}\n"
    )
    assert "returned 'a' of shape (2, 3, 4)" in refused("--guide", f"{guide}:Bad", "--guide_kwargs", "{}")


def test_settings_of_generation_win_and_nothing_controls_the_terminal(look, tmp_path):
    look("--num_prompts", 1, "--generation_kwargs", '{"temperature": 0.5}')
    from sage_trl.reports.guide import printable

    assert printable("a\x1b[2J\nb") == "a\\x1b[2J\nb"


def test_an_answer_column_by_another_name(look, tmp_path):
    row = {"problem": "1 + 1?", "completion": r"\boxed{2}", "gold": "2"}
    settings = ("--reward_funcs", "math", "--answer_column", "gold")
    _, printed = look("--prompts", write_rows(tmp_path / "rows.jsonl", row), *settings)
    assert "correct" in printed


def test_completions_are_read_from_a_file(look, tmp_path):
    file = write_rows(
        tmp_path / "rows.jsonl",
        {"prompt": [PROBLEM], "completion": "47+6+5+12"},
        {"prompt": [PROBLEM], "completion": ["47+11", "5*12"]},
    )
    page, printed = look("--prompts", file)
    assert "3 of 2 problems" in printed and "correct" not in printed
    text = re.sub("&lt;.end.&gt;", " ", "".join(token for token, _ in tokens(page)))
    assert text.split() == ["47+6+5+12", "47+11", "5*12"]


def test_a_completion_too_long_for_the_run_is_cut_off_and_said_to_be(look, tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", {"prompt": [PROBLEM], "completion": ["47+6+5+12" * 9, "", "47+6"]})
    page, printed = look("--prompts", file)
    assert "cut off 1 of 3 completions" in printed
    assert len(tokens(page)) == 16 + 1 + 4  # the limit; the end alone; 47 + 6 and the end


def test_a_file_is_judged_where_it_has_what_the_rewards_read(look, tmp_path):
    row = {"prompt": [PROBLEM], "completion": "47+6+5+12", "answer": "47+6+5+12"}
    _, printed = look("--prompts", write_rows(tmp_path / "some.jsonl", row))
    assert "1 of 1 problems" in printed and "correct" not in printed  # countdown reads numbers and target
    row |= {"numbers": [5, 47, 12, 6], "target": 70}
    _, printed = look("--prompts", write_rows(tmp_path / "all.jsonl", row))
    assert "correct 1 of 1 completions" in printed


def test_problems_are_read_from_a_file_as_plain_messages(look, tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", {"problem": PROBLEM["content"]})
    page, printed = look("--prompts", file, "--num_samples", 2)
    assert "2 of 1 problems" in printed and PROBLEM["content"] in page


def test_a_guide_that_sees_groups_gets_whole_ones(look, refused, tmp_path):
    settings = ("--guide", "novelty", "--guide_kwargs", "{}", "--num_prompts", 3)
    page, printed = look(*settings)
    assert "48 of 3 problems" in printed  # num_generations each
    for section in page.split('class="completion"')[1:]:
        is_correct = "<span>correct</span>" in section
        assert ("class=u" in section) == is_correct
    file = write_rows(tmp_path / "rows.jsonl", {"prompt": [PROBLEM]})
    assert "NoveltyGuide sees rewards, and" in refused(*settings, "--prompts", file)


def test_an_adapter_is_compared_with_its_base(look, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(MODEL)
    adapter = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapter.save_pretrained(tmp_path / "adapter")
    page, printed = look("--model", tmp_path / "adapter", "--num_prompts", 1)
    assert "Policy: adapter." in printed and str(tmp_path) not in page  # a page is passed on
    assert "Reference: the policy without its adapter" in printed
    by_adapter = tokens(page)
    assert any(figures[0] != figures[1] for _, figures in by_adapter)
    whole = adapter.merge_and_unload()
    whole.save_pretrained(tmp_path / "whole")
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(tmp_path / "whole")
    page, printed = look("--model", tmp_path / "whole", "--ref_model", MODEL, "--num_prompts", 1)
    assert [text for text, _ in tokens(page)] == [text for text, _ in by_adapter]
    assert tokens(page)[0][1] == pytest.approx(by_adapter[0][1], abs=2e-3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": None}, "line 1: it has no problem in column 'problem'"),
        ({"problem": " "}, "line 1: it has no problem"),
        ({"problem": "x", "completion": 5}, "a row's completion is 5; it must be a text or a list of texts"),
        ({"problem": "x", "completion": ["a", None]}, "a row's completion is ['a', None]"),
        ({"problem": "x", "completion": []}, "a row's completion is []"),
        ({"puzzle": "x"}, "has no column named 'problem' or 'question' or 'prompt'"),
    ],
)
def test_rows_that_cannot_be_used_are_named(refused, tmp_path, row, message):
    assert message in refused("--prompts", write_rows(tmp_path / "rows.jsonl", row))


def test_foreign_text_stays_text(look, tmp_path):
    script = "<script>alert(1)</script>"
    page, _ = look("--prompts", write_rows(tmp_path / "rows.jsonl", {"problem": script, "completion": [script, ""]}))
    assert script not in page and "alert" in page and len(tokens(page)) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--guide", "none", "--guide_kwargs", "{}"), "`guide` is 'none': this recipe has no guide to look at"),
        (("--num_prompts", 0), "`num_prompts` is 0; it must be at least 1"),
        (("--prompts", "no/such.jsonl"), "`prompts` is 'no/such.jsonl', and there is no such file"),
        (("--model", "no/such/folder"), "no such folder"),
        (("--output", "recipes"), "`output` is 'recipes', a folder"),
        (("--promts", "x"), "unknown setting `--promts`. Did you mean 'prompts'?"),
    ],
)
def test_mistakes_are_one_line(refused, arguments, message):
    assert message in refused(*arguments)
