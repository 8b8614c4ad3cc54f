"""The dataset of a run: a task that is generated here, local files, or the Hub."""

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..imports import nearest

if TYPE_CHECKING:
    from datasets import Dataset

TASKS = ("countdown",)
READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
REQUIRED_COLUMNS = ("prompt", "answer")
TEST_ROWS = 200  # of a generated task, where a run evaluates


def load_task(task: str, task_kwargs: dict[str, Any], split: str) -> "Dataset":
    """
    Generates the problems of a built-in task.

    Args:
        task (`str`):
            Name of the task: `"countdown"`.
        task_kwargs (`dict[str, Any]`):
            Arguments of the task's generator.
        split (`str`):
            `"train"` or `"test"`. The test split has the same kind of problems, 200 of them.

    Returns:
        `Dataset`: with at least the columns `prompt` and `answer`.
    """
    from .countdown import make_countdown

    if task not in TASKS:
        raise ValueError(f"`task` is '{task}'.{nearest(task, TASKS)} It must be one of {list(TASKS)}.")
    known = [name for name in inspect.signature(make_countdown).parameters if name != "split"]
    for name in task_kwargs:
        if name not in known:
            raise ValueError(
                f"`task_kwargs` sets '{name}', which task '{task}' does not take.{nearest(name, known)} "
                f"It takes {known}."
            )
    arguments = {"num_rows": 20_000, **task_kwargs}
    if split == "test":
        arguments["num_rows"] = min(TEST_ROWS, arguments["num_rows"])
    return make_countdown(**arguments, split=split)


def load_problems(dataset_name: str, dataset_config: str | None, split: str, setting: str) -> "Dataset":
    """
    Loads one split of a dataset with the columns `prompt` and `answer`.

    Args:
        dataset_name (`str`):
            A .json, .jsonl, .csv or .parquet file, a folder that `save_to_disk` wrote, or a Hub id.
        dataset_config (`str` or `None`):
            Configuration of a Hub dataset.
        split (`str`):
            The split. A file and a saved single dataset have only `"train"`.
        setting (`str`):
            The setting that named the split, for the error message.

    Returns:
        `Dataset`: the split.
    """
    from datasets import Dataset, get_dataset_config_names, get_dataset_split_names, load_dataset, load_from_disk

    path = Path(dataset_name)
    if path.is_file():
        if path.suffix not in READERS:
            raise ValueError(f"`dataset_name` is '{path}'; a local file must end in one of {list(READERS)}.")
        splits = {"train": _read_file(path)}
    elif path.is_dir():
        saved = load_from_disk(str(path))
        splits = {"train": saved} if isinstance(saved, Dataset) else saved
    elif path.suffix in READERS or path.is_absolute() or dataset_name.count("/") > 1:
        raise FileNotFoundError(f"`dataset_name` is '{dataset_name}', and there is no such file or folder.")
    else:
        configs = get_dataset_config_names(dataset_name)
        if dataset_config is None and len(configs) > 1:
            raise ValueError(f"`dataset_name` '{dataset_name}' needs a `dataset_config`, one of {configs}.")
        names = get_dataset_split_names(dataset_name, dataset_config)
        splits = (
            {split: load_dataset(dataset_name, dataset_config, split=split)}
            if split in names
            else dict.fromkeys(names)
        )
    if split not in splits:
        raise ValueError(f"`{setting}` is '{split}', but '{dataset_name}' has the splits {list(splits)}.")
    return check_problems(splits[split], dataset_name)


def _read_file(path: Path) -> "Dataset":
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    if path.stat().st_size == 0:
        raise ValueError(f"'{path}' is empty.")
    try:
        return load_dataset(READERS[path.suffix], data_files=str(path), split="train")
    except DatasetGenerationError as error:
        raise ValueError(f"'{path}' cannot be read as {path.suffix}: {error.__cause__ or error}") from error


def check_problems(dataset: "Dataset", name: str) -> "Dataset":
    """Returns `dataset` if it has rows and the columns that training reads, else raises [`ValueError`]."""
    missing = [column for column in REQUIRED_COLUMNS if column not in dataset.column_names]
    if missing:
        raise ValueError(
            f"'{name}' has no column {' and no column '.join(repr(column) for column in missing)}; its columns are "
            f"{dataset.column_names}. Training reads `prompt` (text or messages) and `answer`."
        )
    if len(dataset) == 0:
        raise ValueError(f"'{name}' has no rows.")
    return dataset


def parse_mapping(value: dict[str, Any] | str | None, setting: str) -> dict[str, Any]:
    """Reads a setting that is a mapping in YAML and JSON on the command line."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"`{setting}` is {value!r}, which is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"`{setting}` is {value!r}; it must be a mapping of names to values.")
    return value
