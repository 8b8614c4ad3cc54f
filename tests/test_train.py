import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.data.countdown import make_countdown
from sage_trl.data.load import check_problems, load_problems, load_task
from sage_trl.train import build_trainer, fit, make_parser, run

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "examples" / "countdown" / "model")
RECIPE = str(ROOT / "recipes" / "countdown" / "sage_branch.yaml")
SMALL = [
    *("--model_name_or_path", MODEL, "--per_device_train_batch_size", "8", "--num_generations", "4"),
    *("--max_steps", "2", "--task_kwargs", '{"num_rows": 20}', "--use_cpu", "true"),
]


def refused(capsys, *argv: str) -> str:
    """The one line that a run prints when it refuses its settings."""
    with pytest.raises(SystemExit) as end:
        run(list(argv))
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("sage-trl: error: ")
    assert not any("Traceback" in line or line.startswith("usage") for line in lines)
    return lines[-1].removeprefix("sage-trl: error: ")


def recipe(tmp_path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_a_recipe_trains_and_saves_a_model_that_loads(tmp_path):
    parsed = make_parser().parse_run(
        ["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--eval_strategy", "steps", "--eval_steps", "2"]
    )
    trainer = build_trainer(*parsed)
    fit(trainer, parsed[1], dataset_name=None)
    assert trainer.state.global_step == 2
    assert trainer.guide.threshold == 1.3
    assert [type(callback).__name__ for callback in trainer.callback_handler.callbacks].count("ProgressCallback") == 0
    log = trainer.state.log_history
    assert any("sage/group_pass" in row for row in log)
    assert any("eval_reward" in row for row in log)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() == 408_576
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|end|>"


def test_lora_trains_through_the_model_settings(tmp_path):
    run(["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--use_peft", "--lora_r", "4"])
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 4


def test_the_command_line_wins_over_the_recipe():
    _, training_args, _ = make_parser().parse_run(["--config", RECIPE, "--learning_rate", "1e-5", "--seed=7"])
    assert (training_args.learning_rate, training_args.seed, training_args.max_completion_length) == (1e-5, 7, 16)


def test_an_unknown_flag_names_the_nearest_setting(capsys):
    message = refused(capsys, "--config", RECIPE, "--learning_rat", "1e-4")
    assert message == "unknown setting `--learning_rat`. Did you mean 'learning_rate'?"


def test_an_unknown_key_names_the_nearest_setting_and_the_line(capsys, tmp_path):
    path = recipe(tmp_path, "task: countdown\nguide_kwarg:\n  ratio: 0.3\n")
    assert refused(capsys, "--config", path) == (
        f"unknown setting `guide_kwarg` in {path}, line 2. Did you mean 'guide_kwargs'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: countdown\nseed: 1\nseed: 2\n", "sets `seed` twice, in lines 2 and 3"),
        ("task: [countdown\n", "is no valid YAML"),
        ("- countdown\n", "must be a list of `setting: value` lines"),
        ("save_strategy: no\n", "line 1: write 'no' in quotes"),
    ],
)
def test_a_malformed_recipe_is_refused(capsys, tmp_path, text, message):
    assert message in refused(capsys, "--config", recipe(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", RECIPE.replace("branch", "brnch")], "Did you mean 'sage_branch.yaml'?"),
        (["--config"], "`--config` needs the path of a recipe"),
        (["--config", RECIPE, "--config", RECIPE], "given twice"),
        (["--config", RECIPE, "stray"], "'stray' stands alone"),
        (["--config", RECIPE, "--seed", "many"], "argument --seed: invalid int value: 'many'"),
        (["--config", RECIPE, "--guide", "brunch"], "Did you mean 'branch'?"),
        (["--config", RECIPE, "--beta", "0"], "no anchor that a guide could reshape"),
        (["--config", RECIPE, "--task_kwargs", "{rows}"], "which is no JSON"),
        (["--config", RECIPE, "--dataset_name", "a/b"], "give exactly one of them"),
        (["--reward_funcs", "countdown"], "`task` is None and `dataset_name` is None"),
        (["--task", "countdown"], "`reward_funcs` is empty"),
        (["--config", RECIPE, *SMALL, "--task", "countup"], "Did you mean 'countdown'?"),
        (["--config", RECIPE, *SMALL, "--task_kwargs", '{"rows": 5}'], "Did you mean 'num_rows'?"),
        (["--config", RECIPE, *SMALL, "--reward_funcs", "cuntdown"], "Did you mean 'countdown'?"),
        (["--config", RECIPE, *SMALL, "--pass_reward", "count"], "`pass_reward` is 'count'"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(capsys, tmp_path, arguments, message):
    assert message in refused(capsys, *arguments, *(["--output_dir", str(tmp_path)] if "--task" in arguments else []))


@pytest.mark.parametrize(
    ("setting", "extra"),
    [("--load_in_4bit", "quantization"), ("--load_in_8bit", "quantization"), ("--use_vllm", "vllm")],
)
def test_a_missing_package_is_named_with_its_extra(capsys, monkeypatch, setting, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert f"pip install 'sage-trl[{extra}]'" in refused(capsys, "--config", RECIPE, *SMALL, setting)


@pytest.mark.parametrize(
    ("suffix", "write"), [(".jsonl", Dataset.to_json), (".csv", Dataset.to_csv), (".parquet", Dataset.to_parquet)]
)
def test_local_files_load(tmp_path, suffix, write):
    path = str(tmp_path / f"problems{suffix}")
    write(Dataset.from_dict({"prompt": ["1 + 1?"], "answer": ["2"]}), path)
    assert load_problems(path, None, "train", "dataset_train_split")["prompt"][0] == "1 + 1?"


def test_saved_folders_load_and_an_unknown_split_is_refused(tmp_path):
    problems = make_countdown(4)
    problems.save_to_disk(tmp_path / "one")
    DatasetDict({"train": problems, "validation": problems}).save_to_disk(tmp_path / "two")
    assert len(load_problems(str(tmp_path / "one"), None, "train", "dataset_train_split")) == 4
    with pytest.raises(ValueError, match=r"`dataset_test_split` is 'test'.*\['train', 'validation'\]"):
        load_problems(str(tmp_path / "two"), None, "test", "dataset_test_split")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": ["1 + 1?"], "answer": ["2"]}, r"no column 'prompt'; its columns are \['question', 'answer'\]"),
        ({"question": ["1 + 1?"]}, "no column 'prompt' and no column 'answer'"),
        ({"prompt": [], "answer": []}, "has no rows"),
    ],
)
def test_a_dataset_without_problems_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        check_problems(Dataset.from_dict(columns), "mine")


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ('{"prompt": "1 + 1?"\n', "cannot be read as .jsonl")]
)
def test_a_file_without_problems_is_refused(tmp_path, text, message):
    path = tmp_path / "problems.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_problems(str(path), None, "train", "dataset_train_split")


@pytest.mark.parametrize("name", ["missing.jsonl", "/no/such/folder"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_problems(name, None, "train", "dataset_train_split")


def test_a_generated_task_shares_no_problem_between_its_splits():
    train, test = (load_task("countdown", {"num_rows": 300}, split) for split in ("train", "test"))
    keys = [{(*sorted(row["numbers"]), row["target"]) for row in split} for split in (train, test)]
    assert len(train) == 300
    assert len(test) == 200
    assert not keys[0] & keys[1]
