"""Teaches a base model to reason in a prompt format, by TRL's SFTTrainer: the stage before reinforcement learning.

    accelerate launch -m sage_trl.sft --config recipes/Qwen2.5-Math-7B/sft.yaml

Prompts are those of the RL stage (`sage_trl/data/prompts.py`), and the loss is taken over the solution alone. What is
saved to `output_dir` is a whole model: an adapter is merged into it, since the RL stage anchors its policy to the
model it starts from, and with the adapter left aside that would be the base model.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from trl import ModelConfig, SFTConfig, get_peft_config, get_quantization_config

from .arguments import SFTScriptArguments
from .checks import zero_stage
from .data.prompts import control_markers, make_completion
from .data.report import DataReport
from .dry_run import describe_sft
from .launch import Command, load_dataset, prepare, splits_of
from .recipe import RecipeParser

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase
    from trl import SFTTrainer


def make_parser(prog: str | None = None) -> RecipeParser:
    return RecipeParser(
        (SFTScriptArguments, SFTConfig, ModelConfig),
        prog=prog,
        usage="%(prog)s --config recipe.yaml [--setting value ...]",
        description="Teaches a base model to reason in a prompt format. `--config` names the recipe; every setting "
        "below is a key of it, too, and wins over it on the command line.",
    )


def build_trainer(script_args: SFTScriptArguments, training_args: SFTConfig, model_args: ModelConfig) -> "SFTTrainer":
    """
    Loads the data and builds the trainer. Raises on every setting that cannot be right.

    Args:
        script_args ([`~sage_trl.arguments.SFTScriptArguments`]):
            The data.
        training_args ([`~trl.SFTConfig`]):
            Everything else about the run.
        model_args ([`~trl.ModelConfig`]):
            Model, LoRA and quantization.

    Returns:
        [`~trl.SFTTrainer`]: ready to train.
    """
    check_merge(model_args)
    if training_args.max_length is None:
        raise ValueError("`max_length` is not set. Rows beyond `max_text_share` of it are dropped, so it is needed.")
    prepare(script_args, training_args, model_args)
    narrow = Narrowing(script_args, training_args.max_length)
    datasets = {
        split: load_dataset(script_args, training_args, model_args, split, narrow=narrow)
        for split in splits_of(training_args)
    }

    from .sft_trainer import PublishingSFTTrainer

    return PublishingSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=datasets["train"],
        eval_dataset=datasets.get("test"),
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )


class Narrowing:
    """
    Drops rows that the model cannot learn from, and writes their solutions as completions.

    Args:
        script_args ([`~sage_trl.arguments.SFTScriptArguments`]):
            What is dropped.
        max_length (`int`):
            Tokens of the longest text that is trained on.
    """

    def __init__(self, script_args: SFTScriptArguments, max_length: int):
        self.script_args = script_args
        self.limit = int(max_length * script_args.max_text_share)

    def __call__(self, dataset: "Dataset", report: DataReport, tokenizer: "PreTrainedTokenizerBase") -> "Dataset":
        column, form = self.script_args.solution_column, self.script_args.prompt_format
        if column not in dataset.column_names:
            raise ValueError(
                f"`solution_column` is '{column}', and '{self.script_args.dataset_name}' has no such column. It has "
                f"{[name for name in dataset.column_names if name not in ('prompt', 'answer')]}."
            )
        dataset = dataset.select_columns(["prompt", "answer", column])
        if self.script_args.only_number_answers:
            dataset = _without(
                dataset, report, [not is_number(answer) for answer in dataset["answer"]], "the answer is no number"
            )
        markers = [marker for marker in control_markers(tokenizer, form) if marker not in ("<think>", "</think>")]
        completions = []
        for solution, answer in zip(dataset[column], dataset["answer"], strict=True):
            try:
                completions.append(make_completion(solution or "", answer, form, markers))
            except ValueError:  # there is nothing in it
                completions.append(None)
        dataset = dataset.remove_columns(column).add_column("completion", completions)
        dataset = _without(
            dataset, report, [completion is None for completion in completions], "the solution is missing or empty"
        )
        lengths = self._lengths(dataset, tokenizer)
        reason = (
            f"prompt and solution are longer than `max_text_share` x `max_length` = {self.limit} tokens (longest: "
            f"{max(lengths, default=0)})"
        )
        return _without(dataset, report, [length > self.limit for length in lengths], reason)

    def _lengths(self, dataset: "Dataset", tokenizer: "PreTrainedTokenizerBase") -> list[int]:
        texts = [
            tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False) for row in dataset
        ]
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []


def _without(dataset: "Dataset", report: DataReport, out: list[bool], reason: str) -> "Dataset":
    report.drop([index for index, is_out in enumerate(out) if is_out], reason)
    return dataset.select([index for index, is_out in enumerate(out) if not is_out])


def is_number(answer: str) -> bool:
    """Whether an answer is a plain number, as `12`, `1,000`, `3/4` and `\\frac{3}{4}` are."""
    from .rewards.numbers import read_number
    from .rewards.spelling import normalise

    text, unit = normalise(answer)
    return not unit and read_number(text) is not None


def check_merge(model_args: ModelConfig) -> None:
    """Raises where an adapter could not be merged in the end."""
    if not model_args.use_peft:
        return
    if zero_stage() == 3:
        raise ValueError(
            "`use_peft` is true, and under ZeRO-3 or FSDP an adapter cannot be merged into the sharded model. Launch "
            "with recipes/accelerate_configs/ddp.yaml or zero2.yaml."
        )
    if model_args.load_in_4bit or model_args.load_in_8bit:
        raise ValueError(
            "`load_in_4bit` or `load_in_8bit` is true: an adapter cannot be merged into a quantized model without "
            "loss. Leave both unset."
        )


def merge_adapter(trainer: "SFTTrainer") -> None:
    """Merges the adapter, if there is one, into the model that will be saved."""
    from peft import PeftModel

    model = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, PeftModel):
        trainer.model = trainer.model_wrapped = model.merge_and_unload()
        if trainer.is_world_process_zero():
            # Beside the merged model an adapter that an earlier run left would be applied to it
            for file in Path(trainer.args.output_dir).glob("adapter_*"):
                file.unlink()


COMMAND = Command("sage_trl.sft", make_parser, build_trainer, describe_sft, before_saving=merge_adapter)


def main(script_args: SFTScriptArguments, training_args: SFTConfig, model_args: ModelConfig) -> None:
    """Trains, and saves the model with its tokenizer to `output_dir`."""
    COMMAND.fit(build_trainer(script_args, training_args, model_args), script_args)


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Trains as the command line says. A mistake in the settings is one line and exit code 2."""
    COMMAND.run(argv, prog)


if __name__ == "__main__":
    run()
