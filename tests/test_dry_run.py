import re
from pathlib import Path

import pytest
from datasets import Dataset
from support import GOLDEN

from sage_trl import sft, train

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*/*.yaml") if path.parent.name != "accelerate_configs")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Folders laid out as the datasets of the recipes are on the Hub."""
    root = tmp_path_factory.mktemp("hub")
    problems = [f"What is {i} + {i + 1}?" for i in range(1, 21)]
    answers = [str(2 * i + 1) for i in range(1, 21)]
    dapo = Dataset.from_dict(
        {
            "prompt": [*problems, "How long is it? " * 3000, "Draw a circle."],
            "solution": [*answers, "34", r"\\frac{1}{"],
            "data_source": ["math_dapo"] * 22,
            "source_prompt": [[{"role": "user", "content": "Solve it step by step."}]] * 22,
            "ability": ["MATH"] * 22,
            "reward_model": [{"ground_truth": "34", "style": "rule"}] * 22,
            "extra_info": [{"index": "0"}] * 22,
        }
    )
    (root / "dapo" / "en").mkdir(parents=True)
    dapo.to_parquet(root / "dapo" / "en" / "train-00000-of-00001.parquet")
    (root / "dapo" / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*\n---\n"
    )
    thoughts = [f"<think>\n{i} and {i + 1} make {2 * i + 1}.\n</think>\nSo it is {2 * i + 1}." for i in range(1, 21)]
    reasoning = Dataset.from_dict(
        {
            "expected_answer": [*answers, "x + 1", "5", "7"],
            "problem_type": ["has_answer_extracted"] * 23,
            "problem": [*problems, "What comes after x?", "What is 2 + 3?", "What is 3 + 4?"],
            "generated_solution": [*thoughts, "<think>x + 1</think>", "<think>" + "so " * 20000 + "</think>5", None],
            "pass_rate_72b_tir": ["0.5"] * 23,
            "inference_mode": ["cot"] * 23,
        }
    )
    (root / "reasoning" / "data").mkdir(parents=True)
    reasoning.to_parquet(root / "reasoning" / "data" / "cot-00000-of-00001.parquet")
    return root


def overrides(path: Path, hub: Path, tmp_path: Path) -> list[str]:
    """What makes a recipe small enough for this machine: another model and local data. The rest is the recipe's."""
    text = path.read_text()
    if path.parent.name == "countdown":
        return ["--model_name_or_path", str(ROOT / "examples" / "countdown" / "model")]
    data = hub / ("reasoning" if path.stem == "sft" else "dapo")
    given = ["--model_name_or_path", str(GOLDEN / "model"), "--dataset_name", str(data)]
    return given if "dataset_config" in text or path.stem == "sft" else [*given, "--dataset_config", "en"]


def dry_run(path: Path, hub: Path, tmp_path: Path, capsys, *more: str) -> str:
    run = (sft if path.stem == "sft" else train).run
    output = ["--output_dir", str(tmp_path / "run")]
    run(["--config", str(path), *overrides(path, hub, tmp_path), *output, "--dry_run", *more])
    assert not list(tmp_path.rglob("*.safetensors"))
    return capsys.readouterr().out


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_dry_runs(path, hub, tmp_path, capsys):
    text = dry_run(path, hub, tmp_path, capsys)
    assert "Dry run: everything but the weights was loaded, nothing was trained." in text
    for title in ("Model", "Batch", "as the model sees them", "Memory per device, estimated"):
        assert re.search(rf"^{title}|{title}$", text, re.M), title


def test_it_says_what_would_happen(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sage_trl.checks.importlib.util.find_spec", lambda name: None)
    path = ROOT / "recipes" / "DeepSeek-R1-Distill-Qwen-7B" / "sage_token.yaml"
    text = dry_run(path, hub, tmp_path, capsys, "--gradient_accumulation_steps", "4", "--report_to", "wandb")
    assert "22 rows read, 20 kept, 2 dropped; problems from 'prompt', answers from 'solution'" in text
    assert "dropped 1: the math reward cannot read the answer (row 22)" in text
    assert "dropped 1: the prompt is longer than `max_prompt_length` = 2048 tokens" in text
    assert "one step: 32 completions = 8 per device x 4 accumulated x 1 process" in text
    assert "4 prompts x 8 completions" in text
    assert "whole run: 1,000 steps, 32,000 completions, 4,000 prompts = 200.00 epochs of 20 rows" in text
    assert "learning rate 5e-06, constant_with_warmup, 100 steps of warm-up; adamw_8bit" in text
    assert "vLLM, colocate; temperature 1.0, top-p 1.0, min-p 0.01; up to 6144 tokens" in text
    assert "1 x math_reward" in text
    assert "k3, beta 0.05; loss grpo" in text
    assert re.search(r"step +0 +30 +60 +125 +250 +500 +750 +999\n +alpha +0.3000 .*\n +sigma +0.2500", text)
    assert text.count(r"put your final answer within \boxed{}.") == 2
    assert "What is 1 + 2?" in text and "answer 3" in text
    for package in ("vllm", "bitsandbytes", "wandb"):
        assert f"'{package}', whose package" in text or f"needs the package '{package}'" in text


def test_of_the_supervised_stage(hub, tmp_path, capsys):
    text = dry_run(ROOT / "recipes" / "Qwen2.5-Math-7B" / "sft.yaml", hub, tmp_path, capsys)
    assert "23 rows read, 20 kept, 3 dropped; problems from 'problem', answers from 'expected_answer'" in text
    assert "dropped 1: the answer is no number (row 21)" in text
    assert "dropped 1: the solution is missing or empty (row 23)" in text
    assert "dropped 1: prompt and solution are longer than `max_text_share` x `max_length` = 4096 tokens" in text
    assert "<start_working_out>\n  1 and 2 make 3." in text
    assert "<SOLUTION>3</SOLUTION>" in text
    assert "whole run: 40 steps, 40 texts = 2.00 epochs of 20 rows" in text


def test_a_recipe_can_ask_for_it(hub, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    path = ROOT / "recipes" / "DeepSeek-R1-Distill-Qwen-7B" / "grpo.yaml"
    recipe.write_text(path.read_text() + "dry_run: true\n")
    train.run(["--config", str(recipe), *overrides(path, hub, tmp_path), "--output_dir", str(tmp_path / "run")])
    assert "Dry run: everything but the weights was loaded, nothing was trained." in capsys.readouterr().out


def test_a_real_run_refuses_what_is_missing(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sage_trl.checks.importlib.util.find_spec", lambda name: None)
    path = ROOT / "recipes" / "DeepSeek-R1-Distill-Qwen-7B" / "grpo.yaml"
    with pytest.raises(SystemExit) as end:
        train.run(["--config", str(path), *overrides(path, hub, tmp_path), "--use_cpu", "true"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "`use_vllm` needs the package 'vllm'" in error and "`optim: adamw_8bit` needs" in error
