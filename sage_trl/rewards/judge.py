r"""Whether two answers are equal. Runs in the pool's workers: nothing here has a limit of its own in time.

math-verify (`parse`, `verify`) reads LaTeX and compares what is left at the end. Around it is done here

- structure, on the text (`structure.py`): lists and sets, tuples and intervals, unions, inequalities, equations,
  matrices, ratios and times, numbers in a base. `(1,2)` differs from `[1,2]`, and `x > 2` is `(2,\infty)`;
- values (`values.py`): rational constants are compared exactly, others to as many digits as their difference needs,
  and expressions at points that depend on the names of their symbols. Two that agree at all of them are equal;
  `simplify` is not needed, and no difference is too small to count, as in 1/2004! against 1/2006!;
- size: what would have more digits than `MAX_LOG10` is not computed.
"""

import re
from fractions import Fraction

import sympy
from math_verify import verify

from .numbers import numbers_equal, read_number
from .spelling import ONE_LETTER_UNITS, Answer, balanced, choice, key, normalise, units_differ, words
from .structure import (
    NAME,
    RELATION,
    VARIABLE,
    Interval,
    bare,
    based,
    bracket,
    elements,
    intervals,
    leaves,
    matrix,
    may_name,
    names_of,
    sides_of,
)
from .values import ENOUGH_POINTS, POINTS, TooLarge, log10, near, plain, read, value, values_agree

MAX_PARTS = 60

# What may be an interval or a union of some
LINE_LIKE = re.compile(rf"{RELATION.pattern}|\\cup|\\setminus|\\backslash|\\ne(?![A-Za-z])|\\mathbb\{{R\}}")
TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")
LETTER_UNIT = re.compile(rf"\s?[{''.join(sorted(ONE_LETTER_UNITS))}]$")
POINT = re.compile(r"^[A-Z]\s?(?=\()")


def judge(gold: str, answer: str | None) -> bool | None:
    """
    Tells whether an answer equals the gold.

    Args:
        gold (`str`):
            Gold as it was given.
        answer (`str` or `None`):
            The answer as [`~sage_trl.rewards.answers.extract`] found it; `None` for none.

    Returns:
        `bool` or `None`: `None` if the gold cannot be read.
    """
    gold = normalise(gold)
    if not can_read(gold.text):
        return None
    return answer is not None and _is_equal(gold, normalise(answer))


def _is_equal(gold: Answer, answer: Answer) -> bool:
    if gold.unit and not answer.unit and (letter := LETTER_UNIT.search(answer.text)):
        answer = Answer(answer.text[: letter.start()], letter.group().strip())
    if units_differ(gold.unit, answer.unit):
        return False
    try:
        return equal(gold.text, answer.text)
    except (TooLarge, RecursionError, MemoryError):
        return False


def can_read(gold: str) -> bool:
    r"""
    Whether a normalised gold says something: each part is a number, a text or LaTeX that math-verify can parse, or at
    least whole LaTeX, as `GL_2(\mathbb{R})` is, of which only the same spelling will be accepted.
    """
    if not gold or not balanced(gold) or gold.count("\\begin") != gold.count("\\end"):
        return False
    known = (
        read_number(leaf) is not None or words(leaf) is not None or based(leaf) or read(leaf) is not None
        for leaf in leaves(gold)
    )
    return all(known) or re.search(r"\w", re.sub(r"\\(?:begin|end|left|right)(?![A-Za-z])", "", gold)) is not None


