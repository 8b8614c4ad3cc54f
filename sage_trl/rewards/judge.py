r"""Whether two answers are equal. Runs in the pool's workers: nothing here has a limit of its own in time.

math-verify (`parse`, `verify`) reads LaTeX and compares what is left at the end. Around it is done here

- structure, on the text: lists and sets, tuples and intervals, unions, inequalities, equations, matrices, ratios and
  times, numbers in a base. `(1,2)` stays different from `[1,2]`, and `x > 2` is `(2,\infty)`;
- values: constants are compared to 30 digits, relative to their size, and expressions at points that depend on the
  names of their symbols. Two expressions that agree at all of them are equal; `simplify` is not needed, and no
  difference is too small to count, as in 1/2004! against 1/2006!;
- size: what would have more digits than `MAX_LOG10` is not computed.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

import sympy
from math_verify import verify

from .answers import ONE_LETTER_UNITS, Answer, balanced, choice, key, normalise, units_differ, words
from .numbers import numbers_equal, read_number
from .values import ENOUGH_POINTS, POINTS, TooLarge, log10, near, plain, read, value, values_agree

MAX_PARTS = 60

RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
EQUALS = re.compile(r"(?<![<>!:])=(?!=)")
NAME = re.compile(r"[A-Za-z\\'()\s,|{}]*[A-Za-z][A-Za-z\\'()\s,|{}]*")
MEMBER = re.compile(r"\s*[A-Za-z](?:_\{?\w\}?)?\s*\\in(?![A-Za-z])\s*")
BASES = "two three four five six seven eight nine ten eleven twelve".split()
BASE = re.compile(rf"([0-9A-Z]+)\s?_\s?\{{?(?:\\text\{{)?\s*(\d{{1,2}}|{'|'.join(BASES)})\s*\}}?\}}?")
TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")
LETTER_UNIT = re.compile(rf"\s?[{''.join(sorted(ONE_LETTER_UNITS))}]$")
MATRIX = re.compile(r"\\begin\s?\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\s?\{\1\}", re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}


def judge(gold: str, answers: list[str]) -> bool | None:
    """
    Tells whether one of a completion's answers equals the gold.

    Args:
        gold (`str`):
            Gold as it was given.
        answers (`list[str]`):
            Answers as [`~sage_trl.rewards.answers.extract`] found them.

    Returns:
        `bool` or `None`: `None` if the gold cannot be read.
    """
    gold = normalise(gold)
    if not can_read(gold.text):
        return None
    return any(_is_equal(gold, normalise(answer)) for answer in answers)


def _is_equal(gold: Answer, answer: Answer) -> bool:
    if units_differ(gold.unit, answer.unit):
        return False
    try:
        return equal(gold.text, answer.text)
    except (TooLarge, RecursionError, MemoryError):
        return False


def can_read(gold: str) -> bool:
    """Whether every part of a normalised gold is a number, a text or LaTeX that math-verify can parse."""
    return (
        bool(gold)
        and balanced(gold)
        and all(
            read_number(leaf) is not None or words(leaf) is not None or BASE.fullmatch(leaf) or read(leaf) is not None
            for leaf in _leaves(gold)
        )
    )


def _leaves(text: str) -> Iterator[str]:
    parts = [side for side in EQUALS.split(text) if side.strip()]
    if len(parts) == 1:
        parts = RELATION.split(text)[::2] if RELATION.search(text) else _split(text, r"\\cup(?![A-Za-z])")
    if len(parts) == 1:
        parts = _elements(text)
    if len(parts) == 1 and (bracket := _bracket(text)):
        parts = bracket[2]
    if len(parts) == 1 and (rows := _matrix(text)):
        parts = [cell for row in rows for cell in row]
    if len(parts) == 1 and ":" in text:
        parts = text.split(":")
    if len(parts) == 1 and parts[0] == text:
        yield text.strip()
        return
    for part in parts:
        yield from _leaves(part)


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
        bare = read_number(letter.string[: letter.start()])
        if bare is not None:
            return numbers_equal(numbers[0] or bare, numbers[1] or bare)
    if words(gold) is not None or words(answer) is not None:
        return words(gold) == words(answer)
    if any(RELATION.search(text) or "\\cup" in text for text in (gold, answer)):
        pieces = _intervals(gold), _intervals(answer)
        if None not in pieces:
            return _cover(*pieces, _intervals_equal)
    ours, theirs = _elements(gold), _elements(answer)
    if max(len(ours), len(theirs)) > MAX_PARTS:
        return False
    if len(ours) == len(theirs) == 1:
        return _single(ours[0], theirs[0])
    # A pair whose parentheses were left out, or a list in parentheses; a set is neither
    ordered, listed = _bracket(ours[0]) if len(ours) == 1 else None, _bracket(theirs[0]) if len(theirs) == 1 else None
    if ordered and ordered[:2] == ("(", ")") and "\\{" not in answer:
        return len(ordered[2]) == len(theirs) and all(map(equal, ordered[2], theirs))
    if listed and listed[:2] == ("(", ")") and "\\{" not in gold:
        theirs = listed[2]
    return _cover(ours, theirs, equal)


def _cover(ours: list, theirs: list, same) -> bool:
    """Whether each of ours is among theirs and the other way round."""
    found = [[same(our, their) for their in theirs] for our in ours]
    return all(map(any, found)) and all(map(any, zip(*found, strict=True)))


def _single(gold: str, answer: str) -> bool:
    sides, their_sides = _sides(gold), _sides(answer)
    if sides and their_sides:
        if NAME.fullmatch(_bare(sides[0])) and key(sides[0]) == key(their_sides[0]):
            return equal(sides[1], their_sides[1])
        return _equations_equal(sides, their_sides)
    if their_sides:  # x = 5 for 5, and 5 = x
        if read_number(their_sides[0]) is not None and NAME.fullmatch(_bare(their_sides[1])):
            their_sides = their_sides[::-1]
        name = NAME.fullmatch(_bare(their_sides[0]))
        # x + y = 5 may name what was asked for; x + y = 0 is an equation
        return equal(gold, their_sides[1]) and bool(name or not _is_zero(their_sides[1]))
    if sides:
        return bool(NAME.fullmatch(_bare(sides[0]))) and equal(sides[1], answer)
    brackets = _bracket(gold), _bracket(answer)
    if None not in brackets:
        (*kind, ours), (*their_kind, theirs) = brackets
        return kind == their_kind and len(ours) == len(theirs) and all(map(equal, ours, theirs))
    rows, their_rows = _matrix(gold), _matrix(answer)
    if rows and their_rows:
        shapes = [len(row) for row in rows], [len(row) for row in their_rows]
        return shapes[0] == shapes[1] and all(map(equal, sum(rows, []), sum(their_rows, [])))
    if ":" in gold or ":" in answer:
        return _ratios_equal(gold, answer)
    if BASE.fullmatch(gold) or BASE.fullmatch(answer):
        return _bases_equal(gold, answer)
    return _expressions_equal(gold, answer)


def _split(text: str, separator: str) -> list[str]:
    """Splits at a separator that stands outside all brackets. A half-open interval closes with the other bracket."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"\\[{{}}]|[()\[\]{{}}]|\\begin|\\end|{separator}", text):
        token = match.group()
        if token in ("\\{", "\\begin") or token in PAIRS:
            depth += 1
        elif token in ("\\}", "\\end") or token in PAIRS.values():
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [part.strip() for part in [*parts, text[start:]] if part.strip()] or [text]


