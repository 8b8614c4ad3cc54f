"""Trains a language model by GRPO or SAGE from a recipe.

    accelerate launch --config_file recipes/accelerate_configs/cpu.yaml \
        -m sage_trl.train --config recipes/countdown/sage_branch.yaml

A recipe is one YAML file; `--setting value` after it wins over what it says. Settings are those of
[`~sage_trl.arguments.SAGEScriptArguments`], [`SAGEGRPOConfig`] and [`~trl.ModelConfig`] (`--help` lists them all).
`sage-trl train` with the same arguments trains in one process.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trl import ModelConfig, get_peft_config, get_quantization_config

from .arguments import SAGEScriptArguments
from .config import SAGEGRPOConfig
from .data.load import load_task
from .dry_run import describe_training
from .launch import Command, load_dataset, prepare, splits_of
from .recipe import RecipeParser
from .rewards import REWARDS, resolve_reward

if TYPE_CHECKING:
    from datasets import Dataset

    from .trainer import SAGEGRPOTrainer


def make_parser(prog: str | None = None) -> RecipeParser:
    return RecipeParser(
        (SAGEScriptArguments, SAGEGRPOConfig, ModelConfig),
        prog=prog,
        usage="%(prog)s --config recipe.yaml [--setting value ...]",
        description="Trains a language model by GRPO or SAGE. `--config` names the recipe; every setting below is a "
        "key of it, too, and wins over it on the command line.",
    )


def build_trainer(
    script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig
) -> "SAGEGRPOTrainer":
    """
    Resolves what the settings name and builds the trainer. Raises on every setting that cannot be right.

    Args:
        script_args ([`~sage_trl.arguments.SAGEScriptArguments`]):
            Data and rewards.
        training_args ([`SAGEGRPOConfig`]):
            Everything else about the run.
        model_args ([`~trl.ModelConfig`]):
            Model, LoRA and quantization.

    Returns:
        [`SAGEGRPOTrainer`]: ready to train.
    """
    prepare(script_args, training_args, model_args)
    rewards = [resolve_reward(name) for name in script_args.reward_funcs]
    if training_args.pass_reward in script_args.reward_funcs:  # TRL calls a reward by its function's name
        training_args.pass_reward = rewards[script_args.reward_funcs.index(training_args.pass_reward)].__name__
    set_reward_limits(script_args)
    if training_args.eval_pass_at_k is not None and script_args.prompt_format is not None:
        training_args.eval_pass_at_k = {"prompt_format": script_args.prompt_format} | training_args.eval_pass_at_k
    arguments = (script_args, training_args, model_args)
    datasets = {split: load_split(*arguments, split) for split in splits_of(training_args)}

    from .trainer import SAGEGRPOTrainer

    return SAGEGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=rewards,
        args=training_args,
        train_dataset=datasets["train"],
        eval_dataset=datasets.get("test"),
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )


def load_split(
    script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig, split: str
) -> "Dataset":
    """The `"train"` or `"test"` problems of a run. The main process prints what became of a dataset's rows."""
    if script_args.task is not None:
        return load_task(script_args.task, script_args.task_kwargs, split)
    return load_dataset(
        script_args, training_args, model_args, split, unreadable=find_unreadable(script_args.reward_funcs)
    )


def uses_math(reward_funcs: list[str]) -> bool:
    return any(REWARDS.get(name, name).startswith("sage_trl.rewards.math:") for name in reward_funcs)


def find_unreadable(reward_funcs: list[str]) -> Callable[[list[str]], list[int]] | None:
    """Finds the answers that the math reward cannot read; `None` where a run does not use that reward."""
    if not uses_math(reward_funcs):
        return None
    from .rewards.math import unreadable

    return unreadable


def set_reward_limits(script_args: SAGEScriptArguments) -> None:
    """Gives the math reward the limits that the settings ask for."""
    if uses_math(script_args.reward_funcs):
        from .rewards.pool import Pool, set_shared_pool

        set_shared_pool(Pool(workers=script_args.reward_workers, timeout=script_args.reward_timeout))


COMMAND = Command("sage_trl.train", make_parser, build_trainer, describe_training)


def main(script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig) -> None:
    """Trains, and saves the model with its tokenizer to `output_dir`."""
    COMMAND.fit(build_trainer(script_args, training_args, model_args), script_args)


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Trains as the command line says. A mistake in the settings is one line and exit code 2."""
    COMMAND.run(argv, prog)


if __name__ == "__main__":
    run()
