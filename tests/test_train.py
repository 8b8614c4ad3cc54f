import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.data.load import load_task
from sage_trl.data.prompts import load_prompt_format
from sage_trl.recipe import recipe_text
from sage_trl.rewards.math import unreadable
from sage_trl.rewards.pool import shared_pool
from sage_trl.train import COMMAND, build_trainer, find_unreadable, make_parser, run

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "examples" / "countdown" / "model")
RECIPE = str(ROOT / "recipes" / "countdown" / "sage_branch.yaml")
SMALL = [
    *("--model_name_or_path", MODEL, "--per_device_train_batch_size", "8", "--num_generations", "4"),
    *("--max_steps", "2", "--task_kwargs", '{"num_rows": 20}', "--use_cpu", "true"),
]
DATA = ["--dataset_name", "problems.jsonl", "--reward_funcs", "format_boxed"]
ON_GOLDEN = [
    *("--model_name_or_path", str(ROOT / "tests" / "golden" / "model"), "--use_cpu", "true", "--bf16", "false"),
    *("--report_to", "none", "--max_steps", "1"),
    *("--per_device_train_batch_size", "2", "--num_generations", "2", "--max_completion_length", "4"),
    *("--save_steps", "1"),
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
    COMMAND.fit(trainer, parsed[0])
    assert trainer.state.global_step == 2
    assert trainer.guide.threshold == 1.3
    assert [type(callback).__name__ for callback in trainer.callback_handler.callbacks].count("ProgressCallback") == 0
    log = trainer.state.log_history
    assert any("sage/group_pass" in row for row in log)
    assert any("eval_reward" in row for row in log)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() == 408_576
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|end|>"
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert any("sage/q_mean" in row for row in state["log_history"])
    card = (tmp_path / "README.md").read_text()
    assert "BranchGuide" in card and "None" not in card and "countdown/model" not in card
    assert json.loads((tmp_path / "sage_prompt.json").read_text()) == {"prompt_format": None}


def test_pass_reward_takes_the_recipe_s_name_of_a_reward(tmp_path):
    arguments = ["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--pass_reward", "countdown"]
    assert build_trainer(*make_parser().parse_run(arguments))._pass_column == 0


def test_processes_that_would_each_train_alone_are_refused(tmp_path, monkeypatch):
    parsed = make_parser().parse_run(["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were launched, but each would train alone.*`use_cpu`"):
        build_trainer(*parsed)


def test_lora_trains_through_the_model_settings(tmp_path):
    run(["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--use_peft", "--lora_r", "4"])
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 4


def test_a_file_of_problems_trains_and_the_folder_says_in_which_format(tmp_path, capsys):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"question": "What is 1 + 1?", "answer": "1+1 = 2\\n#### 2"}\n' * 4 + '{"question": ""}\n')
    arguments = ["--dataset_name", str(file), "--reward_funcs", "format_boxed", "--prompt_format", "qwen-math"]
    run([*arguments, *ON_GOLDEN, "--output_dir", str(tmp_path / "run"), "--use_peft"])
    output = capsys.readouterr().out
    assert f"{file}: 5 rows read, 4 kept, 1 dropped; problems from 'question', answers from 'answer'" in output
    assert "dropped 1: the problem is missing or empty (line 5)" in output
    assert load_prompt_format(tmp_path / "run") == "qwen-math"
    assert load_prompt_format(tmp_path / "run" / "checkpoint-1") == "qwen-math"


def test_a_broken_file_ends_in_one_report_and_exit_code_2(tmp_path, capsys):
    file = str(ROOT / "tests" / "data" / "broken.jsonl")
    arguments = ["--dataset_name", file, "--reward_funcs", "math", "--prompt_format", "qwen-math"]
    with pytest.raises(SystemExit) as end:
        run([*arguments, *ON_GOLDEN, "--output_dir", str(tmp_path / "run"), "--max_prompt_length", "900"])
    assert end.value.code == 2
    report = capsys.readouterr().err.splitlines()[-15:]
    assert report == [
        f"{file}: 20 rows read, 5 kept, 13 dropped; problems from 'question', answers from 'answer'",
        "  unreadable: line 14 Expecting ',' delimiter at character 50",
        "  unreadable: line 15 is no JSON object",
        "  dropped 3: the problem is missing or empty (lines 2, 3, 4)",
        "  dropped 1: the problem is not text (line 8)",
        "  dropped 1: the problem is not valid Unicode (line 18)",
        "  dropped 4: the answer is missing or empty (lines 5, 6, 7, 19)",
        "  dropped 1: the answer is not text (line 9)",
        "  dropped 1: the worked solution has no final answer: no box, no #### (line 17)",
        "  dropped 1: the math reward cannot read the answer (line 16)",
        "  dropped 1: the prompt is longer than `max_prompt_length` = 900 tokens (longest: 991) (line 12)",
        "  warning 1: the model's own markup in the problem, broken by a space (line 13)",
        "  warning 1: the problem stands there before, with the same answer (line 10)",
        "  warning 1: the problem stands there before, with another answer (line 11)",
        f"sage-trl: error: '{file}' cannot be read: line 14 Expecting ',' delimiter at character 50, the first of 2 "
        "such.",
    ]


def test_golds_are_checked_for_the_math_reward_alone():
    assert find_unreadable(["format_boxed", "my.module:reward"]) is None
    assert find_unreadable(["format_boxed", "math"]) is unreadable
    assert find_unreadable(["sage_trl.rewards.math:math_reward"]) is unreadable


def test_the_math_reward_has_the_limits_of_the_recipe(tmp_path):
    arguments = [*("--dataset_name", problems(tmp_path), "--prompt_format", "plain"), "--reward_funcs", "math"]
    arguments += ["--reward_timeout", "0.5", "--reward_workers", "1", "--output_dir", str(tmp_path / "run")]
    build_trainer(*make_parser().parse_run([*arguments, *ON_GOLDEN]))
    assert (shared_pool().timeout, shared_pool().workers) == (0.5, 1)
    for setting in ("reward_timeout", "reward_workers"):
        with pytest.raises(ValueError, match=f"`{setting}` is 0"):
            make_parser().parse_run([*arguments, *ON_GOLDEN, f"--{setting}", "0"])


def problems(tmp_path) -> str:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"problem": f"{i}+x?", "answer": f"x+{i}"}) + "\n" for i in range(8)))
    return str(file)


