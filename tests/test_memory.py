import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import GOLDEN
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from sage_trl.empty import empty_models
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


def test_a_parameter_that_zero_3_partitioned_counts_whole():
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / "model", dtype=torch.float32)
    whole = shape_of(model)
    for parameter in model.parameters():  # as DeepSpeed leaves them
        parameter.ds_numel = parameter.numel()
        parameter.data = torch.empty(0)
    assert shape_of(model) == whole


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
    engine = awake["engine"] + awake["kv cache"]
    assert engine == 2 * shape.parameters + 64 * 2 * shape.layers * shape.kv_width * 2
    assert awake["peak"] == without["peak"] + engine
    assert asleep["peak"] == max(without["peak"], without["weights"] + without["optimizer"] + engine)


def test_the_peak_is_at_generation_where_that_is_largest(model):
    shape = shape_of(model)
    parts = estimate(shape, rows=1, tokens=1000, generated=5000, compute_bytes=4)
    assert parts["kv cache"] == 5000 * 1000 * 2 * shape.layers * shape.kv_width * 4
    assert parts["peak"] == parts["weights"] + parts["optimizer"] + parts["kv cache"]


def test_deepspeed_takes_sixteen_bytes_per_parameter(model):
    shape = shape_of(model)  # in float32
    parts = estimate(shape, rows=1, tokens=8, zero_stage=2, deepspeed=True)
    states = [parts[part] / shape.parameters for part in ("weights", "gradients", "optimizer")]
    assert states == [2, 2, 12]
    assert parts["buffers"] == 2 * shape.parameters


@pytest.mark.parametrize(("settings", "size"), [({}, 0.5625), ({"bnb_4bit_use_double_quant": True}, 0.51587)])
def test_four_bits_are_for_the_layers_and_not_for_the_embeddings(settings, size):
    quantization = BitsAndBytesConfig(load_in_4bit=True, **settings)
    with empty_models():
        base = AutoModelForCausalLM.from_pretrained(
            GOLDEN / "model", dtype=torch.bfloat16, quantization_config=quantization
        )
        model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    head = base.get_output_embeddings().weight
    layers = sum(
        module.weight.numel()
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and "lora" not in name and module.weight is not head
    )
    shape = shape_of(model)
    assert shape.weight_bytes == pytest.approx(2 * (shape.parameters - layers) + size * layers, rel=1e-4)


def test_a_base_without_a_width_of_its_mlp_and_one_that_was_quantized_before():
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    assert shape_of(model).intermediate == 128
    model.config.quantization_config = {"quant_method": "fp8"}
    assert shape_of(model).weight_bytes == 4 * shape_of(model).parameters


def test_adam_in_eight_bits_takes_a_quarter(model):
    full, eight = (
        estimate(shape_of(model), rows=1, tokens=8, optimizer=name)["optimizer"]
        for name in ("adamw_torch", "adamw_8bit")
    )
    assert full == 4 * eight
