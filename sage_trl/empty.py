"""Models without weights, for a dry run: a config makes the model, on torch's meta device, which keeps shapes alone.

Inside [`empty_models`], a trainer is built as ever, by TRL and PEFT, and takes no more memory for a model of 32 B
parameters than for a small one. No engine that shards a model is started; `checks.zero_stage` still says what the
launcher set up.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

# What the launcher sets for engines that shard a model as they are built
ENGINES = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")


@contextmanager
def empty_models() -> Iterator[None]:
    """Within it `from_pretrained` reads no weights, and trainers leave models where they are and unsharded."""
    import transformers
    from transformers import PreTrainedModel, TrainingArguments

    with ExitStack() as stack:
        for owner, name, value in (
            (PreTrainedModel, "from_pretrained", classmethod(from_config)),
            (TrainingArguments, "place_model_on_device", False),
            (transformers.trainer, "Accelerator", plain_accelerator),
            (transformers.modeling_utils, "is_deepspeed_zero3_enabled", lambda: False),
        ):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


def from_config(
    cls: type["PreTrainedModel"],
    name: str,
    *,
    config: Any = None,
    dtype: Any = None,
    attn_implementation: str | None = None,
    quantization_config: Any = None,
    device_map: Any = None,
    **kwargs,
) -> "PreTrainedModel":
    """What `cls.from_pretrained` would return, without its weights. `device_map` is nothing that it could follow."""
    import torch
    from transformers import AutoConfig

    if config is None:
        config = AutoConfig.from_pretrained(name, **kwargs)
    config.name_or_path = name
    if dtype is None or dtype == "auto":
        dtype = config.dtype or torch.float32
    given = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with torch.device("meta"):
        model = cls._from_config(config, dtype=dtype, **given)
    if quantization_config is not None:
        config.quantization_config = quantization_config
        # By these TRL knows a quantized model
        model.is_loaded_in_4bit = quantization_config.load_in_4bit
        model.is_loaded_in_8bit = quantization_config.load_in_8bit
    return model


def plain_accelerator(**kwargs) -> "Accelerator":
    """An accelerator that neither shards models nor moves them."""
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType, patch_environment

    if PartialState().distributed_type == DistributedType.DEEPSPEED:
        AcceleratorState._reset_state(reset_partial_state=True)  # the process group stays
    with patch_environment(**dict.fromkeys(ENGINES, "false")):
        return Accelerator(**kwargs | {"deepspeed_plugin": None, "fsdp_plugin": None, "device_placement": False})


def missing_weights(name: str) -> list[str]:
    """What to say of a local model whose weights are not there or cut short. Of a name on the Hub nothing is said."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

    folder = Path(name)
    if not folder.is_dir():
        return []
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    file = next((folder / each for each in names if (folder / each).is_file()), None)
    if file is None:
        return [f"`model_name_or_path` is '{name}', which has no weights: none of {', '.join(names)}"]
    files = [file]
    if file.suffix == ".json":
        try:
            files = [folder / each for each in sorted({*json.loads(file.read_text())["weight_map"].values()})]
        except (json.JSONDecodeError, KeyError) as error:
            return [f"`model_name_or_path` is '{name}', whose {file.name} is damaged: {error!r}"]
    problems = []
    for file in files:
        if not file.is_file():
            problems.append(f"`model_name_or_path` is '{name}', which lacks {file.name} of its index")
        elif file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="pt"):  # reads the header, which knows how long the file is
                    pass
            except SafetensorError as error:
                problems.append(f"`model_name_or_path` is '{name}', whose {file.name} is damaged: {error}")
    return problems
