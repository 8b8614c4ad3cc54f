"""An estimate of the memory that training takes on each device, from shapes alone. Bytes throughout.

    weights        parameters x bytes of their type              / processes under ZeRO-3
    reference      the same again, for full fine-tuning with beta above 0
    gradients      trained parameters x bytes of their type      / processes under ZeRO-2 and 3
    optimizer      trained parameters x bytes of its two states  / processes under ZeRO-2 and 3
    activations    kept for the backward pass: with checkpointing the input of each layer, and one layer in full
    head           two of TRL's tiles of the logits, 4096 tokens x 32768 entries in float32, and the head's input
    generation     vLLM's own copy of the weights and its KV cache, at least for one completion at full length

A sleeping vLLM engine gives its memory back while the model trains, so that the peak is the larger of the two.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HEAD_TILE = 4096 * 32768 * 4
# Bytes per trained parameter of the two states of Adam
OPTIMIZER_BYTES = {"adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2, "sgd": 0, "adafactor": 0.1}
ADAM_BYTES = 8


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
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in weights),
        weight_bytes=sum(parameter.numel() * parameter.element_size() for parameter in weights),
        trained=sum(parameter.numel() for parameter in trained),
        trained_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        has_adapter=has_adapter,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        kv_width=(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * head_dim,
        vocabulary=config.vocab_size,
    )


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
        vllm_share (`float`, *optional*):
            Part of the device that a colocated vLLM takes, which is not known here in bytes. Given, the least that it
            needs is part of the estimate.
        vllm_sleeps (`bool`, *optional*, defaults to `False`):
            Whether it gives that back while the model trains.

    Returns:
        `dict[str, float]`: bytes by part, and the `"peak"`.
    """
    weights_over, states_over = (processes if zero_stage >= stage else 1 for stage in (3, 2))
    per_layer = 8 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate
    kept = shape.layers * shape.hidden + per_layer if checkpointing else shape.layers * per_layer
    parts = {
        "weights": (shape.weight_bytes + (shape.trained_bytes if shape.has_adapter else 0)) / weights_over,
        "reference": shape.weight_bytes / weights_over if has_reference else 0.0,
        "gradients": shape.trained_bytes / states_over,
        "optimizer": shape.trained * OPTIMIZER_BYTES.get(optimizer, ADAM_BYTES) / states_over,
        "activations": float(rows * tokens * kept * compute_bytes),
        "head": 2.0 * min(HEAD_TILE, rows * tokens * shape.vocabulary * 4) + rows * tokens * shape.hidden * 4,
    }
    training = sum(parts.values())
    if vllm_share is None:
        return parts | {"peak": training}
    parts["generation"] = shape.parameters * 2 + tokens * 2 * shape.layers * shape.kv_width * 2.0
    resident = parts["weights"] + parts["reference"] + parts["optimizer"]
    peak = max(training, resident + parts["generation"]) if vllm_sleeps else training + parts["generation"]
    return parts | {"peak": peak}
