"""pass@k during training: what it says, and that the run does not feel it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support import FAST, GOLDEN, assert_same_bits, build_trainer, weights
from transformers import TrainerCallback

from sage_trl import SAGEGRPOConfig, SAGEGRPOTrainer
from sage_trl.data.countdown import make_countdown
from sage_trl.dry_run import describe_training
from sage_trl.eval import evaluate
from sage_trl.evaluation.monitor_settings import PassAtK
from sage_trl.evaluation.settings import EvalArguments
from sage_trl.evaluation.transformers_backend import TransformersBackend
from sage_trl.rewards.countdown import countdown_reward
from sage_trl.train import build_trainer as build_trainer_of_recipe
from sage_trl.train import make_parser

MODEL = str(Path(__file__).parents[2] / "examples" / "countdown" / "model")
COUNTDOWN = {"benchmarks": "countdown", "n": 4, "k": [1, 4], "num_problems": 12}
SCHEDULE = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
LORA = LoraConfig(r=4, lora_dropout=0.2, target_modules=["q_proj", "v_proj"])


def demo_trainer(folder, **settings):
    given = {name: settings.pop(name) for name in ("peft_config", "eval_dataset", "callbacks") if name in settings}
    args = SAGEGRPOConfig(str(folder), **(FAST | {"max_completion_length": 12} | settings))
    return SAGEGRPOTrainer(MODEL, countdown_reward, args, train_dataset=make_countdown(32), **given)


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


WATCHED = {
    "full": {"guide": "token"},
    "lora with dropout": {"guide": "token", "peft_config": LORA},
    "checkpointed": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "bfloat16": {"bf16": True},
    "accumulated, several iterations": {"gradient_accumulation_steps": 2, "num_iterations": 2},
    "sequence": {"anchor": "sequence"},
}


@pytest.mark.parametrize("settings", WATCHED.values(), ids=WATCHED)
def test_a_run_that_is_watched_ends_in_the_same_bits(settings, tmp_path):
    alone = demo_trainer(tmp_path, max_steps=3, **settings)
    alone.train()
    state = torch.get_rng_state()
    watched = demo_trainer(tmp_path, max_steps=3, **settings, **SCHEDULE, eval_pass_at_k=COUNTDOWN)
    watched.train()
    assert_same_bits(weights(alone.model), weights(watched.model))
    assert torch.equal(state, torch.get_rng_state())
    assert len(logged(watched, "eval_pass@4")) == 3
    for key in ("loss", "grad_norm", "reward", "sage/kl_ref"):
        assert logged(alone, key) == logged(watched, key) != []


def test_an_eval_dataset_s_evaluation_draws_what_it_draws_without(tmp_path):
    settings = {"guide": "token", **SCHEDULE, "eval_dataset": make_countdown(4, split="test")}
    alone = demo_trainer(tmp_path, **settings)
    alone.train()
    watched = demo_trainer(tmp_path, **settings, eval_pass_at_k=COUNTDOWN)
    watched.train()
    assert_same_bits(weights(alone.model), weights(watched.model))
    assert logged(alone, "eval_reward") == logged(watched, "eval_reward") != []
    entries = [entry for entry in watched.state.log_history if "eval_reward" in entry]
    assert all("eval_pass@1" in entry for entry in entries)  # one entry for each evaluation


def test_it_measures_what_eval_measures(tmp_path):
    trainer = demo_trainer(tmp_path / "run", **SCHEDULE, eval_pass_at_k=COUNTDOWN | {"num_problems": 40})
    metrics = trainer.evaluate()
    arguments = EvalArguments(
        MODEL,
        None,
        "countdown",
        4,
        "1,4",
        40,
        max_completion_length=12,
        backend="transformers",
        output_dir=str(tmp_path),
    )
    found = evaluate(arguments)["benchmarks"]["countdown"]["pass_at_k"]
    assert metrics["eval_pass@1"] == pytest.approx(found["1"]["value"], abs=1e-12) and 0 < metrics["eval_pass@1"] < 1
    assert metrics["eval_pass@4"] == pytest.approx(found["4"]["value"], abs=1e-12)
    assert metrics["eval_unjudged"] == 0


def test_it_measures_the_policy_of_now(tmp_path):
    trainer = demo_trainer(
        tmp_path, max_steps=2, learning_rate=0.3, **SCHEDULE, eval_on_start=True, eval_pass_at_k=COUNTDOWN
    )
    trainer.train()
    before, *_, after = logged(trainer, "eval_pass@4")
    assert before > 0.3 and after == 0  # a learning rate that breaks the model


def test_the_best_model_can_be_chosen_by_it(tmp_path):
    seen = []

    class Spy(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            seen.append(metrics)

    trainer = demo_trainer(
        tmp_path,
        **SCHEDULE | {"save_strategy": "steps", "save_steps": 1},
        eval_pass_at_k=COUNTDOWN,
        load_best_model_at_end=True,
        metric_for_best_model="pass@4",
        callbacks=[Spy()],
    )
    trainer.train()
    assert trainer.state.best_metric == max(logged(trainer, "eval_pass@4"))
    assert [entry["eval_pass@4"] for entry in seen] == logged(trainer, "eval_pass@4")


def test_a_figure_is_named_by_its_benchmark_where_there_are_several(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    settings = COUNTDOWN | {"benchmarks": f"countdown,{own}", "prompt_format": "plain"}
    metrics = demo_trainer(tmp_path, **SCHEDULE, eval_pass_at_k=settings).evaluate()
    assert {"eval_countdown_pass@1", "eval_own_pass@4", "eval_own_unjudged"} <= metrics.keys()


def test_another_evaluation_of_one_s_own_is_left_alone(tmp_path):
    trainer = build_trainer(tmp_path, **SCHEDULE, eval_pass_at_k=COUNTDOWN)
    metrics = trainer.evaluate(Dataset.from_dict({"prompt": ["a", "b"]}), metric_key_prefix="mine")
    assert "mine_loss" in metrics and not any("pass@" in key for key in metrics)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n": 4}, "needs `benchmarks`"),
        (COUNTDOWN | {"samples": 4}, "no setting 'samples'"),
        (COUNTDOWN | {"num_problem": 4}, "Did you mean 'num_problems'"),
        (COUNTDOWN | {"k": 8}, "`k` of `eval_pass_at_k` names 8"),
        (COUNTDOWN | {"k": [0]}, "`k` is '0'"),
        (COUNTDOWN | {"n": 0}, "`n` of `eval_pass_at_k` is 0"),
        (COUNTDOWN | {"n": True}, "`n` of `eval_pass_at_k` is True"),
        (COUNTDOWN | {"prompt_format": 5}, "`prompt_format` is '5'"),
        (COUNTDOWN | {"n": "many"}, "`n` of `eval_pass_at_k` is 'many'"),
        (COUNTDOWN | {"seed": -1}, "`seed` of `eval_pass_at_k` is -1"),
        (COUNTDOWN | {"prompt_format": "qwen-meth"}, "`prompt_format` is 'qwen-meth'"),
        (COUNTDOWN | {"benchmarks": ["countdown"]}, "`benchmarks` of `eval_pass_at_k`"),
    ],
    ids=str,
)
def test_a_mistake_is_named_before_anything_loads(settings, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        SAGEGRPOConfig(str(tmp_path), **FAST, **SCHEDULE, eval_pass_at_k=settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"eval_strategy": "no"}, "it would never be measured"),
        ({"repetition_penalty": 1.1}, "`repetition_penalty` is 1.1"),
        ({"generation_kwargs": {"num_beams": 2}}, "`generation_kwargs` is"),
        ({"use_vllm": True, "vllm_mode": "server"}, "`vllm_mode` is 'server'"),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}, "`vllm_enable_sleep_mode` is"),
        ({"max_completion_length": None}, "`max_completion_length` is None"),
        ({"ds3_gather_for_generation": False}, "`ds3_gather_for_generation` is False"),
    ],
    ids=str,
)
def test_a_run_that_it_cannot_follow_is_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        SAGEGRPOConfig(str(tmp_path), **(FAST | SCHEDULE | settings), eval_pass_at_k=COUNTDOWN)


def test_problems_without_a_way_to_put_them_are_refused(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    with pytest.raises(ValueError, match="no `prompt_format`"):
        demo_trainer(tmp_path, **SCHEDULE, eval_pass_at_k={"benchmarks": str(own)})


def test_a_completion_that_has_no_room_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="has 64 positions"):
        demo_trainer(tmp_path, **SCHEDULE, eval_pass_at_k=COUNTDOWN, max_completion_length=60)


def test_the_powers_of_two_are_measured_by_default():
    assert PassAtK("countdown", n=12).ks == [1, 2, 4, 8, 12] and PassAtK("countdown", k="2, 1").ks == [1, 2]


def test_settings_are_saved_with_the_model_as_they_were_given(tmp_path):
    args = SAGEGRPOConfig(str(tmp_path), **FAST, **SCHEDULE, eval_pass_at_k=json.dumps(COUNTDOWN))
    assert args.eval_pass_at_k == COUNTDOWN and json.loads(args.to_json_string())["eval_pass_at_k"] == COUNTDOWN


def test_a_recipe_s_prompt_format_is_taken_and_no_test_split_is_read(tmp_path, capsys):
    train, own, recipe = tmp_path / "train.jsonl", tmp_path / "own.jsonl", tmp_path / "recipe.yaml"
    row = json.dumps({"problem": "1+1?", "answer": "2"}) + "\n"
    train.write_text(8 * row)
    own.write_text(row)
    recipe.write_text(
        f"""
