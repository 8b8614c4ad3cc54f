import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import GOLDEN
from transformers import AutoModelForCausalLM

from sage_trl.memory import estimate, shape_of


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(GOLDEN / "model", dtype=torch.float32)


def test_a_shape_counts_what_is_there(model):
    shape = shape_of(model)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert (shape.parameters, shape.weight_bytes, shape.trained) == (count, 4 * count, count)
    assert not shape.has_adapter


def test_an_adapter_is_what_is_trained():
    base = AutoModelForCausalLM.from_pretrained(GOLDEN / "model", dtype=torch.float32)
    count = sum(parameter.numel() for parameter in base.parameters())
    shape = shape_of(get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")))
    assert shape.parameters == count and 0 < shape.trained < count
    parts = estimate(shape, rows=1, tokens=8)
    assert parts["gradients"] == 4 * shape.trained and parts["optimizer"] == 8 * shape.trained
    assert parts["weights"] == 4 * (count + shape.trained) and parts["reference"] == 0


def test_zero_shares_what_its_stage_says(model):
    shape = shape_of(model)
    alone = estimate(shape, rows=2, tokens=8, has_reference=True)
    second, third = (
        estimate(shape, rows=2, tokens=8, has_reference=True, zero_stage=stage, processes=4) for stage in (2, 3)
    )
    for part in ("gradients", "optimizer"):
        assert alone[part] == 4 * second[part] == 4 * third[part]
    for part in ("weights", "reference"):
        assert alone[part] == second[part] == 4 * third[part]
    for part in ("activations", "head"):
        assert alone[part] == second[part] == third[part]


def test_activations_grow_with_the_batch_and_shrink_with_checkpointing(model):
    shape = shape_of(model)
    one, two = (estimate(shape, rows=rows, tokens=64, checkpointing=False)["activations"] for rows in (1, 2))
    assert two == 2 * one
    assert estimate(shape, rows=1, tokens=64)["activations"] < one


def test_a_sleeping_engine_does_not_add_to_the_peak(model):
    shape = shape_of(model)
    awake, asleep = (
        estimate(shape, rows=8, tokens=64, vllm_share=0.3, vllm_sleeps=sleeps) for sleeps in (False, True)
    )
    without = estimate(shape, rows=8, tokens=64)
    assert awake["peak"] == without["peak"] + awake["generation"]
    assert asleep["peak"] == max(
        without["peak"], sum(without[part] for part in ("weights", "optimizer")) + awake["generation"]
    )


def test_adam_in_eight_bits_takes_a_quarter(model):
    full, eight = (
        estimate(shape_of(model), rows=1, tokens=8, optimizer=name)["optimizer"]
        for name in ("adamw_torch", "adamw_8bit")
    )
    assert full == 4 * eight
