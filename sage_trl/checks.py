"""What can be said of a run's settings before anything heavy loads."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import TrainingArguments
    from trl import ModelConfig

# Trackers that transformers knows by the name of their package
TRACKERS = ("wandb", "trackio", "mlflow", "swanlab", "comet_ml", "clearml")


def is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def uses_fsdp() -> bool:
    """Whether the launcher set up FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def zero_stage() -> int:
    """Stage of ZeRO that the launcher set up: 3 for FSDP, 0 for none."""
    if uses_fsdp():
        return 3
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    return 0


def check_processes(training_args: "TrainingArguments") -> None:
    """Raises if a launcher started several processes that each take themselves for the only one."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != training_args.world_size:
        raise ValueError(
            f"{launched} processes were launched, but each would train alone: this machine has no accelerator for "
            "them. Set `use_cpu` to true to train on the CPU in several processes."
        )


def check_model(name: str | None, setting: str = "model_name_or_path") -> None:
    """Raises if no model is named, or a name that can only be a folder is none."""
    if name is None:
        raise ValueError(f"`{setting}` is not set; give a Hub id or a local folder.")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not Path(name).is_dir():
        raise FileNotFoundError(f"`{setting}` is '{name}', and there is no such folder.")


def missing_extras(training_args: "TrainingArguments", model_args: "ModelConfig") -> list[str]:
    """What to say of each setting that needs an optional package which is not installed."""
    optimizer = str(getattr(training_args.optim, "value", training_args.optim))
    eight_bit = "8bit" in optimizer or "paged" in optimizer or "bnb" in optimizer
    needs = [
        ("load_in_4bit", model_args.load_in_4bit, "bitsandbytes", "quantization"),
        ("load_in_8bit", model_args.load_in_8bit, "bitsandbytes", "quantization"),
        (f"optim: {optimizer}", eight_bit, "bitsandbytes", "quantization"),
        ("use_vllm", getattr(training_args, "use_vllm", False), "vllm", "vllm"),
        ("deepspeed", training_args.deepspeed is not None, "deepspeed", "deepspeed"),
    ]
    missing = [
        f"`{setting}` needs the package '{package}', which is not installed: pip install 'sage-trl[{extra}]'"
        for setting, is_set, package, extra in needs
        if is_set and importlib.util.find_spec(package) is None
    ]
    return missing + [
        f"`report_to` names '{name}', whose package is not installed: pip install {name}"
        for name in TRACKERS
        if name in training_args.report_to and importlib.util.find_spec(name) is None
    ]