def test_the_math_reward_trains_and_logs_its_time_outs(tmp_path):
    arguments = ["--dataset_name", problems(tmp_path), "--reward_funcs", "math", "--prompt_format", "plain"]
    run([*arguments, *ON_GOLDEN, "--output_dir", str(tmp_path / "run"), "--logging_steps", "1"])
    log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert log[0]["rewards/timeout_frac"] == 0.0
    assert log[0]["rewards/math_reward/mean"] == 0.0


def test_a_run_resumes_as_its_settings_say(tmp_path, capsys):
    arguments = ["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--save_strategy", "steps"]
    arguments += ["--save_steps", "1"]
    run([*arguments, "--resume_from_checkpoint", "auto"])
    assert "Resuming" not in capsys.readouterr().out
    state = (tmp_path / "checkpoint-2" / "trainer_state.json").read_text()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(state[:100])  # torn
    run([*arguments, "--resume_from_checkpoint", "auto"])
    assert f"Resuming from {tmp_path / 'checkpoint-1'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2
    assert "no whole checkpoint" in refused(
        capsys, *arguments, "--output_dir", str(tmp_path / "new"), "--resume_from_checkpoint", "true"
    )
    (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
    assert "which is torn" in refused(capsys, *arguments, "--resume_from_checkpoint", str(tmp_path / "checkpoint-2"))


def test_a_finished_run_is_left_as_it_is(tmp_path, capsys):
    arguments = ["--config", RECIPE, *SMALL, "--output_dir", str(tmp_path), "--save_strategy", "steps"]
    arguments += ["--save_steps", "1", "--resume_from_checkpoint", "auto"]
    run(arguments)
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()  # as if the run had been killed while it saved
    for _ in range(2):
        run(arguments)
        assert "is the end of the run already: nothing is left to train" in capsys.readouterr().out
        assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "checkpoint-3").exists()
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 2