def _elements(text: str) -> list[str]:
    r"""Elements of a list or of a set; `\pm` makes two of one."""
    text = text.strip()
    text = text[member.end() :] if (member := MEMBER.match(text)) else text
    if read_number(text) is not None:
        return [text]
    if text.startswith("\\{") and text.endswith("\\}") and not re.search(r"\\mid|\||:", text):
        text = text[2:-2]
    return [sign for part in _split(text, "[,;]") for sign in _signs(part)]


def _signs(text: str) -> list[str]:
    if "\\pm" not in text and "\\mp" not in text:
        return [text]
    if "\\mp" in text:  # linked: the upper signs, then the lower ones
        upper = re.sub(r"\\mp\s?", "-", re.sub(r"\\pm\s?", "+", text))
        return [upper, re.sub(r"\\mp\s?", "+", re.sub(r"\\pm\s?", "-", text))]
    before, _, after = text.partition("\\pm")
    before, plus = before.rstrip(), "+" if re.search(r"[\w})\]]\s*$", before) else ""
    return [sign for rest in _signs(after.lstrip()) for sign in (f"{before}{plus}{rest}", f"{before}-{rest}")][:16]


def _bracket(text: str) -> tuple[str, str, list[str]] | None:
    """`("(", "]", ["1", "2"])` of `(1,2]`; `None` unless one pair of brackets holds two parts or more."""
    text = text.strip()
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return None
    depth = 0
    for position, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and position < len(text) - 1:
            return None
    parts = _split(text[1:-1], "[,;]")
    return (text[0], text[-1], parts) if len(parts) > 1 else None


