"""Benchmarks as data: where each lies, how many rows it has, and by which checksum its problems are known.

A set is published in several places, with other rows, typos or columns. What counts here is which problems there are:
they are known by a checksum over their texts, wherever they are loaded from, so a local copy is as good as the Hub.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.load import ANSWER_COLUMNS, PROBLEM_COLUMNS, find_column, load_rows
from ..imports import nearest

COUNTDOWN_SEED = 1  # the model that ships with the project was chosen with the test problems of seed 0 in view


@dataclass(frozen=True)
class Benchmark:
    """
    Where a benchmark is found.

    Args:
        path (`str`):
            Hub id.
        split (`str`):
            Split.
        rows (`int`):
            How many problems it has.
        checksum (`str` or `None`):
            First 16 digits of the checksum of its problems; `None` where it has not been recorded.
        config (`str`, *optional*):
            Configuration.
        problem_column, answer_column (`str`, *optional*):
            Columns, where their names are not the usual ones.
        why (`str`, *optional*):
            Why this publication of the set.
    """

    path: str
    split: str
    rows: int
    checksum: str | None = None
    config: str | None = None
    problem_column: str | None = None
    answer_column: str | None = None
    why: str = ""


BENCHMARKS = {
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", 500, "36a07f615ecd7774", answer_column="answer"),
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "train", 30, "c04d5868cac35379", answer_column="answer"),
    "aime25": Benchmark("math-ai/aime25", "test", 30, why="both parts of the contest in one split"),
    "amc23": Benchmark(
        "math-ai/amc23", "test", 40, "541e99297e7f394b", why="the 40 problems whose answer is a number"
    ),
    "minerva": Benchmark("math-ai/minervamath", "test", 272, "4f2bc1dbec2321bd"),
    "gsm8k": Benchmark("openai/gsm8k", "test", 1319, config="main"),
}
NAMES = (*BENCHMARKS, "countdown")


@dataclass(frozen=True)
class Problems:
    """
    The problems of a benchmark.

    Args:
        name (`str`):
            What it is called in results.
        rows (`list[dict]`):
            Each with `id`, `answer`, and `problem` as text or `prompt` as messages; of countdown, `numbers` and
            `target` too.
        checksum (`str`):
            First 16 digits of the checksum of the problems.
        task (`str`):
            How answers are judged: `"math"` or `"countdown"`.
    """

    name: str
    rows: list[dict[str, Any]]
    checksum: str
    task: str = "math"

    @property
    def questions(self) -> str:
        """Checksum of the problems with their ids, which records are kept by."""
        return _digest((row["id"], row.get("problem") or str(row.get("prompt"))) for row in self.rows)

    @property
    def golds(self) -> str:
        """Checksum of the right answers by id."""
        return _digest(
            (row["id"], str([row.get(name) for name in ("answer", "numbers", "target")])) for row in self.rows
        )


def load_benchmarks(names: str, num_problems: int | None = None) -> list[Problems]:
    """Benchmarks separated by commas, as of [`load_benchmark`]. Raises [`ValueError`] where two have the same name."""
    found = [load_benchmark(name.strip(), num_problems) for name in names.split(",")]
    for name, count in Counter(problems.name for problems in found).items():
        if count > 1:
            raise ValueError(
                f"`benchmarks` holds {count} that are called '{name}', and results are kept by name. Write "
                "othername=file for one of them."
            )
    return found


def load_benchmark(name: str, num_problems: int | None = None) -> Problems:
    """
    Loads a benchmark.

    Args:
        name (`str`):
            A name of this table, `"countdown"`, a file, or `name=file`: a local copy of a benchmark of the table, or
            problems of one's own under that name.
        num_problems (`int`, *optional*):
            How many of its first problems to take.

    Returns:
        [`Problems`]: with their checksum.

    Raises:
        [`ValueError`]: there is no such benchmark, or the problems are not those it is known by.
    """
    if name == "countdown":
        return _countdown(num_problems or 200)
    known, _, copy = name.partition("=")
    if known in BENCHMARKS and (copy or not Path(name).is_file()):
        benchmark = BENCHMARKS[known]
        found = _read(known, copy or benchmark.path, benchmark, from_hub=not copy)
        _check(found, benchmark, copy or benchmark.path)
    elif copy and known == "countdown":
        raise ValueError(f"`benchmarks` names '{name}', but countdown is generated. Give the file another name.")
    elif not Path(copy or name).is_file():
        raise ValueError(
            f"`benchmarks` names '{name}', which is neither a file nor a benchmark of this version."
            f"{nearest(known, NAMES)} Choose from {list(NAMES)}, or name a file."
        )
    else:
        found = _read(known if copy else Path(name).stem, copy or name, None, from_hub=False)
    if num_problems is not None and num_problems < len(found.rows):
        rows = found.rows[:num_problems]
        return Problems(found.name, rows, checksum([row["problem"] for row in rows]), found.task)
    return found


def _read(name: str, path: str, benchmark: Benchmark | None, from_hub: bool) -> Problems:
    columns = (benchmark.problem_column, benchmark.answer_column) if benchmark and from_hub else (None, None)
    rows = load_rows(
        path,
        benchmark.config if benchmark and from_hub else None,
        benchmark.split if benchmark and from_hub else "train",
        setting="benchmarks",
        as_text={*PROBLEM_COLUMNS, *ANSWER_COLUMNS},
    )
    if rows.unparsed:
        number, why = next(iter(rows.unparsed.items()))
        raise ValueError(f"'{path}', {rows.unit} {number}: {why}.")
    problem = find_column(rows, path, None, columns[0], PROBLEM_COLUMNS)
    answer = find_column(rows, path, None, columns[1], ANSWER_COLUMNS)
    identity = find_column(rows, path, None, None, ("id", "unique_id", problem))
    texts, answers = rows.columns[problem][:], rows.columns[answer][:]
    for number, text, gold in zip(rows.numbers, texts, answers, strict=True):
        if not isinstance(text, str) or not text.strip() or gold is None or not str(gold).strip():
            raise ValueError(f"'{path}', {rows.unit} {number}: it has no problem or no answer.")
    identities = rows.columns[identity][:] if identity != problem else range(len(texts))
    made = [
        {"id": str(key), "problem": text, "answer": str(gold)}
        for key, text, gold in zip(identities, texts, answers, strict=True)
    ]
    twice = [key for key, count in Counter(row["id"] for row in made).items() if count > 1]
    if twice:
        raise ValueError(f"'{path}' has the id '{twice[0]}' more than once; samples are kept by it.")
    return Problems(name, made, checksum(texts))


def _countdown(num_problems: int) -> Problems:
    from ..data.countdown import make_countdown

    rows = [
        {"id": str(index), **row}
        for index, row in enumerate(make_countdown(num_problems, seed=COUNTDOWN_SEED, split="test"))
    ]
    return Problems("countdown", rows, checksum([str((row["numbers"], row["target"])) for row in rows]), "countdown")


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(pairs)).encode()).hexdigest()[:16]


def checksum(problems: list[str]) -> str:
    """Known by the texts alone: order and white space do not count."""
    texts = sorted(" ".join(problem.split()) for problem in problems)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _check(found: Problems, benchmark: Benchmark, path: str) -> None:
    if len(found.rows) != benchmark.rows:
        raise ValueError(f"'{path}' has {len(found.rows)} problems, and {found.name} has {benchmark.rows}.")
    if benchmark.checksum not in (None, found.checksum):
        raise ValueError(
            f"The problems of '{path}' have the checksum {found.checksum}, and those of {found.name} "
            f"{benchmark.checksum}: it is another edition. Evaluate it under a name of its own, as a file."
        )