def equal(gold: str, answer: str) -> bool:
    """Whether two normalised answers are equal, part by part."""
    if key(gold) == key(answer):
        return True
    letters = choice(gold), choice(answer) or (choice(answer.upper()) if len(answer) == 1 else None)
    if None not in letters:
        return letters[0] == letters[1]
    numbers = read_number(gold), read_number(answer)
    if None not in numbers:
        return numbers_equal(*numbers)
    if numbers != (None, None) and (letter := LETTER_UNIT.search(answer if numbers[0] else gold)):
        # Beside a plain number 5 m is no product
        number = read_number(letter.string[: letter.start()])
        if number is not None:
            return numbers_equal(numbers[0] or number, numbers[1] or number)
    if words(gold) is not None or words(answer) is not None:
        return words(gold) == words(answer)
    if any(LINE_LIKE.search(text) for text in (gold, answer)):
        pieces = intervals(gold), intervals(answer)
        if None not in pieces:
            return _cover(*pieces, _intervals_equal)
    ours, theirs = elements(gold), elements(answer)
    if max(len(ours), len(theirs)) > MAX_PARTS:
        return False
    names, their_names = names_of(ours), names_of(theirs)
    if names is not None and their_names is not None:
        return names.keys() == their_names.keys() and all(equal(names[name], their_names[name]) for name in names)
    if len(ours) == len(theirs) == 1 and names is None and their_names is None:
        return _single(ours[0], theirs[0])
    # A pair whose parentheses were left out, or a list in parentheses; a set is neither
    ordered = bracket(ours[0]) if len(ours) == 1 else None
    listed = bracket(theirs[0]) if len(theirs) == 1 else None
    if ordered and ordered[:2] == ("(", ")") and "\\{" not in answer:
        if their_names is not None:
            theirs = [their_names[name] for name in sorted(their_names)]
        return len(ordered[2]) == len(theirs) and all(map(equal, ordered[2], theirs))
    if listed and listed[:2] == ("(", ")") and "\\{" not in gold:
        if names is not None:
            ours = [names[name] for name in sorted(names)]
            return len(ours) == len(listed[2]) and all(map(equal, ours, listed[2]))
        theirs = listed[2]
    return _cover(ours, theirs, equal) if "\\{" in gold + answer else _match(ours, theirs)


def _match(ours: list[str], theirs: list[str]) -> bool:
    """Whether two lists have the same elements, each as often."""
    if len(ours) != len(theirs):
        return False
    rest = list(theirs)
    for our in ours:
        found = next((index for index, their in enumerate(rest) if equal(our, their)), None)
        if found is None:
            return False
        rest.pop(found)
    return True


def _cover(ours: list, theirs: list, same) -> bool:
    """Whether each of ours is among theirs and the other way round."""
    found = [[same(our, their) for their in theirs] for our in ours]
    return all(map(any, found)) and all(map(any, zip(*found, strict=True)))


def _single(gold: str, answer: str) -> bool:
    sides, their_sides = sides_of(gold), sides_of(answer)
    if sides and their_sides:
        if may_name(sides[0]) and key(sides[0]) == key(their_sides[0]):
            return equal(sides[-1], their_sides[-1])
        return len(sides) == len(their_sides) == 2 and _equations_equal(sides, their_sides)
    if their_sides:  # x = 5 for 5
        return _names_value(their_sides, gold)
    if sides:  # the line x + y = 5 is not its right side
        return NAME.fullmatch(bare(sides[0])) is not None and _names_value(sides, answer)
    brackets = bracket(gold), bracket(POINT.sub("", answer))
    if None not in brackets:
        (*kind, ours), (*their_kind, theirs) = brackets
        return kind == their_kind and len(ours) == len(theirs) and all(map(equal, ours, theirs))
    rows, their_rows = matrix(gold), matrix(answer)
    if rows and their_rows:
        shapes = [len(row) for row in rows], [len(row) for row in their_rows]
        return shapes[0] == shapes[1] and all(map(equal, sum(rows, []), sum(their_rows, [])))
    if ":" in gold or ":" in answer:
        return _ratios_equal(gold, answer)
    if based(gold) or based(answer):
        return _bases_equal(gold, answer)
    return _expressions_equal(gold, answer)


def _intervals_equal(ours: Interval, theirs: Interval) -> bool:
    names = [key(name) for name in (ours.name, theirs.name) if name is not None]
    if len(set(names)) > 1 or (len(names) == 1 and not VARIABLE.fullmatch(names[0])):
        return False
    if (ours.opening, ours.closing) != (theirs.opening, theirs.closing):
        return False
    return equal(ours.low, theirs.low) and equal(ours.high, theirs.high)


def _is_zero(text: str) -> bool:
    number = read_number(text)
    return number is not None and number.value == 0