def _intervals(text: str) -> list[tuple] | None:
    """`(open, low, high, close, name)` of each interval or inequality of a union, or `None`."""
    text = text[member.end() :] if (member := MEMBER.match(text)) else text
    found = []
    for piece in _split(text, r"\\cup(?![A-Za-z])|,"):
        if piece in ("\\mathbb{R}", "\\R"):
            found.append(("(", "-\\infty", "\\infty", ")", None))
        elif (bracket := _bracket(piece)) and len(bracket[2]) == 2:
            found.append((bracket[0], *bracket[2], bracket[1], None))
        elif (inequality := _inequality(RELATION.split(piece))) is not None:
            found.append(inequality)
        else:
            return None
    return found


def _inequality(tokens: list[str]) -> tuple | None:
    sides, relations = [side.strip() for side in tokens[::2]], tokens[1::2]
    if len({relation.strip("\\")[0] in "l<" for relation in relations}) != 1 or len(sides) > 3:
        return None
    if relations[0] in (">", "\\ge"):
        sides, relations = sides[::-1], relations[::-1]
    if len(sides) == 2:
        names = [bool(NAME.fullmatch(_bare(side))) and "\\" not in side for side in sides]
        if sum(names) != 1:
            return None
        sides, relations = (
            (["-\\infty", *sides], ["<", *relations]) if names[0] else ([*sides, "\\infty"], [*relations, "<"])
        )
    low, name, high = sides
    return (
        "[" if relations[0] != "<" and relations[0] != ">" else "(",
        low,
        high,
        "]" if relations[1] not in "<>" else ")",
        name,
    )


def _intervals_equal(ours: tuple, theirs: tuple) -> bool:
    if ours[4] is not None and theirs[4] is not None and key(ours[4]) != key(theirs[4]):
        return False
    return (ours[0], ours[3]) == (theirs[0], theirs[3]) and equal(ours[1], theirs[1]) and equal(ours[2], theirs[2])


def _sides(text: str) -> tuple[str, str] | None:
    """First and last side of an equation or a chain of them."""
    parts = [part.strip() for part in EQUALS.split(text)]
    return (parts[0], parts[-1]) if len(parts) > 1 and parts[0] and parts[-1] else None


def _is_zero(text: str) -> bool:
    number = read_number(text)
    return number is not None and number.value == 0


def _bare(name: str) -> str:
    return re.sub(r"_\s?(?:\{[^{}]*\}|\w)", "", name)


def _matrix(text: str) -> list[list[str]] | None:
    match = MATRIX.fullmatch(text.strip())
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\", match.group(2)) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]


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


def _in_base(digits: str, base: str) -> Fraction:
    return Fraction(int(digits, BASES.index(base) + 2 if base in BASES else int(base)))


def _bases_equal(gold: str, answer: str) -> bool:
    """By value where both name their base, or the gold does not; by digits where only the answer does not."""
    match, their_match = BASE.fullmatch(gold), BASE.fullmatch(answer)
    if match and not their_match:  # the question named the base
        return match.group(1) == answer.strip()
    values = []
    for text, found in ((gold, match), (answer, their_match)):
        number = read_number(text)
        try:
            values.append(_in_base(*found.groups()) if found else number and number.value)
        except ValueError:  # a digit that the base does not have
            return False
    return None not in values and values[0] == values[1]


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
    """Whether two equations are multiples of each other, or have the same solutions for one of their symbols."""
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
    for name in map(str, symbols):
        solutions = [
            sympy.solve(side, next(symbol for symbol in side.free_symbols if str(symbol) == name))
            for side in (ours, theirs)
        ]
        if all(solutions):
            return _cover(*solutions, lambda first, second: values_agree(first, second) is True)
    return False