def test_a_card_names_no_local_data(tmp_path):
    arguments = ["--dataset_name", problems(tmp_path), "--reward_funcs", "math", "--prompt_format", "plain"]
    run([*arguments, *ON_GOLDEN, "--output_dir", str(tmp_path / "run")])
    assert str(tmp_path) not in (tmp_path / "run" / "README.md").read_text()


def test_a_recipe_keeps_no_secret_within_a_mapping():
    arguments = ["--config", RECIPE, *SMALL, "--output_dir", "run"]
    arguments += ["--generation_kwargs", '{"max_new_tokens": 12, "api_key": "SECRET"}']
    parser = make_parser()
    parsed = parser.parse_run([*arguments, "--model_init_kwargs", '{"token": "SECRET"}'])
    text = recipe_text(parsed, parser.given, "sage_trl.train")
    assert "SECRET" not in text and "max_new_tokens: 12" in text


def test_the_recipe_is_kept_beside_the_model_and_runs_again(tmp_path):
    first = tmp_path / "first"
    run(["--config", RECIPE, *SMALL, "--output_dir", str(first), "--learning_rate", "2e-4"])
    kept = yaml.safe_load((first / "recipe.yaml").read_text())
    assert kept["learning_rate"] == 2e-4 and kept["guide"] == "branch" and kept["output_dir"] == "first"
    assert not {"config", "dry_run", "hub_token"} & set(kept)
    # Of an absolute path only the last part is kept: a recipe is published
    assert kept["model_name_or_path"] == "model"
    here = ["--model_name_or_path", MODEL, "--output_dir", str(first)]
    again = [*make_parser().parse_run(["--config", str(first / "recipe.yaml"), *here])]
    before = [*make_parser().parse_run(["--config", RECIPE, *SMALL, "--output_dir", str(first)])]
    assert again[0] == before[0] and again[2] == before[2]
    assert again[1].guide_kwargs == before[1].guide_kwargs and again[1].max_steps == before[1].max_steps


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "nothing to run: give a recipe, `--config recipe.yaml`"),
        ([RECIPE], f"Write `--config {RECIPE}`"),
        (
            ["--config", RECIPE, "--model_name_or_path", "./no/model"],
            "`model_name_or_path` is './no/model', and there",
        ),
        (["--config", RECIPE, "--report_to", "wandb"], "`report_to` names 'wandb', whose package is not installed"),
    ],
)
def test_a_first_mistake_is_answered_in_a_line(capsys, monkeypatch, arguments, words):
    monkeypatch.setattr("sage_trl.checks.importlib.util.find_spec", lambda name: None)
    assert words in refused(capsys, *arguments)


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


SIGNAL = ["--save_on_signal", "true", "--use_cpu", "true", "--bf16", "false", "--metric_for_best_model", "reward"]
BEST = [
    "--load_best_model_at_end",
    "true",
    "--eval_strategy",
    "steps",
    "--save_strategy",
    "steps",
    "--save_steps",
    "2",
]
BEST += ["--eval_steps", "2"]


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
        (["--config", RECIPE, "--prompt_format", "r1"], "task 'countdown' has prompts of its own"),
        ([*DATA, "--prompt_format", "r2"], "Did you mean 'r1'?"),
        (
            [*DATA, "--prompt_format", "r1", "--reward_funcs", "format_tags"],
            "rewards the form of `prompt_format` 'tags'",
        ),
        ([*DATA, "--on_bad_rows", "drp"], "`on_bad_rows` is 'drp'. Did you mean 'drop'?"),
        ([*DATA, "--max_prompt_length", "0"], "`max_prompt_length` is 0; it must be at least 1"),
        (["--config", RECIPE, *SIGNAL, "--save_strategy", "best"], "`save_strategy` is 'best'"),
        (["--config", RECIPE, *SIGNAL, *BEST, "--save_total_limit", "1"], "`save_total_limit` is 1"),
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


def test_a_generated_task_shares_no_problem_between_its_splits():
    train, test = (load_task("countdown", {"num_rows": 300}, split) for split in ("train", "test"))
    keys = [{(*sorted(row["numbers"]), row["target"]) for row in split} for split in (train, test)]
    assert len(train) == 300
    assert len(test) == 200
    assert not keys[0] & keys[1]
