"""Trains a language model by GRPO or SAGE from a recipe.

    accelerate launch --config_file recipes/accelerate_configs/cpu.yaml \
        -m sage_trl.train --config recipes/countdown/sage_branch.yaml

A recipe is one YAML file; `--setting value` after it wins over what it says. Settings are those of
[`~sage_trl.arguments.SAGEScriptArguments`], [`SAGEGRPOConfig`] and [`~trl.ModelConfig`] (`--help` lists them all).
`sage-trl train` with the same arguments trains in one process.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from trl import ModelConfig, get_peft_config, get_quantization_config

from .arguments import SAGEScriptArguments
from .checkpoints import resolve_resume
from .config import SAGEGRPOConfig
from .data.load import load_task
from .launch import (
    RecordCallback,
    check_model,
    check_processes,
    hide_hub_token,
    load_dataset,
    missing_extras,
    mistakes_as_one_line,
    model_init_kwargs,
    quiet_dependencies,
)
from .recipe import RecipeParser, parse_mapping, recipe_text
from .rewards import REWARDS, resolve_reward

if TYPE_CHECKING:
    from datasets import Dataset

    from .trainer import SAGEGRPOTrainer

MODULE = "sage_trl.train"


def make_parser(prog: str | None = None) -> RecipeParser:
    return RecipeParser(
        (SAGEScriptArguments, SAGEGRPOConfig, ModelConfig),
        prog=prog,
        usage="%(prog)s --config recipe.yaml [--setting value ...]",
        description="Trains a language model by GRPO or SAGE. Every setting below is a key of the recipe, too.",
    )


def main(script_args: SAGEScriptArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig) -> None:
    """
    Trains, and saves the model with its tokenizer to `output_dir`.

    Args:
        script_args ([`~sage_trl.arguments.SAGEScriptArguments`]):
            Data and rewards.
        training_args ([`SAGEGRPOConfig`]):
            Everything else about the run.
        model_args ([`~trl.ModelConfig`]):
            Model, LoRA and quantization.
    """
    trainer = build_trainer(script_args, training_args, model_args)
    fit(trainer, training_args, script_args.dataset_name)


def build_trainer(
    script_args: SAGEScriptArguments,
    training_args: SAGEGRPOConfig,
    model_args: ModelConfig,
    recipe: str = "",
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
        recipe (`str`, *optional*):
            The recipe's text, saved beside the model.

    Returns:
        [`SAGEGRPOTrainer`]: ready to train.
    """
    check_model(model_args)
    check_processes(training_args)
    missing = missing_extras(training_args, model_args)
    if missing and not script_args.dry_run:
        raise ImportError(" ".join(missing))
    training_args.resume_from_checkpoint = resolve_resume(
        training_args.resume_from_checkpoint, training_args.output_dir
    )
    hide_hub_token(training_args)
    rewards = [resolve_reward(name) for name in script_args.reward_funcs]
    if training_args.pass_reward in script_args.reward_funcs:  # TRL calls a reward by its function's name
        training_args.pass_reward = rewards[script_args.reward_funcs.index(training_args.pass_reward)].__name__
    training_args.model_init_kwargs = {
        **model_init_kwargs(training_args, model_args),
        **parse_mapping(training_args.model_init_kwargs, "model_init_kwargs"),
    }
    set_reward_limits(script_args)
    splits = ("train", "test") if training_args.eval_strategy != "no" else ("train",)
    datasets = {split: load_split(script_args, training_args, model_args, split) for split in splits}

    from transformers import ProgressCallback

    from .progress import SAGEProgressCallback
    from .trainer import SAGEGRPOTrainer

    trainer = SAGEGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=rewards,
        args=training_args,
        train_dataset=datasets["train"],
        eval_dataset=datasets.get("test"),
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    trainer.add_callback(RecordCallback(script_args.prompt_format, recipe))
    if not training_args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(SAGEProgressCallback)
    return trainer


def fit(trainer: "SAGEGRPOTrainer", training_args: SAGEGRPOConfig, dataset_name: str | None) -> None:
    """Trains, saves, pushes if asked to, and ends the trackers and the process group."""
    if training_args.resume_from_checkpoint is not None:
        trainer.accelerator.print(f"Resuming from {training_args.resume_from_checkpoint}")
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    trainer.save_state()
    trainer.create_model_card(dataset_name=dataset_name)
    trainer.accelerator.print(f"Model saved to {training_args.output_dir}")
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=dataset_name)
        trainer.accelerator.print(f"Model pushed to https://huggingface.co/{trainer.hub_model_id}")
    trainer.end()


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


def run(argv: list[str] | None = None, prog: str = f"python -m {MODULE}") -> None:
    """The command: parse, build, train. A mistake in the settings is one line and exit code 2."""
    quiet_dependencies()
    with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
        parser = make_parser(prog)
        arguments = parser.parse_run(sys.argv[1:] if argv is None else argv)
    script_args, training_args, _ = arguments
    recipe = recipe_text(arguments, parser.given, MODULE)
    with mistakes_as_one_line(ValueError, ImportError, OSError):
        if script_args.dry_run:
            from .dry_run import try_training

            try_training(*arguments)
            return
        trainer = build_trainer(*arguments, recipe=recipe)
    fit(trainer, training_args, script_args.dataset_name)


if __name__ == "__main__":
    run()
