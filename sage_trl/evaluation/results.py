"""What the records of a benchmark say, every figure with its interval."""

import json
import platform
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..rewards.numbers import read_number
from ..rewards.spelling import normalise
from .benchmarks import Problems
from .intervals import hierarchical_interval, sample_interval
from .majority import majority_at_k
from .pass_at_k import bootstrap_interval, pass_at_k, rate_interval
from .records import read_records

RESULTS = "results.json"
FEW = 10  # problems, below which a bootstrap over them covers far less than it says
PACKAGES = ("torch", "transformers", "trl", "peft", "math-verify")
FAILED = ("timeout", "lost", "failed", "unreadable")


@dataclass(frozen=True)
class Collected:
    """
    The records of a benchmark.

    Args:
        problems ([`~sage_trl.evaluation.benchmarks.Problems`]):
            The benchmark.
        num_samples (`int`):
            Completions of each problem.
        table (`dict[tuple[int, int], dict]`):
            Record by the numbers of problem and sample.
    """

    problems: Problems
    num_samples: int
    table: dict[tuple[int, int], dict]

    @property
    def missing(self) -> int:
        """How many completions the records lack."""
        return len(self.problems.rows) * self.num_samples - len(self.table)


def collect(problems: Problems, folder: str | Path, num_samples: int) -> Collected:
    """Reads a benchmark's records. Raises [`ValueError`] if some are of problems that it does not have."""
    index_of = {row["id"]: index for index, row in enumerate(problems.rows)}
    table = {}
    for row in read_records(folder):
        if row["problem"] not in index_of:
            raise ValueError(f"'{folder}' has records of a problem '{row['problem']}' that {problems.name} has not.")
        if row["sample"] < num_samples:
            table[index_of[row["problem"]], row["sample"]] = row
    return Collected(problems, num_samples, table)


def summarize(collected: Collected, ks: list[int]) -> dict[str, Any]:
    """
    Computes everything about a benchmark from its records.

    Args:
        collected ([`Collected`]):
            The records.
        ks (`list[int]`):
            Numbers of tries.

    Returns:
        `dict`: the figures; a mean over problems comes with `problems`, `samples` and `hierarchical` intervals as
        [`~sage_trl.evaluation.intervals`] explains them.

    Raises:
        [`ValueError`]: records are missing.
    """
    problems, num_samples, table = collected.problems, collected.num_samples, collected.table
    if collected.missing:
        raise ValueError(
            f"'{problems.name}' lacks {collected.missing:,} completions. Run the rest, or the other shards."
        )
    rows = [[table[index, sample] for sample in range(num_samples)] for index in range(len(problems.rows))]
    correct = np.array([sum(row["verdict"] == "right" for row in each) for each in rows])
    answers = [meanings(each, problems.task) for each in rows]
    votes = [_votes(*each) for each in zip(answers, rows, strict=True)]
    majorities = np.array([majority_at_k(*each, ks, seed=index) for index, each in enumerate(votes)])
    every = [row for each in rows for row in each]
    return {
        "benchmark": problems.name,
        "problems": len(problems.rows),
        "samples": num_samples,
        "checksum": problems.checksum,
        "questions": problems.questions,
        "golds": problems.golds,
        "pass_at_k": {str(k): with_intervals(num_samples, correct, k) for k in ks},
        "majority_at_k": {str(k): _mean(column) for k, column in zip(ks, majorities.T, strict=True)},
        "length": _mean([np.mean([row["tokens"] for row in each]) for each in rows]),
        "truncated": _mean([np.mean([row["finish"] == "length" for row in each]) for each in rows]),
        "answer_found": _mean([np.mean([row["answer"] is not None for row in each]) for each in rows]),
        "distinct_answers": _mean([len(set(each) - {None}) for each in answers]),
        "answer_entropy": _mean([_entropy(each) for each in answers]),
        "verdicts": dict(sorted(Counter(row["verdict"] for row in every).items())),
        "correct": {row["id"]: int(count) for row, count in zip(problems.rows, correct, strict=True)},
    }


def with_intervals(n: int, correct: np.ndarray, k: int) -> dict[str, Any]:
    """Pass@k from the counts of correct samples of each problem, with its three intervals."""
    values = pass_at_k(n, correct, k)
    return {
        "value": float(values.mean()),
        "problems": list(rate_interval(values)),
        "samples": list(sample_interval(n, correct, k)),
        "hierarchical": list(hierarchical_interval(n, correct, k)),
    }


