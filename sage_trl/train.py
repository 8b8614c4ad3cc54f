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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from .config import SAGEGRPOConfig
from .data.load import ANSWER_COLUMNS, PROBLEM_COLUMNS, load_rows, load_task
from .data.prompts import resolve_prompt_format, save_prompt_format
from .data.training import ON_BAD_ROWS, BadDataError, make_training_set
from .imports import nearest
from .recipe import RecipeParser, parse_mapping
from .rewards import REWARDS, resolve_reward
from .rewards.format import FORMAT_OF_REWARD

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
            Dataset of problems and answers: a .json, .jsonl, .csv or .parquet file, a folder that `save_to_disk`
            wrote, or a Hub id.
        dataset_config (`str`, *optional*):
            Configuration of a Hub dataset.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        dataset_test_split (`str`, *optional*, defaults to `"test"`):
            Split to evaluate on, where `eval_strategy` asks for evaluation.
        prompt_format (`str`, *optional*):
            How a problem of the dataset is put to the model: `"qwen-math"`, `"r1"`, `"tags"` or `"plain"`. Not given
            if, and only if, the dataset's problems are messages already.
        problem_column (`str`, *optional*):
            Column of the problems. If not given: `problem`, `question` or `prompt`, whichever there is.
        answer_column (`str`, *optional*):
            Column of the answers or worked solutions. If not given: `answer`, `expected_answer` or `solution`,
            whichever there is.
        max_prompt_length (`int`, *optional*, defaults to `2048`):
            Rows of the dataset whose prompt has more tokens, chat template included, are dropped and counted.
        on_bad_rows (`str`, *optional*, defaults to `"drop"`):
            What to do with rows of the dataset that cannot be used: `"drop"` and count them, or `"error"`.
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
            "help": "Dataset of problems and answers: a .json, .jsonl, .csv or .parquet file, a folder that "
            "`save_to_disk` wrote, or a Hub id."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(
        default="test", metadata={"help": "Split to evaluate on, if `eval_strategy` is set."}
    )
    prompt_format: str | None = field(
        default=None,
        metadata={
            "help": "How a problem of the dataset is put to the model: 'qwen-math', 'r1', 'tags' or 'plain'. Leave it "
            "unset if the problems are messages already."
        },
    )
    problem_column: str | None = field(
        default=None,
        metadata={"help": "Column of the problems. Default: problem, question or prompt, whichever there is."},
    )
    answer_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the answers or worked solutions. Default: answer, expected_answer or solution, "
            "whichever there is."
        },
    )
    max_prompt_length: int | None = field(
        default=2048,
        metadata={"help": "Rows of the dataset whose prompt has more tokens are dropped and counted."},
    )
    on_bad_rows: str = field(
        default="drop",
        metadata={"help": "What to do with unusable rows of the dataset: 'drop' and count them, or 'error'."},
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
        self.check_data()

    def check_data(self) -> None:
        """Raises [`ValueError`] if a setting of the data is none, or does not go with another."""
        if self.on_bad_rows not in ON_BAD_ROWS:
            raise ValueError(
                f"`on_bad_rows` is '{self.on_bad_rows}'.{nearest(self.on_bad_rows, ON_BAD_ROWS)} It must be one of "
                f"{list(ON_BAD_ROWS)}."
            )
        if self.max_prompt_length is not None and self.max_prompt_length < 1:
            raise ValueError(f"`max_prompt_length` is {self.max_prompt_length}; it must be at least 1.")
        if self.prompt_format is None:
            return
        resolve_prompt_format(self.prompt_format)
        if self.task is not None:
            raise ValueError(
                f"`prompt_format` is '{self.prompt_format}', but task '{self.task}' has prompts of its own. Leave it "
                "unset."
            )
        for reward in self.reward_funcs:
            if FORMAT_OF_REWARD.get(reward, self.prompt_format) != self.prompt_format:
                raise ValueError(
                    f"`reward_funcs` names '{reward}', which rewards the form of `prompt_format` "
                    f"'{FORMAT_OF_REWARD[reward]}', but `prompt_format` is '{self.prompt_format}'."
                )


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
    check_processes(training_args)
    rewards = [resolve_reward(name) for name in script_args.reward_funcs]
    if training_args.pass_reward in script_args.reward_funcs:  # TRL calls a reward by its function's name
        training_args.pass_reward = rewards[script_args.reward_funcs.index(training_args.pass_reward)].__name__
    training_args.model_init_kwargs = {
        **model_init_kwargs(training_args, model_args),
        **parse_mapping(training_args.model_init_kwargs, "model_init_kwargs"),
    }
    evaluates = training_args.eval_strategy != "no"
    arguments = (script_args, training_args, model_args)

    from transformers import ProgressCallback

    from .progress import SAGEProgressCallback
    from .trainer import SAGEGRPOTrainer

    trainer = SAGEGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=rewards,
        args=training_args,
        train_dataset=load_split(*arguments, "train"),
        eval_dataset=load_split(*arguments, "test") if evaluates else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    trainer.add_callback(PromptFormatCallback(script_args.prompt_format))
    if not training_args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(SAGEProgressCallback)
    return trainer


def fit(trainer: "SAGEGRPOTrainer", training_args: SAGEGRPOConfig, dataset_name: str | None) -> None:
    """Trains, saves, pushes if asked to, and ends the trackers and the process group."""
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

    from transformers import AutoTokenizer

    columns = (script_args.problem_column, script_args.answer_column)
    rows = load_rows(
        script_args.dataset_name,
        script_args.dataset_config,
        script_args.dataset_train_split if split == "train" else script_args.dataset_test_split,
        setting=f"dataset_{split}_split",
        as_text={*PROBLEM_COLUMNS, *ANSWER_COLUMNS, *columns},
    )
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
    )
    is_main = int(os.environ.get("RANK", "0")) == 0
    try:
        dataset, report = make_training_set(
            rows,
            script_args.dataset_name,
            tokenizer,
            script_args.prompt_format,
            *columns,
            max_prompt_length=script_args.max_prompt_length,
            on_bad_rows=script_args.on_bad_rows,
            unreadable=find_unreadable(script_args.reward_funcs),
            chat_template_kwargs=parse_mapping(training_args.chat_template_kwargs, "chat_template_kwargs"),
        )
    except BadDataError as error:
        if is_main:
            print(error.report, file=sys.stderr)
        raise
    if is_main:
        print(report)
    return dataset


