"""Where the rows of a run come from: a task that is generated here, a local file, a saved dataset, or the Hub.

`training.py` makes prompts and answers of them. Rows are read as they lie: files of text by parsers that know which
line is at fault, everything else by `datasets`.
"""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..imports import nearest

if TYPE_CHECKING:
    from datasets import Dataset

TASKS = ("countdown",)
SAVED = ("dataset_dict.json", "state.json")  # one of them is in what `save_to_disk` writes
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
PROBLEM_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = ("answer", "expected_answer", "solution")
TEST_ROWS = 200  # of a generated task, where a run evaluates


@dataclass
class Rows:
    """
    Rows as they lie in their source.

    Args:
        columns (`Mapping[str, Sequence]`):
            Values by column. A `Dataset` is one such mapping.
        names (`list[str]`):
            The columns' names.
        numbers (`Sequence[int]`):
            What each row is called in a report, from 1.
        unit (`str`, *optional*, defaults to `"row"`):
            What the numbers count: `"row"`, or `"line"` of a file.
        unparsed (`dict[int, str]`, *optional*):
            What could not be read at all: number -> why.
    """

    columns: Mapping[str, Sequence]
    names: list[str]
    numbers: Sequence[int]
    unit: str = "row"
    unparsed: dict[int, str] = field(default_factory=dict)


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


def load_rows(
    dataset_name: str, dataset_config: str | None, split: str, setting: str, as_text: Collection[str] = ()
) -> Rows:
    """
    Loads one split of a dataset.

    Args:
        dataset_name (`str`):
            A .json, .jsonl, .csv or .parquet file, a folder that `save_to_disk` wrote, a folder of files as a dataset
            on the Hub is, or a Hub id.
        dataset_config (`str` or `None`):
            Configuration of a Hub dataset or of such a folder.
        split (`str`):
            The split. A file and a saved single dataset have only `"train"`.
        setting (`str`):
            The setting that named the split, for the error message.
        as_text (collection of `str`, *optional*):
            Columns of a CSV file that stay text even where all their values are numbers: 007, 1.50, NA.

    Returns:
        [`Rows`]: the split.
    """
    from datasets import Dataset, get_dataset_config_names, get_dataset_split_names, load_dataset, load_from_disk

    path = Path(dataset_name)
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"`dataset_name` is '{path}'; a local file must end in one of {list(SUFFIXES)}.")
        if path.stat().st_size == 0:
            raise ValueError(f"'{path}' is empty.")
        _check_split(split, ["train"], dataset_name, setting)
        return _read_file(path, as_text)
    if any((path / name).is_file() for name in SAVED):
        saved = load_from_disk(str(path))
        splits = {"train": saved} if isinstance(saved, Dataset) else saved
        _check_split(split, list(splits), dataset_name, setting)
        return _from_dataset(splits[split])
    if not path.is_dir() and (path.suffix in SUFFIXES or path.is_absolute() or dataset_name.count("/") > 1):
        raise FileNotFoundError(f"`dataset_name` is '{dataset_name}', and there is no such file or folder.")
    configs = get_dataset_config_names(dataset_name)
    if dataset_config is None and len(configs) > 1:
        raise ValueError(f"`dataset_name` '{dataset_name}' needs a `dataset_config`, one of {configs}.")
    _check_split(split, get_dataset_split_names(dataset_name, dataset_config), dataset_name, setting)
    return _from_dataset(load_dataset(dataset_name, dataset_config, split=split))


def _check_split(split: str, names: list[str], dataset_name: str, setting: str) -> None:
    if split not in names:
        raise ValueError(f"`{setting}` is '{split}', but '{dataset_name}' has the splits {names}.")


def _from_dataset(dataset: "Dataset") -> Rows:
    return Rows(dataset, dataset.column_names, range(1, len(dataset) + 1))


def _read_file(path: Path, as_text: Collection[str]) -> Rows:
    if path.suffix.lower() == ".csv":
        return _read_csv(path, as_text)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    content = path.read_bytes()
    if content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        return _read_json_list(content)
    return _read_json_lines(content)


def _read_json_lines(content: bytes) -> Rows:
    rows, numbers, unparsed = [], [], {}
    # Split at line feeds alone: a line separator of Unicode may stand inside a string
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip(b"\r\t \xef\xbb\xbf"):
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            unparsed[number] = _why(error)
            continue
        if not isinstance(row, dict):
            unparsed[number] = "is no JSON object"
            continue
        rows.append(row)
        numbers.append(number)
    return _from_objects(rows, numbers, "line", unparsed)


def _read_json_list(content: bytes) -> Rows:
    try:
        items = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        return Rows({}, [], [], "line", {line: _why(error)})
    numbers = [number for number, item in enumerate(items, start=1) if isinstance(item, dict)]
    unparsed = {n: "is no JSON object" for n, item in enumerate(items, start=1) if not isinstance(item, dict)}
    return _from_objects([items[number - 1] for number in numbers], numbers, "row", unparsed)


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    # Else a number of thousands of digits
    return "is nested too deep" if isinstance(error, RecursionError) else str(error)


def _from_objects(rows: list[dict], numbers: list[int], unit: str, unparsed: dict[int, str]) -> Rows:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Rows({name: [row.get(name) for row in rows] for name in names}, names, numbers, unit, unparsed)


def _read_csv(path: Path, as_text: Collection[str]) -> Rows:
    import pandas
    from datasets import Dataset

    try:
        header = list(pandas.read_csv(path, nrows=0).columns)
        text = [name for name in header if name in as_text]
        empty = {name: [""] for name in header if name not in text}
        frame = pandas.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=empty)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' cannot be read as .csv: {error}") from error
    if not isinstance(frame.index, pandas.RangeIndex):  # pandas then takes the first field for the row's name
        raise ValueError(f"'{path}' has rows of more fields than its header. Put text that has commas in quotes.")
    return _from_dataset(Dataset.from_pandas(frame, preserve_index=False))


def _read_parquet(path: Path) -> Rows:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError
    from pyarrow import ArrowInvalid

    try:
        return _from_dataset(load_dataset("parquet", data_files=str(path), split="train"))
    except (ArrowInvalid, DatasetGenerationError) as error:
        raise ValueError(f"'{path}' cannot be read as .parquet: {error.__cause__ or error}") from error


def find_columns(rows: Rows, name: str, problem_column: str | None, answer_column: str | None) -> tuple[str, str]:
    """The columns of problems and answers: as set, else by name. Raises [`ValueError`] where there is none."""
    return (
        find_column(rows, name, "problem_column", problem_column, PROBLEM_COLUMNS),
        find_column(rows, name, "answer_column", answer_column, ANSWER_COLUMNS),
    )


def find_column(rows: Rows, name: str, setting: str | None, value: str | None, known: Sequence[str]) -> str:
    """The column that a setting names, else the first of the known ones, and `prompt` first where it has messages."""
    if value is None and "prompt" in known and "prompt" in rows.names and holds_messages(rows.columns["prompt"]):
        return "prompt"
    column = value if value is not None else next((guess for guess in known if guess in rows.names), None)
    if column not in rows.names:
        what = (
            f"`{setting}` is '{value}', but '{name}' has no such column.{nearest(value, rows.names)}"
            if value is not None
            else f"'{name}' has no column named {' or '.join(map(repr, known))}. "
            + (f"Set `{setting}`." if setting else "Rename one of its own.")
        )
        raise ValueError(f"{what} Its columns are {rows.names}.")
    return column


def holds_messages(values: Sequence) -> bool:
    """Whether a column holds messages, by its first value that is there."""
    return isinstance(next((value for value in values if value), None), list)
