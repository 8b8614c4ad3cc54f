"""Countdown: reach a target from given numbers with + - * /, using each given number exactly once.

A problem is born with its solution: draw the numbers, combine them two at a time by random operators until one value
is left, and call that value the target. Every problem therefore has an answer, and the answers cover all shapes of
expression. A hash of the problem alone decides whether it belongs to "train" or "test", so no two calls can leak a
test problem into training, whatever their seeds.

    python -c "from sage_trl.data.countdown import make_countdown; print(make_countdown(3)[0])"
"""

import hashlib
import random
from collections.abc import Iterator
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset


SYSTEM_PROMPT = (
    "Reach the target with + - * / and parentheses, using each number exactly once. "
    "End with the expression alone inside <answer> </answer>."
)
TEST_SHARE = 10  # one problem in ten belongs to "test"
MAX_STALLED_DRAWS = 50_000  # draws in a row without a new problem after which the space counts as exhausted

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
ATOM = 3  # precedence of a lone number

Term = tuple[int, str, int]  # value, text, precedence of its outermost operator


def make_countdown(
    num_rows: int,
    seed: int = 0,
    split: str = "train",
    min_numbers: int = 3,
    max_numbers: int = 5,
    max_number: int = 50,
    max_target: int = 99,
) -> "Dataset":
    """
    Generates countdown problems, each with one known solution and none twice.

    Args:
        num_rows (`int`):
            How many problems to generate.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the generator. The same arguments give the same rows on every machine.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"test"`. The two never share a problem, whatever their seeds.
        min_numbers (`int`, *optional*, defaults to `3`):
            Fewest given numbers in a problem.
        max_numbers (`int`, *optional*, defaults to `5`):
            Most given numbers in a problem.
        max_number (`int`, *optional*, defaults to `50`):
            Given numbers are drawn from 1 to this one.
        max_target (`int`, *optional*, defaults to `99`):
            Targets lie between 1 and this one.

    Returns:
        `Dataset`: with columns `prompt` (a system and a user message), `answer` (a solution), `numbers` (the given
        numbers, in the order shown) and `target`.
    """
    from datasets import Dataset

    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}; use 'train' or 'test'")
    if not 2 <= min_numbers <= max_numbers:
        raise ValueError(
            f"min_numbers is {min_numbers} and max_numbers is {max_numbers}; use 2 <= min_numbers <= max_numbers"
        )
    for name, value in (("num_rows", num_rows), ("max_number", max_number), ("max_target", max_target)):
        if value < 1:
            raise ValueError(f"{name} is {value}; use at least 1")
    # Bounds the number of problems from above, so that a hopeless request fails at once rather than after a search.
    ceiling = max_target * sum(comb(max_number + n - 1, n) for n in range(min_numbers, max_numbers + 1))
    if num_rows > ceiling:
        raise _too_many_rows(num_rows, f"fewer than {ceiling + 1}", split)

    rows: list[dict] = []
    seen: set[str] = set()
    stalled = 0
    for numbers, target, answer in _draw_problems(seed, min_numbers, max_numbers, max_number):
        if len(rows) == num_rows:
            break
        if stalled == MAX_STALLED_DRAWS:
            raise _too_many_rows(num_rows, f"about {len(rows)}", split)
        stalled += 1
        key = problem_key(numbers, target)
        if target > max_target or key in seen or split_of(key) != split:
            continue
        stalled = 0
        seen.add(key)
        rows.append({"prompt": make_prompt(numbers, target), "answer": answer, "numbers": numbers, "target": target})
    return Dataset.from_list(rows)


def make_prompt(numbers: list[int], target: int) -> list[dict[str, str]]:
    """
    Writes a problem as messages. The user message is the bare statement, so that a tiny model needs few words; the
    system message tells the rules to a model that has never seen the task.
    """
    statement = f"Numbers: {' '.join(map(str, numbers))} Target: {target}"
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": statement}]


def problem_key(numbers: list[int], target: int) -> str:
    """The identity of a problem: the order in which the numbers are shown does not matter."""
    return f"{' '.join(map(str, sorted(numbers)))} -> {target}"


def split_of(key: str) -> str:
    """The split a problem belongs to, from its key alone."""
    digest = hashlib.sha256(key.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_SHARE == 0 else "train"


def _draw_problems(
    seed: int, min_numbers: int, max_numbers: int, max_number: int
) -> Iterator[tuple[list[int], int, str]]:
    rng = random.Random(seed)
    while True:
        numbers = [rng.randint(1, max_number) for _ in range(rng.randint(min_numbers, max_numbers))]
        terms: list[Term] = [(number, str(number), ATOM) for number in numbers]
        while len(terms) > 1:
            terms = _combine_two(terms, rng)
        target, answer, _ = terms[0]
        yield numbers, target, answer


def _combine_two(terms: list[Term], rng: random.Random) -> list[Term]:
    """
    Replaces two random terms by their sum, difference, product or quotient. The operator is drawn before the pair:
    drawn after it, division would almost never appear, as few pairs divide exactly.
    """
    pairs = [(i, j) for i in range(len(terms)) for j in range(len(terms)) if i != j]
    for operator in rng.sample("+-*/", 4):
        allowed = [(i, j) for i, j in pairs if _stays_natural(terms[i][0], operator, terms[j][0])]
        if allowed:
            i, j = rng.choice(allowed)
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            return [*rest, _apply(terms[i], operator, terms[j])]
    raise AssertionError("unreachable: a sum is always allowed")


def _stays_natural(left: int, operator: str, right: int) -> bool:
    """Whether the result is a positive integer, given positive integers. Zero would make dull solutions (0 * 7)."""
    if operator == "-":
        return left > right
    return operator != "/" or left % right == 0


def _apply(left: Term, operator: str, right: Term) -> Term:
    values = {"+": left[0] + right[0], "-": left[0] - right[0], "*": left[0] * right[0], "/": left[0] // right[0]}
    level = PRECEDENCE[operator]
    left_text = f"({left[1]})" if left[2] < level else left[1]
    # a + (b - c) reads the same without parentheses, a - (b - c) does not; likewise for * and /.
    right_needs_them = right[2] < level or (right[2] == level and operator in "-/")
    right_text = f"({right[1]})" if right_needs_them else right[1]
    return values[operator], f"{left_text} {operator} {right_text}", level


def _too_many_rows(num_rows: int, available: str, split: str) -> ValueError:
    return ValueError(
        f"num_rows is {num_rows}, but the {split!r} split has {available} problems in this range; "
        "lower num_rows, or raise max_number, max_target or max_numbers"
    )