def _mean(values) -> dict[str, Any]:
    values = np.asarray(values, dtype=float)
    return {"value": float(values.mean()), "problems": list(bootstrap_interval(values))}


@lru_cache(maxsize=2**16)
def _same(answer: str) -> Any:
    """What equal answers share: the value of a plain number, else the spelling that judging brings them to."""
    normalised = normalise(answer)
    number = read_number(normalised.text)
    return normalised if number is None else (number.value, number.percent, normalised.unit)


def meanings(rows: list[dict], task: str) -> list[Any]:
    """
    What each sample of a problem answers: equal answers are one, however they are written. All that are right are
    equal; two wrong ones are where they are the same number or spelling. An expression of countdown is its own.

    Args:
        rows (`list[dict]`):
            The problem's records.
        task (`str`):
            `"math"` or `"countdown"`.

    Returns:
        `list`: of each sample something hashable, `None` where it has no answer.
    """
    if task != "math":
        return [row["answer"] for row in rows]

    def meaning(row: dict) -> Any:
        if row["verdict"] == "right" or row["answer"] is None:
            return "right" if row["verdict"] == "right" else None
        # What was too much for judging is not read here either
        return _same(row["answer"]) if row["verdict"] == "wrong" else row["answer"]

    return [meaning(row) for row in rows]


def _votes(found: list[Any], rows: list[dict]) -> tuple[list[int], list[bool]]:
    """How many samples give each answer, and which answers are right. A sample without an answer votes for itself."""
    votes = [("none", i) if each is None else each for i, each in enumerate(found)]
    right = {vote for vote, row in zip(votes, rows, strict=True) if row["verdict"] == "right"}
    counts = Counter(votes)
    return list(counts.values()), [vote in right for vote in counts]


def _entropy(found: list[Any]) -> float:
    """Of the distribution of a problem's answers, in nats; no answer is one of them."""
    counts = np.array(list(Counter(found).values()))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def write_results(folder: str | Path, settings: dict[str, Any], benchmarks: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Writes `results.json`: settings, versions, and the figures of each benchmark. Benchmarks that an earlier command
    left there are kept, since a folder holds samples of one model made in one way.
    """
    path = Path(folder) / RESULTS
    earlier = json.loads(path.read_text(encoding="utf-8"))["benchmarks"] if path.is_file() else {}
    versions = {"python": platform.python_version(), "sage-trl": __version__}
    versions |= {name: version(name) for name in PACKAGES}
    results = {
        "settings": settings,
        "versions": versions,
        "benchmarks": earlier | {each["benchmark"]: each for each in benchmarks},
    }
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return results


def percent_cell(figure: dict[str, Any]) -> str:
    """A figure in percent with its interval over problems."""
    low, high = figure["problems"]
    return f"{100 * figure['value']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def counted(number: int, what: str) -> str:
    """A number of something: `1 problem`, `6 problems`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def markdown_table(results: dict[str, Any], ks: list[int]) -> str:
    """Pass@k of each benchmark in percent, with its 95 % interval over problems."""
    lines = ["| benchmark | " + " | ".join(f"pass@{k}" for k in ks) + " |", "| --- |" + " --- |" * len(ks)]
    for name, found in results["benchmarks"].items():
        shown = found["pass_at_k"]
        cells = [percent_cell(shown[str(k)]) if str(k) in shown else "" for k in ks]
        lines.append(f"| {name}, {counted(found['problems'], 'problem')} x {found['samples']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def warnings_of(found: dict[str, Any]) -> list[str]:
    """What a reader of the figures should know, in words."""
    name, total = found["benchmark"], sum(found["verdicts"].values())
    said = []
    failed = {verdict: found["verdicts"][verdict] for verdict in FAILED if verdict in found["verdicts"]}
    if failed:
        counts = ", ".join(f"{count:,} {verdict}" for verdict, count in failed.items())
        said.append(f"{name}: {counts} of {total:,} completions could not be judged and count as wrong.")
    if found["problems"] < FEW:
        few = counted(found["problems"], "problem") + (" says" if found["problems"] == 1 else " say")
        said.append(f"{name}: {few} little about others; intervals are too narrow then.")
    if found["truncated"]["value"] > 0.05:
        share = 100 * found["truncated"]["value"]
        said.append(f"{name}: {share:.0f} % of the completions were cut off at the longest length allowed.")
    if found["answer_found"]["value"] < 0.5:
        said.append(f"{name}: only {100 * found['answer_found']['value']:.0f} % of the completions have an answer.")
    return said
