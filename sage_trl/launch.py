"""What every command does around its trainer: checks before anything heavy loads, the data, what is kept of a run."""

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from .arguments import DataArguments
from .data.load import ANSWER_COLUMNS, PROBLEM_COLUMNS, load_rows
from .data.prompts import save_prompt_format
from .data.report import BadDataError, DataReport
from .data.training import make_training_set
from .recipe import parse_mapping

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase, TrainingArguments
    from trl import ModelConfig

RECIPE = "recipe.yaml"
# Trackers that transformers knows by the name of their package
TRACKERS = ("wandb", "trackio", "mlflow", "swanlab", "comet_ml", "clearml")


def is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def quiet_dependencies() -> None:
    """Silences what TRL and transformers say about settings that they set themselves."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)


def load_tokenizer(training_args: "TrainingArguments", model_args: "ModelConfig") -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
    )


def load_dataset(
    script_args: DataArguments,
    training_args: "TrainingArguments",
    model_args: "ModelConfig",
    split: str,
    unreadable: Callable[[list[str]], list[int]] | None = None,
    narrow: "Callable[[Dataset, DataReport, PreTrainedTokenizerBase], Dataset] | None" = None,
) -> "Dataset":
    """
    The `"train"` or `"test"` problems of a run. The main process prints what became of the rows.

    Args:
        script_args ([`~sage_trl.arguments.DataArguments`]):
            Where the data are and how they are read.
        training_args ([`~transformers.TrainingArguments`]):
            Arguments of the chat template, and whether remote code may run.
        model_args ([`~trl.ModelConfig`]):
            The model, whose tokenizer is used.
        split (`str`):
            `"train"` or `"test"`.
        unreadable (`Callable`, *optional*):
            Finds answers that the reward cannot read; their rows are dropped.
        narrow (`Callable`, *optional*):
            Drops more rows, and notes them in the report.

    Returns:
        `Dataset`: with `prompt`, `answer` and the source's other columns.
    """
    columns = (script_args.problem_column, script_args.answer_column)
    rows = load_rows(
        script_args.dataset_name,
        script_args.dataset_config,
        script_args.dataset_train_split if split == "train" else script_args.dataset_test_split,
        setting=f"dataset_{split}_split",
        as_text={*PROBLEM_COLUMNS, *ANSWER_COLUMNS, *columns},
    )
    tokenizer = load_tokenizer(training_args, model_args)
    template = getattr(training_args, "chat_template_kwargs", None)
    try:
        dataset, report = make_training_set(
            rows,
            script_args.dataset_name,
            tokenizer,
            script_args.prompt_format,
            *columns,
            max_prompt_length=script_args.max_prompt_length,
            on_bad_rows=script_args.on_bad_rows,
            unreadable=unreadable,
            chat_template_kwargs=parse_mapping(template, "chat_template_kwargs"),
        )
        if narrow is not None:
            dataset = narrow(dataset, report, tokenizer)
            report.check(script_args.on_bad_rows)
    except BadDataError as error:
        if is_main_process():
            print(error.report, file=sys.stderr)
        raise
    if is_main_process():
        print(report)
    return dataset


class RecordCallback(TrainerCallback):
    """
    Records in the output folder and in every checkpoint which prompt format the model is trained with, and the recipe.

    Args:
        prompt_format (`str` or `None`):
            Name of the format.
        recipe (`str`):
            The recipe's text, from [`~sage_trl.recipe.recipe_text`].
    """

    def __init__(self, prompt_format: str | None, recipe: str):
        self.prompt_format = prompt_format
        self.recipe = recipe

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self._record(Path(args.output_dir))

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self._record(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def _record(self, folder: Path):
        save_prompt_format(folder, self.prompt_format)
        (folder / RECIPE).write_text(self.recipe, encoding="utf-8")


def model_init_kwargs(training_args: "TrainingArguments", model_args: "ModelConfig") -> dict[str, Any]:
    """What the user set about loading the model. The rest is left to `from_pretrained`."""
    kwargs = {
        "revision": model_args.model_revision if model_args.model_revision != "main" else None,
        "trust_remote_code": training_args.trust_remote_code or None,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    return {name: value for name, value in kwargs.items() if value is not None}


def check_processes(training_args: "TrainingArguments") -> None:
    """Raises if a launcher started several processes that each take themselves for the only one."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != training_args.world_size:
        raise ValueError(
            f"{launched} processes were launched, but each would train alone: this machine has no accelerator for "
            "them. Set `use_cpu` to true to train on the CPU in several processes."
        )


def check_model(model_args: "ModelConfig") -> None:
    """Raises if no model is named, or a name that can only be a folder is none."""
    name = model_args.model_name_or_path
    if name is None:
        raise ValueError("`model_name_or_path` is not set; give a Hub id or a local folder.")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not Path(name).is_dir():
        raise FileNotFoundError(f"`model_name_or_path` is '{name}', and there is no such folder.")


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


def hide_hub_token(training_args: "TrainingArguments") -> None:
    """
    Moves a token from the settings into the environment, where the Hub's client finds it. The settings are saved
    beside the model, and pushed with it.
    """
    if training_args.hub_token is not None:
        os.environ["HF_TOKEN"] = training_args.hub_token
        training_args.hub_token = None


@contextmanager
def mistakes_as_one_line(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            print(f"sage-trl: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
