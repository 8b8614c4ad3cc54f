"""Trains a language model by GRPO or SAGE from a recipe.

    accelerate launch --config_file recipes/accelerate_configs/cpu.yaml \
        -m sage_trl.train --config recipes/countdown/sage_branch.yaml

A recipe is one YAML file; `--setting value` after it wins over what it says. Settings are those of
[`SAGEScriptArguments`] below, [`SAGEGRPOConfig`] and [`~trl.ModelConfig`] (`--help` lists them all). `sage-trl train`
with the same arguments trains in one process.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trl import ModelConfig, get_peft_config, get_quantization_config

from .config import SAGEGRPOConfig
from .data.load import check_problems, load_problems, load_task, parse_mapping
from .recipe import RecipeParser
from .rewards import resolve_reward

if TYPE_CHECKING:
    from datasets import Dataset

    from .trainer import SAGEGRPOTrainer


@dataclass
class SAGEScriptArguments:
    """
    Data and rewards of a run.

    Args:
        task (`str`, *optional*):
            Built-in task that generates the problems: `"countdown"`. Give this or `dataset_name`.
        task_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the task's generator, such as `num_rows` and `max_numbers`.
        dataset_name (`str`, *optional*):
            Dataset with the columns `prompt` (text or messages) and `answer`: a .json, .jsonl, .csv or .parquet file,
            a folder that `save_to_disk` wrote, or a Hub id.
        dataset_config (`str`, *optional*):
            Configuration of a Hub dataset.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        dataset_test_split (`str`, *optional*, defaults to `"test"`):
            Split to evaluate on, where `eval_strategy` asks for evaluation.
        reward_funcs (`list[str]`, *optional*):
            Reward functions: built-in names, or import paths `package.module:function` or `path/to/file.py:function`.
            `reward_weights` weighs them.
    """

    task: str | None = field(
        default=None, metadata={"help": "Built-in task that generates the problems: 'countdown'. Or `dataset_name`."}
    )
    task_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Arguments of the task's generator: a mapping in YAML, JSON on the command line."},
    )
    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Dataset with the columns `prompt` and `answer`: a .json, .jsonl, .csv or .parquet file, a folder "
            "that `save_to_disk` wrote, or a Hub id."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(
        default="test", metadata={"help": "Split to evaluate on, if `eval_strategy` is set."}
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions: built-in names, or import paths 'package.module:function' or "
            "'path/to/file.py:function'. `reward_weights` weighs them."
        },
    )

    def __post_init__(self):
        self.task_kwargs = parse_mapping(self.task_kwargs, "task_kwargs")
        if (self.task is None) == (self.dataset_name is None):
            raise ValueError(
                f"`task` is {self.task!r} and `dataset_name` is {self.dataset_name!r}; give exactly one of them."
            )
        if isinstance(self.reward_funcs, str):  # one name without a dash in YAML
            self.reward_funcs = [self.reward_funcs]
        if not self.reward_funcs:
            raise ValueError("`reward_funcs` is empty; name at least one reward function, such as 'countdown'.")


def make_parser(prog: str | None = None) -> RecipeParser:
    return RecipeParser(
        (SAGEScriptArguments, SAGEGRPOConfig, ModelConfig),
        prog=prog,
        usage="%(prog)s --config recipe.yaml [--setting value ...]",
    )


def main(script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig) -> None:
    """
    Trains, and saves the model with its tokenizer to `output_dir`.

    Args:
        script_args ([`SAGEScriptArguments`]):
            Data and rewards.
        training_args ([`SAGEGRPOConfig`]):
            Everything else about the run.
        model_args ([`~trl.ModelConfig`]):
            Model, LoRA and quantization.
    """
    trainer = build_trainer(script_args, training_args, model_args)
    fit(trainer, training_args, script_args.dataset_name)


def build_trainer(
    script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig
) -> "SAGEGRPOTrainer":
    """Resolves what the settings name and builds the trainer. Raises on every setting that cannot be right."""
    check_extras(training_args, model_args)
    if model_args.model_name_or_path is None:
        raise ValueError("`model_name_or_path` is not set; give a Hub id or a local folder.")
    rewards = [resolve_reward(name) for name in script_args.reward_funcs]
    training_args.model_init_kwargs = {
        **model_init_kwargs(training_args, model_args),
        **parse_mapping(training_args.model_init_kwargs, "model_init_kwargs"),
    }
    evaluates = training_args.eval_strategy != "no"

    from transformers import ProgressCallback

    from .progress import SAGEProgressCallback
    from .trainer import SAGEGRPOTrainer

    trainer = SAGEGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=rewards,
        args=training_args,
        train_dataset=load_split(script_args, "train"),
        eval_dataset=load_split(script_args, "test") if evaluates else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    if not training_args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(SAGEProgressCallback)
    return trainer


def fit(trainer: "SAGEGRPOTrainer", training_args: SAGEGRPOConfig, dataset_name: str | None) -> None:
    """Trains, saves, pushes if asked to, and ends the trackers and the process group."""
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    trainer.accelerator.print(f"Model saved to {training_args.output_dir}")
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=dataset_name)
        trainer.accelerator.print(f"Model pushed to https://huggingface.co/{trainer.hub_model_id}")
    trainer.end()


def load_split(script_args: SAGEScriptArguments, split: str) -> "Dataset":
    """The `"train"` or `"test"` problems of a run."""
    if script_args.task is not None:
        return check_problems(load_task(script_args.task, script_args.task_kwargs, split), script_args.task)
    setting = f"dataset_{split}_split"
    name = script_args.dataset_train_split if split == "train" else script_args.dataset_test_split
    return load_problems(script_args.dataset_name, script_args.dataset_config, name, setting)


def model_init_kwargs(training_args: SAGEGRPOConfig, model_args: ModelConfig) -> dict[str, Any]:
    """What the user set about loading the model. The rest is left to `from_pretrained`."""
    kwargs = {
        "revision": model_args.model_revision if model_args.model_revision != "main" else None,
        "trust_remote_code": training_args.trust_remote_code or None,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    return {name: value for name, value in kwargs.items() if value is not None}


def check_extras(training_args: SAGEGRPOConfig, model_args: ModelConfig) -> None:
    """Raises if a setting needs an optional package that is not installed."""
    needs = [
        ("load_in_4bit", model_args.load_in_4bit, "bitsandbytes", "quantization"),
        ("load_in_8bit", model_args.load_in_8bit, "bitsandbytes", "quantization"),
        ("use_vllm", training_args.use_vllm, "vllm", "vllm"),
        ("deepspeed", training_args.deepspeed is not None, "deepspeed", "deepspeed"),
    ]
    for setting, is_set, package, extra in needs:
        if is_set and importlib.util.find_spec(package) is None:
            raise ImportError(
                f"`{setting}` needs the package '{package}', which is not installed: pip install 'sage-trl[{extra}]'"
            )


def run(argv: list[str] | None = None, prog: str = "python -m sage_trl.train") -> None:
    """The command: parse, build, train. A mistake in the settings is one line and exit code 2."""
    with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
        arguments = make_parser(prog).parse_run(sys.argv[1:] if argv is None else argv)
    with mistakes_as_one_line(ValueError, ImportError, OSError):
        trainer = build_trainer(*arguments)
    script_args, training_args, _ = arguments
    fit(trainer, training_args, script_args.dataset_name)


@contextmanager
def mistakes_as_one_line(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            print(f"sage-trl: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run()
