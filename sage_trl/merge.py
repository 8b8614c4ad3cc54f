"""Merges an adapter into the model that it was trained on, and checks that the merged model computes the same.

    sage-trl merge outputs/branch --output outputs/branch-merged

The base is the one that the adapter names, or `--base` where it lies elsewhere by now. It is held against the
fingerprint that training left beside the adapter (`sage_trl/fingerprint.py`).
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .launch import mistakes_as_one_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

DTYPES = ("auto", "float32", "bfloat16", "float16")
# Norm of the logits' difference over their own that rounding explains
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
KEPT = ("README.md", "recipe.yaml", "sage_prompt.json")


def make_parser(prog: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Merges an adapter into the model it was trained on.")
    parser.add_argument("folder", type=Path, help="output folder of a run with LoRA, or one of its checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="folder for the merged model, new or empty")
    parser.add_argument("--base", help="the model it was trained on, where it lies elsewhere now: folder or Hub id")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the merged weights; default: the base's")
    parser.add_argument("--unchecked", action="store_true", help="do not compare the base with the record of it")
    parser.add_argument("--trust_remote_code", action="store_true", help="let the base run code of its own")
    return parser


def merge(options: argparse.Namespace) -> float:
    """Merges as the options say, and returns the relative difference of the logits."""
    from peft import PeftModel

    from .loading import load_model, load_tokenizer

    if not (options.folder / "adapter_config.json").is_file():
        raise FileNotFoundError(f"'{options.folder}' has no adapter_config.json: there is no adapter to merge.")
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        raise FileExistsError(f"`--output` is '{options.output}', which is there already. Name a new folder.")
    base, revision = find_base(options)
    load = {"revision": revision, "dtype": options.dtype, "trust_remote_code": options.trust_remote_code}
    model = load_model(base, "--base", **{name: value for name, value in load.items() if value is not None})
    if model.config.to_dict().get("quantization_config") is not None:
        raise ValueError(
            f"`--base` is '{base}', which is quantized: an adapter cannot be merged into it without loss. Name the "
            "model that it was quantized from, with `--unchecked`."
        )
    unmerged = PeftModel.from_pretrained(model, str(options.folder)).eval()
    before = some_logits(unmerged)
    merged = unmerged.merge_and_unload()
    difference = check_same(before, some_logits(merged), str(merged.dtype).removeprefix("torch."))
    merged.save_pretrained(options.output)
    load_tokenizer(base, str(options.folder), options.trust_remote_code).save_pretrained(options.output)
    for name in KEPT:
        if (options.folder / name).is_file():
            shutil.copy(options.folder / name, options.output / name)
    describe_merge(options.output)
    return difference


def find_base(options: argparse.Namespace) -> tuple[str, str | None]:
    """The base model and its commit. Raises [`ValueError`] for one that the adapter was not trained on."""
    from .checks import check_model
    from .fingerprint import BASE_RECORD, fingerprint, load_base_record
    from .loading import naming, split_adapter

    record = load_base_record(options.folder)
    named = split_adapter(str(options.folder))[0]
    base = options.base or named
    revision = record["commit"] if record and options.base is None else None
    try:
        check_model(base, "--base")
    except OSError as error:
        if options.base:
            raise
        raise FileNotFoundError(
            f"the adapter's base is '{base}', and there is no such folder. Say where it lies by `--base`."
        ) from error
    if options.unchecked:
        return base, revision
    if record is None:
        raise ValueError(
            f"'{options.folder}' has no {BASE_RECORD}, which training writes beside an adapter, so whether '{base}' "
            "is what it was trained on cannot be told. Add `--unchecked` if you know that it is."
        )
    with naming(base, "--base"):
        found = fingerprint(base, revision)
    if found is None:
        raise FileNotFoundError(
            f"'{base}' has no weights as safetensors files that can be loaded here, so whether it is what the adapter "
            "was trained on cannot be told. Say by `--base` where its base lies, or add `--unchecked`."
        )
    if found != record["fingerprint"]:
        raise ValueError(
            f"'{base}' is not the model that the adapter was trained on: its weights have the fingerprint "
            f"{found[:12]}, those had {record['fingerprint'][:12]}. Name the right one by `--base`."
        )
    return base, revision


def some_logits(model: "PreTrainedModel") -> "torch.Tensor":
    """Logits after each of 16 tokens, in float32, shape (16, vocabulary)."""
    import torch

    ids = torch.arange(16).remainder(model.config.get_text_config().vocab_size)
    with torch.inference_mode():
        return model(input_ids=ids[None].to(model.device)).logits[0].float()


def check_same(before: "torch.Tensor", after: "torch.Tensor", dtype: str) -> float:
    """
    Raises [`ValueError`] where merging changed the logits by more than rounding does.

    Args:
        before (`torch.Tensor`):
            Logits with the adapter beside the model.
        after (`torch.Tensor`):
            Logits with the adapter merged into it.
        dtype (`str`):
            Type of the weights.

    Returns:
        `float`: norm of the difference over the norm of the logits.
    """
    difference = ((before - after).norm() / before.norm()).item()
    if not difference <= TOLERANCES[dtype]:
        fix = (
            "Try `--dtype float32`."
            if dtype != "float32"
            else "Use it as it is: `sage-trl push` and vLLM take adapters."
        )
        raise ValueError(
            f"the merged model's logits differ from those of model and adapter by {difference:.1e} of their norm, "
            f"and {TOLERANCES[dtype]:.0e} is what rounding in {dtype} explains. Nothing was saved. {fix}"
        )
    return difference


def describe_merge(folder: Path) -> None:
    """Makes an adapter's card the card of a whole model."""
    from huggingface_hub import ModelCard

    path = folder / "README.md"
    if not path.is_file():
        return
    card = ModelCard.load(path)
    card.data.library_name = "transformers"
    of_adapter = ("base_model:adapter:", "lora", "peft")
    card.data.tags = [tag for tag in card.data.tags or [] if not tag.startswith(of_adapter)]
    card.save(path)


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Merges as the command line says. A mistake is one line and exit code 2."""
    options = make_parser(prog or "python -m sage_trl.merge").parse_args(sys.argv[1:] if argv is None else argv)
    with mistakes_as_one_line(ValueError, OSError):
        difference = merge(options)
    print(f"Merged into {options.output}; its logits differ by {difference:.1e} of their norm")


if __name__ == "__main__":
    run()
