"""Samples and judges a benchmark, and can be killed at any moment.

Samples are dealt into batches by a plan that depends on the benchmark and the settings alone. A run that goes on, or
one of several shards, works through the same batches, so its samples are those of an uninterrupted run to the bit.
While one batch is judged and written, the next is sampled.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from ..data.prompts import control_markers, make_prompt, prompt_text
from ..rewards import countdown
from ..rewards.answers import extract
from ..rewards.math import verdicts
from .backends import Backend, Request, Sampling
from .benchmarks import Problems
from .pass_at_k import rate_interval
from .records import Records, read_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Task:
    """One completion that is wanted of a problem."""

    problem: int
    sample: int


@dataclass
class Judge:
    """
    Extracts and judges answers. The verdict on a pair of gold and answer is computed once.

    Args:
        task (`str`):
            `"math"` or `"countdown"`.
    """

    task: str
    known: dict[tuple, str] = field(default_factory=dict)

    def __call__(self, rows: list[dict[str, Any]], texts: list[str]) -> list[tuple[str | None, str]]:
        """
        Judges completions.

        Args:
            rows (`list[dict]`):
                The problem of each.
            texts (`list[str]`):
                The completions.

        Returns:
            `list[tuple[str | None, str]]`: of each its answer, `None` where there is none, and the verdict: a name of
            [`~sage_trl.rewards.pool.Verdict`] in lower case.
        """
        if self.task == "countdown":
            answers = [countdown.extract_answer(text) or None for text in texts]
            right = [
                countdown.is_correct(t, row["numbers"], row["target"]) for t, row in zip(texts, rows, strict=True)
            ]
            return [(answer, "right" if each else "wrong") for answer, each in zip(answers, right, strict=True)]
        answers = [extract(text) for text in texts]
        keys = [(row["answer"], answer) for row, answer in zip(rows, answers, strict=True)]
        # The first completion of each new pair stands for all of them
        new = {key: position for position, key in reversed(list(enumerate(keys))) if key not in self.known}
        found = verdicts([key[0] for key in new], [texts[position] for position in new.values()])
        self.known |= {key: verdict.name.lower() for key, verdict in zip(new, found, strict=True)}
        return [(answer, self.known[key]) for answer, key in zip(answers, keys, strict=True)]


def plan(lengths: list[int], num_samples: int, batch_size: int, shard: tuple[int, int]) -> Iterator[list[Task]]:
    """
    The batches of a shard: prompts of like length together. The longest come first, so that memory runs out at once,
    and the others in an order that length has no part in: it goes with how hard problems are, and what has been solved
    so far is shown.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    tasks = [Task(index, sample) for index in order for sample in range(num_samples)]
    batches = [tasks[start : start + batch_size] for start in range(0, len(tasks), batch_size)]
    mixed = np.random.default_rng(0).permutation(len(batches) - 1) + 1
    batches = [batches[0], *(batches[index] for index in mixed)]
    yield from batches[shard[0] :: shard[1]]


