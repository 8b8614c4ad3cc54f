"""An estimate of the memory that training takes on each device, from shapes alone. Bytes throughout.

The parts:

    weights        parameters x bytes of their type              / processes under ZeRO-3
    reference      the same again, for full fine-tuning with beta above 0
    gradients      trained parameters x bytes of their type      / processes under ZeRO-2 and 3
    optimizer      trained parameters x bytes of its states      / processes under ZeRO-2 and 3; Adam's two have the
                   type of the parameters, and DeepSpeed keeps both and the parameters themselves in float32
    activations    kept for the backward pass: with checkpointing the input of each layer, and one layer in full
    head           two of TRL's tiles of the logits, up to 4096 tokens x 32768 entries in float32, and its input
    buffers        copies of gradients on their way to other processes (DDP: all of them, ZeRO-2: one bucket), weights
                   that ZeRO-3 has gathered (embeddings and two layers), and autocast's copies of float32 weights
    engine         vLLM's own copy of the weights, in 16 bits
    kv cache       keys and values: with vLLM at least those of one completion at full length, else of all at once

Weights that are quantized take half a byte per parameter and 1/16 for the scales of 4 bits, 1/64 where these are
quantized again; or one byte for 8 bits. DeepSpeed holds weights and gradients in the type that it computes in.

The peak is that of the largest moment:

    generation              weights, reference, optimizer, engine, kv cache
    forward and backward    all but engine and kv cache
    optimizer step          weights, reference, gradients, optimizer

A vLLM engine that does not sleep while the model trains adds its own to every moment. What the device itself takes
(about half a GiB for CUDA) and what its allocator loses to fragments is not in it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HEAD_TILE = (4096, 32768)
# Bytes per trained parameter of optimizers other than Adam in full precision
OPTIMIZER_BYTES = {"adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2, "sgd": 0, "adafactor": 0.1}
# DeepSpeed's: a parameter and Adam's two states, in float32
MASTER_BYTES = 12
BUCKET = 500_000_000  # elements, DeepSpeed's default
MOMENTS = {
    "generation": ("weights", "reference", "optimizer", "engine", "kv cache"),
    "forward and backward": ("weights", "reference", "gradients", "optimizer", "activations", "head", "buffers"),
    "optimizer step": ("weights", "reference", "gradients", "optimizer"),
}


@dataclass(frozen=True)
class Shape:
    """
    What the estimate needs to know of a model.

    Args:
        parameters (`int`):
            Number of parameters, without an adapter's.
        weight_bytes (`float`):
            Bytes that all of them take.
        trained (`int`):
            Number of parameters that are trained.
        trained_bytes (`float`):
            Bytes that these take, and that their gradients will.
        has_adapter (`bool`):
            Whether those are an adapter's.
        layers, hidden, intermediate, kv_width, vocabulary (`int`):
            Layers, widths of a layer's input, of its MLP and of its keys (heads x size), and size of the vocabulary.
    """

    parameters: int
    weight_bytes: float
    trained: int
    trained_bytes: float
    has_adapter: bool
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int


def shape_of(model: "torch.nn.Module") -> Shape:
    """The shape of a causal language model, with or without a PEFT adapter."""
    from peft import PeftModel

    has_adapter = isinstance(model, PeftModel)
    config = (model.get_base_model() if has_adapter else model).config.get_text_config()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    weights = frozen if has_adapter else trained + frozen
    bytes_of = _bytes_per_parameter(model)
    settings = config.to_dict()  # GPT-2 has the width of its MLP under another name, or only in its code
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=sum(map(_size, weights)),
        weight_bytes=sum(_size(each) * bytes_of.get(each, each.element_size()) for each in weights),
        trained=sum(map(_size, trained)),
        trained_bytes=sum(_size(each) * each.element_size() for each in trained),
        has_adapter=has_adapter,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=settings.get("intermediate_size") or settings.get("n_inner") or 4 * config.hidden_size,
        kv_width=(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * head_dim,
        vocabulary=config.vocab_size,
    )


def _size(parameter: "torch.nn.Parameter") -> int:
    """Number of elements, of one that ZeRO-3 has partitioned, too."""
    return parameter.ds_numel if hasattr(parameter, "ds_numel") else parameter.numel()


def _bytes_per_parameter(model: "torch.nn.Module") -> dict["torch.nn.Parameter", float]:
    """What bitsandbytes will make of the layers of an empty model. Those of a real one are made already."""
    import torch

    config = getattr(model.config, "quantization_config", None)
    if config is None or isinstance(config, dict):  # a dict is that of a base which was quantized before
        return {}
    scales = (1 / 64 + 4 / (64 * 256)) if config.bnb_4bit_use_double_quant else 4 / 64
    size = 0.5 + scales if config.load_in_4bit else 1.0
    head = model.get_output_embeddings()
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer is not head]
    return {layer.weight: size for layer in layers if layer.weight.is_meta and not layer.weight.requires_grad}


def estimate(
    shape: Shape,
    rows: int,
    tokens: int,
    has_reference: bool = False,
    compute_bytes: int = 2,
    optimizer: str = "adamw_torch",
    checkpointing: bool = True,
    zero_stage: int = 0,
    processes: int = 1,
    deepspeed: bool = False,
    generated: int = 0,
    vllm_share: float | None = None,
    vllm_sleeps: bool = False,
) -> dict[str, float]:
    """
    Estimates the memory of one device.

    Args:
        shape ([`Shape`]):
            The model.
        rows (`int`):
            Sequences in one forward pass: the batch size per device.
        tokens (`int`):
            Tokens of the longest sequence, prompt and completion.
        has_reference (`bool`, *optional*, defaults to `False`):
            Whether there is a second model as reference.
        compute_bytes (`int`, *optional*, defaults to `2`):
            Bytes of an activation: 2 for bfloat16, 4 for float32.
        optimizer (`str`, *optional*, defaults to `"adamw_torch"`):
            Name of the optimizer in `TrainingArguments`.
        checkpointing (`bool`, *optional*, defaults to `True`):
            Whether activations are computed again in the backward pass.
        zero_stage (`int`, *optional*, defaults to `0`):
            Stage of ZeRO. FSDP that shards everything is 3.
        processes (`int`, *optional*, defaults to `1`):
            Devices that share.
        deepspeed (`bool`, *optional*, defaults to `False`):
            Whether it is DeepSpeed that shards, which holds weights in the type of the activations.
        generated (`int`, *optional*, defaults to `0`):
            Completions that a device generates at once without vLLM.
        vllm_share (`float`, *optional*):
            Part of the device that a colocated vLLM takes, which is not known here in bytes. Given, the least that it
            needs is part of the estimate.
        vllm_sleeps (`bool`, *optional*, defaults to `False`):
            Whether it gives that back while the model trains.

    Returns:
        `dict[str, float]`: bytes by part, and the `"peak"`.
    """
    weights_over, states_over = (processes if zero_stage >= stage else 1 for stage in (3, 2))
    # Keys and values are repeated for every head. A norm that is trained keeps one tensor more
    per_layer = (9 if shape.has_adapter else 11) * shape.hidden + 4 * shape.intermediate
    kept = shape.layers * shape.hidden + per_layer if checkpointing else shape.layers * per_layer
    weights, trained = shape.weight_bytes, shape.trained_bytes
    if deepspeed:
        weights = min(weights, shape.parameters * compute_bytes)
        trained = min(trained, shape.trained * compute_bytes)
    states = OPTIMIZER_BYTES[optimizer] * shape.trained if optimizer in OPTIMIZER_BYTES else 2 * trained
    tile = 4 * min(HEAD_TILE[0], rows * tokens) * min(HEAD_TILE[1], shape.vocabulary)
    per_token = 2 * shape.layers * shape.kv_width * (compute_bytes if vllm_share is None else 2)
    parts = {
        "weights": (weights + (trained if shape.has_adapter else 0)) / weights_over,
        "reference": weights / weights_over if has_reference else 0.0,
        "gradients": trained / states_over,
        "optimizer": (MASTER_BYTES * shape.trained if deepspeed else states) / states_over,
        "activations": float(rows * tokens * kept * compute_bytes),
        "head": 2.0 * tile + rows * tokens * shape.hidden * 4,
        "buffers": _buffers(shape, trained, compute_bytes, zero_stage, processes),
        "engine": 0.0 if vllm_share is None else 2.0 * shape.parameters,
        "kv cache": float(tokens * per_token * (generated if vllm_share is None else 1)),
    }
    return parts | {"peak": max(moments(parts, vllm_share is not None and not vllm_sleeps).values())}


def _buffers(shape: Shape, trained: float, compute_bytes: int, zero_stage: int, processes: int) -> float:
    size = 0.0
    if trained > shape.trained * compute_bytes:
        size += shape.trained * compute_bytes  # autocast's
    if processes > 1 and zero_stage == 0:
        size += trained
    if zero_stage == 2:
        size += min(BUCKET, shape.trained) * trained / shape.trained
    if zero_stage == 3:
        attention = 2 * shape.hidden**2 + 2 * shape.hidden * shape.kv_width
        layer = attention + 3 * shape.hidden * shape.intermediate
        size += compute_bytes * (shape.vocabulary * shape.hidden + 2 * layer)
    return size


def moments(parts: dict[str, float], engine_stays: bool) -> dict[str, float]:
    """Bytes at each moment of a step, from what [`estimate`] gives."""
    stays = ("engine", "kv cache") if engine_stays else ()
    return {name: sum(parts[part] for part in {*needed, *stays}) for name, needed in MOMENTS.items()}
