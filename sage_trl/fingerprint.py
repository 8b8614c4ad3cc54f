"""Which base model an adapter was trained on: a fingerprint of the base's weights, kept beside the adapter.

It is made from the base's files and not from the model in memory, which may be sharded over processes (ZeRO-3, FSDP)
or quantized. Names, types and shapes of all weights and three rows of each go into it: the same wherever the base lies
and however it is cut into files, and another one for another training of the same architecture.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASE_RECORD = "sage_base.json"


def fingerprint(name: str, revision: str | None = None) -> str | None:
    """
    The fingerprint of a model's weights.

    Args:
        name (`str`):
            Hub id or folder.
        revision (`str`, *optional*):
            Commit or branch on the Hub.

    Returns:
        `str` or `None`: `None` for a model that has no safetensors files.
    """
    import torch
    from safetensors import safe_open

    weights = {}  # name -> what is known of it
    for file in _weight_files(name, revision):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(key)
                shape = part.get_shape()
                digest = hashlib.sha256(f"{key} {part.get_dtype()} {shape}".encode())
                rows = [part[i : i + 1] for i in _sampled(shape[0])] if shape else [tensors.get_tensor(key)[None]]
                for row in rows:
                    digest.update(row.contiguous().view(torch.uint8).numpy().tobytes())
                weights[key] = digest.hexdigest()
    return hashlib.sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest() if weights else None


def _sampled(rows: int) -> list[int]:
    return sorted({0, rows // 2, rows - 1}) if rows else []


def _weight_files(name: str, revision: str | None) -> list[str]:
    from transformers.utils import cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    where = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
    index = cached_file(name, "model.safetensors.index.json", **where)
    if index is not None:
        return get_checkpoint_shard_files(name, index, revision=revision)[0]
    whole = cached_file(name, "model.safetensors", **where)
    return [] if whole is None else [whole]


def describe_base(model: "PreTrainedModel", revision: str | None) -> dict[str, str | None] | None:
    """What is recorded of a base model that was loaded; `None` for one that was not loaded from safetensors files."""
    from transformers.utils.hub import extract_commit_hash

    name = model.config._name_or_path
    if not name or not (Path(name).is_dir() or _is_repository(name)):
        return None
    files = _weight_files(name, revision)
    if not files:
        return None
    return {"fingerprint": fingerprint(name, revision), "commit": extract_commit_hash(files[0], None)}


def _is_repository(name: str) -> bool:
    """Whether a name can be one of the Hub's: not that of a model made in memory, nor of a folder that is gone."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def save_base_record(folder: str | Path, record: dict[str, str | None]) -> None:
    (Path(folder) / BASE_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load_base_record(folder: str | Path) -> dict[str, str | None] | None:
    file = Path(folder) / BASE_RECORD
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