def encode_prompts(
    problems: Problems,
    tokenizer: "PreTrainedTokenizerBase",
    prompt_format: str,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[tuple[int, ...]]:
    """Token ids of each problem's prompt, as training has them."""
    markers = control_markers(tokenizer, prompt_format)
    messages = [row.get("prompt") or make_prompt(row["problem"], prompt_format, markers) for row in problems.rows]
    texts = [prompt_text(each, tokenizer, chat_template_kwargs) for each in messages]
    return [tuple(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def place_of(seed: int, problem_id: str, sample: int) -> tuple[int, ...]:
    """What a sample's randomness is derived from: nothing of how the run is split or in which order it goes."""
    return (seed, int.from_bytes(hashlib.sha256(problem_id.encode()).digest()[:8], "big"), sample)


def run_benchmark(
    problems: Problems,
    prompt_ids: list[tuple[int, ...]],
    backend: Backend,
    tokenizer: "PreTrainedTokenizerBase",
    records: Records,
    sampling: Sampling,
    num_samples: int,
    seed: int = 0,
    batch_size: int = 256,
    shard: tuple[int, int] = (0, 1),
    planned_for: int = 1,
    keep_text: bool = False,
    progress: Callable[..., tqdm] = tqdm,
) -> None:
    """
    Samples and judges what the records lack.

    Args:
        problems ([`~sage_trl.evaluation.benchmarks.Problems`]):
            The benchmark.
        prompt_ids (`list[tuple[int, ...]]`):
            Tokens of each problem's prompt.
        backend ([`~sage_trl.evaluation.backends.Backend`]):
            The engine.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        records ([`~sage_trl.evaluation.records.Records`]):
            Where completions are kept.
        sampling ([`~sage_trl.evaluation.backends.Sampling`]):
            How they are sampled.
        num_samples (`int`):
            Completions of each problem.
        seed (`int`, *optional*, defaults to `0`):
            Seed.
        batch_size (`int`, *optional*, defaults to `256`):
            Completions in a batch.
        shard (`tuple[int, int]`, *optional*, defaults to `(0, 1)`):
            Number of this shard and how many there are.
        planned_for (`int`, *optional*, defaults to `1`):
            How many shards the batches are small enough for.
        keep_text (`bool`, *optional*, defaults to `False`):
            Whether records hold the completions' texts.
        progress (`Callable`, *optional*):
            Makes the progress bar.
    """
    index_of = {row["id"]: index for index, row in enumerate(problems.rows)}
    done: set[tuple[int, int]] = set()
    correct = np.zeros(len(problems.rows), dtype=int)
    counted = np.zeros(len(problems.rows), dtype=int)

    def note(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            index = index_of[row["problem"]]
            done.add((index, row["sample"]))
            counted[index] += 1
            correct[index] += row["verdict"] == "right"

    def rates() -> np.ndarray:
        return correct[counted == num_samples] / num_samples

    note([row for row in records if row["sample"] < num_samples])
    judge = Judge(problems.task)

    def finish(tasks: list[Task], completions: list[list[int]]) -> list[dict[str, Any]]:
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        judged = judge([problems.rows[task.problem] for task in tasks], texts)
        rows = []
        for task, ids, text, (answer, verdict) in zip(tasks, completions, texts, judged, strict=True):
            row = {"problem": problems.rows[task.problem]["id"], "sample": task.sample, "tokens": len(ids)}
            row |= {"finish": "stop" if ids and ids[-1] in backend.ends else "length"}
            row |= {"answer": answer, "verdict": verdict}
            kept = (
                {"text": text} if keep_text else {"sha256": hashlib.sha256(text.encode(errors="replace")).hexdigest()}
            )
            rows.append(row | kept)
        records.append(rows)
        return rows

    batch_size = min(batch_size, -(-len(prompt_ids) * num_samples // planned_for))
    planned = list(plan([len(ids) for ids in prompt_ids], num_samples, batch_size, shard))
    batches = [
        (batch, missing)
        for batch in planned
        if (missing := [task for task in batch if (task.problem, task.sample) not in done])
    ]
    began, tokens = time.monotonic(), 0
    total = sum(map(len, planned))
    ready = total - sum(len(missing) for _, missing in batches)
    bar = progress(total=total, initial=ready, desc=problems.name, unit="completion", unit_scale=True)
    with bar, ThreadPoolExecutor(max_workers=1) as background:
        waiting = None
        for batch, missing in batches:
            # All of a batch is sampled again where some is missing: its shape is part of how a model rounds
            requests = [
                Request(prompt_ids[task.problem], place_of(seed, problems.rows[task.problem]["id"], task.sample))
                for task in batch
            ]
            sampled = dict(zip(batch, backend.generate(requests, bar.update), strict=True))
            tokens += sum(len(ids) for ids in sampled.values())
            if waiting is not None:
                note(waiting.result())
            waiting = background.submit(finish, missing, [sampled[task] for task in missing])
            # What a batch reported may be less, or more where it was begun again
            ready += len(missing)
            bar.update(ready - bar.n)
            bar.set_postfix_str(_so_far(rates(), len(problems.rows), tokens / (time.monotonic() - began)))
        if waiting is not None:
            note(waiting.result())
        bar.set_postfix_str(_so_far(rates(), len(problems.rows), tokens / max(1e-9, time.monotonic() - began)))


def rescore(problems: Problems, folder: Path) -> None:
    """
    Judges the texts that were kept again, and replaces the records at once when all are judged.

    Args:
        problems ([`~sage_trl.evaluation.benchmarks.Problems`]):
            The benchmark.
        folder (`Path`):
            Folder of its records.

    Raises:
        [`ValueError`]: there are no records, or they hold no texts.
    """
    rows, by_id = list(read_records(folder)), {row["id"]: row for row in problems.rows}
    if not rows or any("text" not in row for row in rows):
        raise ValueError(
            f"`rescore` needs the texts of '{folder}': evaluate with `keep_text` set to true, in a new folder."
        )
    judged = Judge(problems.task)([by_id[row["problem"]] for row in rows], [row["text"] for row in rows])
    old = list(folder.glob("*.jsonl.gz"))
    again = Records(folder / "again")
    again.append([row | {"answer": a, "verdict": v} for row, (a, v) in zip(rows, judged, strict=True)])
    again.path.replace(folder / again.path.name)
    again.folder.rmdir()
    for path in old:
        if path.name != again.path.name:
            path.unlink()


def _so_far(rates: np.ndarray, num_problems: int, speed: float) -> str:
    """Pass@1 of the problems that are done, and how sure that is for all of them."""
    said = f"{len(rates)} of {num_problems} problems, {speed:,.0f} tokens/s"
    if not len(rates):
        return said
    low, high = rate_interval(rates, num_resamples=200)
    return f"{said}, pass@1 {100 * rates.mean():.1f} % ({100 * low:.1f} to {100 * high:.1f})"
