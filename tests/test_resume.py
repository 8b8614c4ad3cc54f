"""A resumed run repeats an uninterrupted one to the bit: weights, noise, data order and metrics."""

import json

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support import assert_same_bits, build_trainer, weights

LORA = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}
RUN = {"guide": "token", "max_steps": 6, "save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-3}
TIMES = ("step_time", "runtime", "per_second", "train_loss")  # what a clock makes; the last counts resumed steps only

KINDS = {
    "full": {},
    "lora": LORA,
    "accumulation": {"gradient_accumulation_steps": 2},
    "between generations": {"steps_per_generation": 4},
    "between iterations": {"num_iterations": 2},
    "between both, accumulated": {"steps_per_generation": 2, "num_iterations": 4, "gradient_accumulation_steps": 2},
    "between logs": {"logging_steps": 2},
    "synced reference": {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5},
    "second epoch": {"max_steps": 10, "save_steps": 7},
    "sequence": {"anchor": "sequence", "steps_per_generation": 4},
    "sequence, lora, iterations": {"anchor": "sequence", "num_iterations": 2, **LORA},
    "novelty": {"guide": "novelty", "steps_per_generation": 4},
    "sequence, novelty and token": {"anchor": "sequence", "guide": ["token", "novelty"], "steps_per_generation": 4},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
}


def logged(trainer):
    return [
        {name: value for name, value in entry.items() if not any(time in name for time in TIMES)}
        for entry in trainer.state.log_history
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_is_uninterrupted(kind, tmp_path):
    settings = RUN | KINDS[kind]
    if "eval_strategy" in settings:
        settings["eval_dataset"] = Dataset.from_dict({"prompt": ["a", "b"]})
    whole = build_trainer(tmp_path, **settings)
    whole.train()
    torch.manual_seed(1234)  # whatever a new process has drawn before
    resumed = build_trainer(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{settings['save_steps']}"))
    assert_same_bits(weights(whole.model), weights(resumed.model))
    assert json.dumps(logged(whole), sort_keys=True) == json.dumps(logged(resumed), sort_keys=True)


@pytest.mark.parametrize(
    "change", [{"per_device_train_batch_size": 8}, {"steps_per_generation": 2}, {"num_generations": 4}], ids=str
)
def test_completions_of_another_batch_layout_are_not_used(change, tmp_path, caplog):
    settings = RUN | {"steps_per_generation": 4, "max_steps": 4}
    build_trainer(tmp_path, **settings).train()
    resumed = build_trainer(tmp_path, **(settings | change))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert next(iter(change)) in caplog.text and "completions are generated anew" in caplog.text


def test_a_synced_reference_is_restored_whatever_the_batch_layout(tmp_path):
    settings = RUN | KINDS["synced reference"]
    trainer = build_trainer(tmp_path, **settings)
    trainer.train()
    saved = torch.load(tmp_path / "checkpoint-3" / "sage_reference.pt", weights_only=True)
    resumed = build_trainer(tmp_path, **(settings | {"per_device_train_batch_size": 8}))
    assert any(not torch.equal(saved[name], value) for name, value in weights(resumed.ref_model).items())
    resumed._load_rng_state(str(tmp_path / "checkpoint-3"))
    assert_same_bits(saved, weights(resumed.ref_model))


def test_a_checkpoint_of_another_trainer_says_that_it_generates_anew(tmp_path, caplog):
    settings = RUN | {"max_steps": 4, "save_steps": 2}
    build_trainer(tmp_path, **settings).train()
    (tmp_path / "checkpoint-2" / "sage_state_0.pt").unlink()
    resumed = build_trainer(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "completions are generated anew" in caplog.text and resumed.state.global_step == 4