model_name_or_path: {GOLDEN}/model
dataset_name: {train}
prompt_format: r1
reward_funcs: [math]
max_completion_length: 4
per_device_train_batch_size: 4
num_generations: 4
max_steps: 1
eval_strategy: steps
eval_steps: 5
eval_pass_at_k:
  benchmarks: {own}
  n: 4
report_to: none
use_cpu: true
bf16: false
output_dir: {tmp_path}/run
"""
    )
    trainer = build_trainer_of_recipe(*make_parser().parse_run(["--config", str(recipe)]))
    assert trainer.monitor.settings.prompt_format == "r1"
    assert len(trainer.monitor.prompts[0][0]) > len(trainer.monitor.tokenizer("1+1?")["input_ids"])
    assert not trainer.eval_dataset
    described = describe_training(trainer, uses_vllm=False)["Evaluation"]
    assert described == ["pass@k of own, 1 x 4 completions, k = 1, 2, 4, every 5 steps"]


def test_groups_of_any_size_need_no_batch_size_of_an_evaluation_that_is_not_made(tmp_path):
    settings = {"num_generations": 16, "per_device_train_batch_size": 16}
    trainer = demo_trainer(
        tmp_path, **SCHEDULE | {"per_device_eval_batch_size": 8}, **settings, eval_pass_at_k=COUNTDOWN
    )
    assert "eval_pass@4" in trainer.evaluate()


def test_no_dataset_is_no_dataset_however_it_is_said_and_any_prefix_is_taken(tmp_path):
    args = SAGEGRPOConfig(str(tmp_path), **FAST | SCHEDULE | {"max_completion_length": 12}, eval_pass_at_k=COUNTDOWN)
    trainer = SAGEGRPOTrainer(MODEL, countdown_reward, args, make_countdown(32), None)
    assert {"test_pass@1", "test_pass@4"} <= trainer.evaluate(metric_key_prefix="test").keys()


def test_min_p_is_followed(tmp_path):
    rare, likely = (
        demo_trainer(tmp_path, **SCHEDULE, min_p=min_p, eval_pass_at_k=COUNTDOWN | {"num_problems": 40}).evaluate()
        for min_p in (None, 1.0)
    )
    # Only the likeliest token is left: all samples of a problem are one
    assert likely["eval_pass@1"] == likely["eval_pass@4"] and rare["eval_pass@1"] < rare["eval_pass@4"]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_process_has_its_share(processes, tmp_path):
    trainer = demo_trainer(tmp_path, **SCHEDULE, eval_pass_at_k=COUNTDOWN | {"num_problems": 40})
    sampled = []
    for index in range(processes):

        class Counted(TransformersBackend):
            def generate(self, requests, ended=None):
                sampled.append((index, len(requests)))  # noqa: B023
                return super().generate(requests, ended)

        accelerator = SimpleNamespace(
            process_index=index, num_processes=processes, device="cpu", reduce=lambda counts, reduction: counts
        )
        trainer.monitor.measure(Counted(trainer.model, trainer._tokenizer, trainer.monitor.sampling), 256, accelerator)
    counts = [sum(count for each, count in sampled if each == index) for index in range(processes)]
    assert (
        sum(counts) == 160 and max(counts) - min(counts) <= max(count for _, count in sampled) <= 160 / processes + 1
    )