def _names_value(sides: list[str], value: str) -> bool:
    """Whether an equation says no more than that what was asked for has this value."""
    first, *others = sides
    if read_number(first) is not None and may_name(others[-1]):  # 5 = x
        first, *others = reversed(sides)
    if not all(equal(value, other) for other in others):
        return False
    if NAME.fullmatch(bare(first)) and may_name(first):
        return True
    if not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", first)):  # 2 + 3 = 5
        return equal(value, first)
    # x + y = 5 may name what was asked for; x + y = 0 is an equation
    return may_name(first) and not _is_zero(value)


def _ratios_equal(gold: str, answer: str) -> bool:
    ours, theirs = gold.split(":"), answer.split(":")
    if len(ours) == len(theirs) and all(map(equal, ours, theirs)):
        return True
    if TIME.fullmatch(gold) or TIME.fullmatch(answer) or len(ours) > 3 or len(theirs) > 3:
        return False
    if len(ours) == len(theirs) == 3:
        return all(_ratios_equal(*(f"{side[0]}:{side[index]}" for side in (ours, theirs))) for index in (1, 2))
    quotients = [parts[0] if len(parts) == 1 else rf"\frac{{{parts[0]}}}{{{parts[1]}}}" for parts in (ours, theirs)]
    return len(ours) < 3 and len(theirs) < 3 and equal(*quotients)


def _bases_equal(gold: str, answer: str) -> bool:
    """By value where both name their base, or the gold does not; by digits where only the answer does not."""
    number, their_number = based(gold), based(answer)
    if number and not their_number:  # the question named the base
        return number[0] == answer.strip()
    plain_number = read_number(gold)
    value = Fraction(int(*number)) if number else plain_number and plain_number.value
    return value is not None and value == int(*their_number)


def _expressions_equal(gold: str, answer: str) -> bool:
    numbers = read_number(gold), read_number(answer)
    # A number is never left to the parser, to which 3e8 is three times Euler's number times eight
    ours, theirs = (
        read(text) if number is None else sympy.Rational(str(number.value / (100 if number.percent else 1)))
        for text, number in zip((gold, answer), numbers, strict=True)
    )
    if ours is None or theirs is None:
        return False
    if isinstance(ours, sympy.Expr) != isinstance(theirs, sympy.Expr):  # a relation, a set, a matrix
        return False
    for side in (ours, theirs):
        log10(side)
    if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
        agree = values_agree(ours, theirs, *numbers)
        if agree is not None:
            return agree
    return verify(ours, theirs, timeout_seconds=None)


def _equations_equal(sides: tuple[str, str], their_sides: tuple[str, str]) -> bool:
    """Whether two equations are multiples of each other, or have the same solutions for each of their symbols."""
    read_sides = [read(side) for side in (*sides, *their_sides)]
    if not all(isinstance(side, sympy.Expr) for side in read_sides):
        return False
    for side in read_sides:
        log10(side)
    left, right, their_left, their_right = map(plain, read_sides)
    ours, theirs = left - right, their_left - their_right
    pairs = [(value(ours, index), value(theirs, index)) for index in range(POINTS)]
    pairs = [pair for pair in pairs if None not in pair]
    if len(pairs) < ENOUGH_POINTS or all(pair[1] == 0 for pair in pairs) or all(pair[0] == 0 for pair in pairs):
        return False
    (our, their), *others = pairs
    if all(near(our * other_their, their * other_our) for other_our, other_their in others):
        return True
    symbols = sorted(ours.free_symbols, key=str)
    if {str(symbol) for symbol in symbols} != {str(symbol) for symbol in theirs.free_symbols}:
        return False
    if len(symbols) == 1:  # x^3 = 1 is not solved yet
        return False
    agreed = False
    for name in map(str, symbols):
        solutions = [
            sympy.solve(side, next(symbol for symbol in side.free_symbols if str(symbol) == name))
            for side in (ours, theirs)
        ]
        if all(solutions):
            agreed = True
            if not _cover(*solutions, lambda first, second: values_agree(first, second) is True):
                return False
    return agreed
