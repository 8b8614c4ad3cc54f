r"""The math reward: is a completion's final answer the gold?

math-verify reads LaTeX and compares expressions. What surrounds it is here and beside: `answers.py` finds the answer,
`spelling.py` brings it to one spelling, `structure.py` and `judge.py` compare part by part, `numbers.py` and
`values.py` compare values exactly, and `pool.py` keeps all that within a limit of time and memory.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from .answers import MAX_ANSWER, extract, final_answer
from .numbers import Number, numbers_equal, read_number
from .pool import Verdict, shared_pool
from .spelling import normalise, units_differ


def is_correct(gold: str, completion: str) -> bool | None:
    r"""
    Tells whether a completion ends with the right answer.

    Args:
        gold (`str`):
            The right answer, as bare LaTeX, with dollar signs, boxed, or at the end of a worked solution.
        completion (`str`):
            What the model wrote. Its last box counts; without a box its last `<answer>` or `<SOLUTION>` tag; without
            a tag what follows the last "answer is" or "answer:".

    Returns:
        `bool` or `None`: `None` only where the gold cannot be read. An answer that reaches the limit of time or of
        memory is wrong.

    Example:

    ```python
    >>> from sage_trl.rewards.math import is_correct

    >>> is_correct(r"\frac{1}{2}", r"So we get $\boxed{0.5}$.")
    True
    ```
    """
    return _as_bool(verdicts([gold], [completion])[0])


def math_reward(
    completions: list[str] | list[list[dict[str, str]]],
    answer: list[str] | None = None,
    solution: list[str] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs,
) -> list[float | None]:
    """
    Reward function that pays 1.0 for a right final answer and 0.0 for any other. The whole batch is judged at once, in
    worker processes.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages; of messages, the last one is read.
        answer (`list[str]`, *optional*):
            Right answer of each.
        solution (`list[str]`, *optional*):
            Solution of each that ends with the right answer; read where there is no `answer`.
        log_metric (`Callable`, *optional*):
            Given by the trainer. Called with `rewards/timeout_frac`, the share of completions that reached the limit
            of time (or whose worker died, which is how the limit of memory can end).
        **kwargs:
            Other dataset columns, ignored.

    Returns:
        `list[float]`: one reward per completion; `None`, which TRL leaves out, where the gold cannot be read.

    Raises:
        [`ValueError`]: if the dataset has neither column.
    """
    golds = answer if answer is not None else solution
    if golds is None:
        raise ValueError(
            "The math reward found neither an `answer` nor a `solution` column in the dataset. Rename the column that "
            "holds the right answers, or name it in the recipe: `answer_column`."
        )
    found = verdicts(golds, [_text(completion) for completion in completions])
    if log_metric is not None:
        ended = sum(verdict in (Verdict.TIMEOUT, Verdict.LOST) for verdict in found)
        log_metric("rewards/timeout_frac", ended / max(1, len(found)))
    judged = [_as_bool(verdict) for verdict in found]
    return [None if right is None else float(right) for right in judged]


def unreadable(golds: list[str]) -> list[int]:
    """
    Finds the golds that no answer could be compared with.

    Args:
        golds (`list[str]`):
            Right answers of a dataset.

    Returns:
        `list[int]`: their positions.
    """
    read = [_gold(gold) for gold in golds]
    asked = [position for position in range(len(read)) if _number(read[position]) is None]
    found = shared_pool().judge([(read[position], None) for position in asked])
    return [position for position, verdict in zip(asked, found, strict=True) if verdict is not Verdict.WRONG]


def verdicts(golds: list[str], completions: list[str]) -> list[Verdict]:
    """
    Judges a batch of completions.

    Args:
        golds (`list[str]`):
            Right answer of each.
        completions (`list[str]`):
            What the model wrote.

    Returns:
        `list[Verdict]`: one for each.
    """
    answers = [extract(completion) for completion in completions]
    answers = [answer if answer is not None and len(answer) <= MAX_ANSWER else None for answer in answers]
    golds = [_gold(gold) for gold in golds]
    found = [_quick_verdict(gold, mine) for gold, mine in zip(golds, answers, strict=True)]
    asked = [position for position, verdict in enumerate(found) if verdict is None]
    judged = shared_pool().judge([(golds[position], answers[position]) for position in asked])
    for position, verdict in zip(asked, judged, strict=True):
        found[position] = verdict
    return found


def _quick_verdict(gold: str, answer: str | None) -> Verdict | None:
    """The verdict where gold and answer are plain numbers, which needs no algebra and no worker."""
    number = _number(gold)
    if number is None:
        return None
    if answer is None:
        return Verdict.WRONG
    mine = _number(answer)
    if mine is None:
        return None
    right = not units_differ(number.unit, mine.unit) and numbers_equal(number.value, mine.value)
    return Verdict.RIGHT if right else Verdict.WRONG


class _Read(NamedTuple):
    value: Number
    unit: str


@lru_cache(maxsize=10_000)
def _number(text: str) -> _Read | None:
    text, unit = normalise(text)
    value = read_number(text)
    return None if value is None else _Read(value, unit)


def _gold(gold: str | float | None) -> str:
    if gold is None:
        return ""
    try:
        return final_answer(str(gold))
    except ValueError:  # an integer of more digits than Python writes out
        return ""


def _text(completion: str | list[dict[str, Any]] | None) -> str:
    """What a completion says: of messages the last one, of a message in parts the text ones, and "" of none."""
    while isinstance(completion, list):
        if completion and all(isinstance(part, dict) and "type" in part for part in completion):
            return "".join(part.get("text") or "" for part in completion)
        completion = completion[-1].get("content") if completion else ""
    return completion or ""


def _as_bool(verdict: Verdict) -> bool | None:
    return None if verdict is Verdict.UNREADABLE else verdict is Verdict.RIGHT
