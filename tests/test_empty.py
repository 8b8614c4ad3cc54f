import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import GOLDEN, build_trainer
from transformers import AutoModelForCausalLM

from sage_trl import train
from sage_trl.empty import empty_models, missing_weights

MODEL = GOLDEN / "model"
RECIPE = Path(__file__).parents[1] / "recipes" / "countdown" / "grpo.yaml"


def outline(model: torch.nn.Module) -> dict[str, tuple]:
    return {name: (value.shape, value.dtype) for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", [None, "auto", torch.bfloat16])
def test_an_empty_model_has_the_shapes_and_types_of_the_real_one(dtype):
    with empty_models():
        empty = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype)
    real = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype)  # outside, weights are read again
    assert outline(empty) == outline(real) and type(empty) is type(real)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert not any(parameter.is_meta for parameter in real.parameters())


def test_an_adapter_goes_onto_it():
    with empty_models():
        base = AutoModelForCausalLM.from_pretrained(MODEL)
        adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert trained and all(parameter.is_meta for parameter in trained)


def test_a_trainer_has_its_second_model_too(tmp_path):
    with empty_models():
        trainer = build_trainer(tmp_path, guide="branch")
    for model in (trainer.model, trainer.ref_model):
        assert all(parameter.is_meta for parameter in model.parameters())
    real = build_trainer(tmp_path, guide="branch")
    assert outline(trainer.model) == outline(real.model) and outline(trainer.ref_model) == outline(real.ref_model)


def copy_model(folder: Path) -> Path:
    return Path(shutil.copytree(MODEL, folder / "model"))


def test_weights_that_are_there_are_not_spoken_of(tmp_path):
    assert missing_weights(str(MODEL)) == missing_weights("Qwen/Qwen2.5-Math-7B") == []


def test_weights_that_are_missing_or_cut_short_are(tmp_path):
    folder = copy_model(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    [problem] = missing_weights(str(folder))
    assert "whose model.safetensors is damaged" in problem
    weights.unlink()
    [problem] = missing_weights(str(folder))
    assert "has no weights" in problem
    for content in ("{}", '{"weight'):
        (folder / "model.safetensors.index.json").write_text(content)
        assert ["whose model.safetensors.index.json is damaged" in each for each in missing_weights(str(folder))] == [
            True
        ]
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert ["model-1.safetensors" in problem for problem in missing_weights(str(folder))] == [True, False]


def test_a_dry_run_says_that_there_are_no_weights(tmp_path, capsys):
    folder = copy_model(tmp_path)
    (folder / "model.safetensors").unlink()
    train.run(["--config", str(RECIPE), "--model_name_or_path", str(folder), "--dry_run"])
    assert f"Missing on this machine\n  `model_name_or_path` is '{folder}', which has no weights" in (
        capsys.readouterr().out
    )


UNDER_DEEPSPEED = """
import sys, deepspeed
from sage_trl import train
deepspeed.initialize = deepspeed.init_distributed = deepspeed.zero.Init = None
train.run(sys.argv[1:])
"""


def test_a_dry_run_under_zero_3_starts_no_deepspeed(monkeypatch):
    pytest.importorskip("deepspeed")
    for name, value in {
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", UNDER_DEEPSPEED, "--config", str(RECIPE), "--dry_run"]
    done = subprocess.run(command, cwd=RECIPE.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ZeRO-3 over 1 process;" in done.stdout