def find_unreadable(reward_funcs: list[str]) -> Callable[[list[str]], list[int]] | None:
    """Finds the answers that the math reward cannot read; `None` where a run does not use that reward."""
    if not any(REWARDS.get(name, name).startswith("sage_trl.rewards.math:") for name in reward_funcs):
        return None
    from .rewards.math import unreadable

    return unreadable


class PromptFormatCallback(TrainerCallback):
    """Records in the output folder and in every checkpoint which prompt format the model is trained with."""

    def __init__(self, prompt_format: str | None):
        self.prompt_format = prompt_format

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            save_prompt_format(args.output_dir, self.prompt_format)

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            save_prompt_format(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.prompt_format)


def model_init_kwargs(training_args: SAGEGRPOConfig, model_args: ModelConfig) -> dict[str, Any]:
    """What the user set about loading the model. The rest is left to `from_pretrained`."""
    kwargs = {
        "revision": model_args.model_revision if model_args.model_revision != "main" else None,
        "trust_remote_code": training_args.trust_remote_code or None,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    return {name: value for name, value in kwargs.items() if value is not None}


def check_processes(training_args: SAGEGRPOConfig) -> None:
    """Raises if a launcher started several processes that each take themselves for the only one."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != training_args.world_size:
        raise ValueError(
            f"{launched} processes were launched, but each would train alone: this machine has no accelerator for "
            "them. Set `use_cpu` to true to train on the CPU in several processes."
        )


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
