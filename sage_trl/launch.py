"""What every command does around its trainer: checks before anything heavy loads, the data, what is kept of a run."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from .arguments import DataArguments
from .card import about_run
from .checkpoints import is_finished, resolve_resume
from .checks import check_model, check_processes, is_main_process, missing_extras
from .data.load import ANSWER_COLUMNS, PROBLEM_COLUMNS, load_rows
from .data.prompts import save_prompt_format
from .data.report import BadDataError, DataReport
from .data.training import make_training_set
from .dry_run import rehearse
from .hub import PushError, check_repository
from .loading import naming
from .recipe import parse_mapping, recipe_text
from .signals import SaveOnSignal

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments
    from trl import ModelConfig

RECIPE = "recipe.yaml"


def quiet_dependencies() -> None:
    """Silences what TRL and transformers say about settings that they set themselves."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)


def load_tokenizer(training_args: "TrainingArguments", model_args: "ModelConfig") -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    with naming(model_args.model_name_or_path, "model_name_or_path"):
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


def splits_of(training_args: "TrainingArguments") -> tuple[str, ...]:
    """The splits that a run reads. Where pass@k is measured, its benchmarks take the place of a test split."""
    has_test = training_args.eval_strategy != "no" and getattr(training_args, "eval_pass_at_k", None) is None
    return ("train", "test") if has_test else ("train",)


def prepare(script_args: DataArguments, training_args: "TrainingArguments", model_args: "ModelConfig") -> None:
    """Checks what every command has in common, and settles where it resumes and how the model is loaded."""
    check_model(model_args.model_name_or_path)
    check_processes(training_args)
    if script_args.save_on_signal and training_args.save_only_model:
        raise ValueError(
            "`save_on_signal` is true and `save_only_model` is true: nothing could go on from what is saved. Set one "
            "of them to false."
        )
    if script_args.save_on_signal:
        check_is_saved(training_args)
    missing = missing_extras(training_args, model_args)
    if missing and not script_args.dry_run:
        raise ImportError(" ".join(missing))
    training_args.resume_from_checkpoint = resolve_resume(
        training_args.resume_from_checkpoint, training_args.output_dir
    )
    if training_args.hub_model_id is not None:
        check_repository(training_args.hub_model_id, "hub_model_id")
    hide_hub_token(training_args)
    training_args.model_init_kwargs = {
        **model_init_kwargs(training_args, model_args),
        **parse_mapping(training_args.model_init_kwargs, "model_init_kwargs"),
    }


def check_is_saved(training_args: "TrainingArguments") -> None:
    """Raises where transformers would not keep the checkpoint that `save_on_signal` saves."""
    if training_args.save_strategy == "best":
        raise ValueError(
            "`save_on_signal` is true and `save_strategy` is 'best', with which only the best step is saved. Set "
            "`save_strategy` to 'steps'."
        )
    if training_args.load_best_model_at_end and training_args.save_total_limit == 1:
        raise ValueError(
            "`save_on_signal` is true, `load_best_model_at_end` is true and `save_total_limit` is 1: the best "
            "checkpoint alone would be kept, and not the last. Set `save_total_limit` to 2 or more."
        )


@dataclass(frozen=True)
class Command:
    """
    One command: parse, build, train, save. A mistake in the settings is one line and exit code 2.

    Args:
        module (`str`):
            What `accelerate launch -m` runs.
        make_parser (`Callable`):
            Makes its parser.
        build_trainer (`Callable`):
            Builds the trainer from script arguments, training arguments and model arguments.
        describe (`Callable`):
            Says what a trainer would do, for a dry run.
        before_saving (`Callable`, *optional*):
            Called with the trainer after training.
    """

    module: str
    make_parser: Callable
    build_trainer: Callable
    describe: Callable
    before_saving: Callable | None = None

    def run(self, argv: list[str] | None = None, prog: str | None = None) -> None:
        quiet_dependencies()
        with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
            parser = self.make_parser(prog or f"python -m {self.module}")
            arguments = parser.parse_run(sys.argv[1:] if argv is None else argv)
        script_args = arguments[0]
        recipe = recipe_text(arguments, parser.given, self.module)
        with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
            if script_args.dry_run:
                rehearse(self.build_trainer, self.describe, arguments)
                return
            trainer = self.build_trainer(*arguments)
        self.fit(trainer, script_args, recipe)

    def fit(self, trainer: "Trainer", script_args: DataArguments, recipe: str = "") -> None:
        """
        Trains, saves, pushes if asked to, and ends the trackers and the process group.

        Args:
            trainer ([`~transformers.Trainer`]):
                The trainer, built.
            script_args ([`~sage_trl.arguments.DataArguments`]):
                What is recorded beside the model.
            recipe (`str`, *optional*):
                The recipe's text, saved beside the model.
        """
        from transformers import ProgressCallback

        from .progress import SAGEProgressCallback

        args, say = trainer.args, trainer.accelerator.print
        dataset_name = script_args.dataset_name
        if recipe:
            trainer.about_run = about_run(self.module, vars(script_args).get("task"), dataset_name)
        trainer.add_callback(RecordCallback(script_args.prompt_format, recipe))
        on_signal = SaveOnSignal()
        if script_args.save_on_signal:
            trainer.add_callback(on_signal)
        if not args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(SAGEProgressCallback)
        if args.resume_from_checkpoint is not None and is_finished(args.resume_from_checkpoint, args.max_steps):
            # transformers would train one step more
            say(f"{args.resume_from_checkpoint} is the end of the run already: nothing is left to train")
            trainer.state = TrainerState.load_from_json(str(Path(args.resume_from_checkpoint) / TRAINER_STATE_NAME))
            trainer._load_from_checkpoint(args.resume_from_checkpoint)
        else:
            if args.resume_from_checkpoint is not None:
                say(f"Resuming from {args.resume_from_checkpoint}")
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        if on_signal.stopped:
            say(
                f"SIGTERM: saved {args.output_dir}/checkpoint-{trainer.state.global_step} and stopped. The same "
                "command with `resume_from_checkpoint: auto` goes on from it."
            )
            trainer.end()
            return
        if self.before_saving is not None:
            self.before_saving(trainer)
        trainer.save_model(args.output_dir, _internal_call=True)  # which does not push yet
        trainer.save_state()
        # A card is published, and where data lie on a disk is nobody's business
        trainer.create_model_card(
            model_name=Path(args.hub_model_id or args.output_dir).name,
            dataset_name=None if dataset_name is None or Path(dataset_name).exists() else dataset_name,
        )
        say(f"Model saved to {args.output_dir}")
        try:
            with mistakes_as_one_line(PushError, ValueError):
                if args.push_to_hub:
                    say(f"Model pushed to {trainer.push_output()}")
        finally:
            trainer.end()
