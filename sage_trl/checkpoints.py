"""Checkpoints on disk: which are whole, and which of them a run goes on from.

A checkpoint's `trainer_state.json` is its last file, written when those of all processes are. So a checkpoint is whole
if that file can be read and none of the others was cut short, as by a disk that filled up or a copy that broke off.
"""

import json
import logging
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WEIGHTS = {
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
}
logger = logging.getLogger(__name__)


def resolve_resume(resume_from_checkpoint: str | bool | None, output_dir: str | Path) -> str | None:
    """
    The checkpoint that a run goes on from.

    Args:
        resume_from_checkpoint (`str`, `bool` or `None`):
            A checkpoint's folder; `True` or `"true"` for the newest whole one of `output_dir`; `"auto"` for the same,
            or a fresh start where there is none; `None`, `False` or `"false"` for a fresh start.
        output_dir (`str` or `Path`):
            The run's output folder.

    Returns:
        `str` or `None`: the folder, `None` for a fresh start.

    Raises:
        [`FileNotFoundError`], [`ValueError`]: there is no such checkpoint, or the one that was named is torn.
    """
    setting = str(resume_from_checkpoint).lower()
    if setting in ("none", "false"):
        return None
    if setting in ("true", "auto"):
        newest = newest_checkpoint(output_dir)
        if newest is None and setting == "true":
            raise FileNotFoundError(
                f"`resume_from_checkpoint` is true, but '{output_dir}' holds no whole checkpoint. Set it to 'auto' to "
                "start afresh in that case."
            )
        return None if newest is None else str(newest)
    folder = Path(resume_from_checkpoint)
    if not folder.is_dir():
        raise FileNotFoundError(f"`resume_from_checkpoint` is '{folder}', and there is no such folder.")
    reason = why_torn(folder)
    if reason:
        raise ValueError(f"`resume_from_checkpoint` is '{folder}', which is torn: {reason}. Set it to 'auto'.")
    return str(folder)


def is_finished(folder: str | Path, max_steps: int) -> bool:
    """
    Whether a checkpoint is the end of its run.

    Args:
        folder (`str` or `Path`):
            The checkpoint.
        max_steps (`int`):
            Steps of the run; what the checkpoint itself says where it is not positive.
    """
    state = json.loads((Path(folder) / "trainer_state.json").read_text(encoding="utf-8"))
    return state["global_step"] >= (max_steps if max_steps > 0 else state["max_steps"])


def newest_checkpoint(output_dir: str | Path) -> Path | None:
    """The whole checkpoint of most steps in a folder. Torn ones that come before it are skipped, with a warning."""
    folders = [folder for folder in Path(output_dir).glob("checkpoint-*") if folder.name[11:].isdecimal()]
    for folder in sorted(folders, key=lambda folder: int(folder.name[11:]), reverse=True):
        reason = why_torn(folder)
        if reason is None:
            return folder
        logger.warning(f"Skipping the torn checkpoint {folder}: {reason}.")
    return None


def why_torn(folder: str | Path) -> str | None:
    """Why a checkpoint cannot be gone on from, or `None` if it is whole."""
    folder = Path(folder)
    state = folder / "trainer_state.json"
    if not state.is_file():
        return "it has no trainer_state.json, the file that is written last"
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except ValueError:
        return "its trainer_state.json is cut short"
    names = {file.name for file in folder.iterdir()}
    is_sharded = any(name.startswith(("global_step", "pytorch_model_fsdp", "optimizer_")) for name in names)
    if not is_sharded and not names & WEIGHTS:
        return "it has no weights"
    if not is_sharded and "optimizer.pt" not in names:
        return "it has no optimizer.pt (saved with `save_only_model`?)"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        missing = {*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()} - names
        if missing:
            return f"it has no {sorted(missing)[0]}"
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".safetensors" and not _is_whole_safetensors(file):
            return f"its {file.relative_to(folder)} is cut short"
        if file.suffix in (".pt", ".pth") and not zipfile.is_zipfile(file):
            return f"its {file.relative_to(folder)} is cut short"
    return None


def _is_whole_safetensors(file: Path) -> bool:
    """Whether a file has the length that its header gives: 8 bytes of the header's size, the header, the tensors."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            return False
        (size,) = struct.unpack("<Q", prefix)
        header = stream.read(min(size, file.stat().st_size))
    if not 0 < size == len(header):
        return False
    try:
        entries = json.loads(header)
    except ValueError:
        return False
    end = max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)
    return file.stat().st_size == 8 + size + end


def load_state(path: str | Path, device: "torch.device") -> Any:
    """What a checkpoint's file holds, tensors and plain values alone, on a device."""
    import torch

    # accelerate may call a CPU cpu:0, which torch does not know as a place to load to
    return torch.load(path, map_location="cpu" if device.type == "cpu" else device, weights_only=True)


@contextmanager
def keep_dtypes(model: "torch.nn.Module") -> Iterator[None]:
    """
    Puts what is trained back into the types that it had. PEFT loads an adapter as float32, and TRL trains that of a
    quantized base in bfloat16.
    """
    kept = {name: parameter.dtype for name, parameter in model.named_parameters() if parameter.requires_grad}
    yield
    for name, parameter in model.named_parameters():
        if name in kept:
            parameter.data = parameter.data.to(kept[name])
