"""The structure of an answer, from its normalised text: what it is made of, not what it is worth."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from .numbers import read_number
from .spelling import key

RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
EQUALS = re.compile(r"(?<![<>!:])=(?!=)")
INDEX = r"(?:_\s?(?:\{[^{}]*\}|\w))?"
VARIABLE = re.compile(rf"(?:[A-Za-z]|\\[A-Za-z]+){INDEX}'*")
# What an answer may be called: x, f(2), \angle ABC, \text{Area}, (x, y)
NAME = re.compile(r"[A-Za-z\\'()\s,|{}]*[A-Za-z][A-Za-z\\'()\s,|{}]*|[A-Za-z]'*\([^()]*\)")
FUNCTION = re.compile(r"\\(?:sqrt|frac|log|ln|sin|cos|tan|exp|cot|sec|csc|arc[a-z]+)(?![A-Za-z])")
MEMBER = re.compile(rf"\s*(?:{VARIABLE.pattern}|\([A-Za-z](?:,\s?[A-Za-z])*\))\s*\\in(?![A-Za-z])\s*")
BUILDER = re.compile(rf"\\\{{\s*({VARIABLE.pattern})\s*(?:\\in\s*\\mathbb\{{R\}}\s*)?(?:\\mid|\||:)(.*)\\\}}")
WITHOUT = re.compile(r"\\mathbb\{R\}\s*(?:\\setminus|\\backslash|-)\s*\\\{([^{}]*)\\\}")
UNEQUAL = re.compile(rf"{VARIABLE.pattern}\s*\\ne(?![A-Za-z])(.*)")
BASES = "two three four five six seven eight nine ten eleven twelve".split()
BASE = re.compile(rf"([0-9A-Z]+)\s?_\s?\{{?(?:\\text\{{)?\s*(\d{{1,2}}|{'|'.join(BASES)})\s*\}}?\}}?")
MATRIX = re.compile(r"\\begin\s?\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\s?\{\1\}", re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}
LINE = ("(", "-\\infty", "\\infty", ")")


class Interval(NamedTuple):
    r"""One piece of a line. `name` is what lies in it, where that is said: `x` of `0 < x \le 1`."""

    opening: str
    low: str
    high: str
    closing: str
    name: str | None = None


def leaves(text: str) -> Iterator[str]:
    """The smallest parts that have a value or a meaning of their own."""
    parts = split(text, EQUALS.pattern)
    if len(parts) == 1:
        parts = split(text, RELATION.pattern) if RELATION.search(text) else split(text, r"\\cup(?![A-Za-z])")
    if len(parts) == 1:
        parts = elements(text)
    if len(parts) == 1 and (ends := bracket(text)):
        parts = ends[2]
    if len(parts) == 1 and (rows := matrix(text)):
        parts = [cell for row in rows for cell in row]
    if len(parts) == 1 and ":" in text:
        parts = text.split(":")
    if len(parts) == 1 and parts[0] == text:
        yield text.strip()
        return
    for part in parts:
        yield from leaves(part)


def split(text: str, separator: str) -> list[str]:
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


def elements(text: str) -> list[str]:
    r"""Elements of a list or of a set; `\pm` makes two of one."""
    text = text.strip()
    text = text[member.end() :] if (member := MEMBER.match(text)) else text
    if read_number(text) is not None:
        return [text]
    if text.startswith("\\{") and text.endswith("\\}") and not re.search(r"\\mid|\||:", text):
        text = text[2:-2]
    return [sign for part in split(text, "[,;]") for sign in signs(part)]


def signs(text: str) -> list[str]:
    if "\\pm" not in text and "\\mp" not in text:
        return [text]
    if "\\mp" in text:  # linked: the upper signs, then the lower ones
        upper = re.sub(r"\\mp\s?", "-", re.sub(r"\\pm\s?", "+", text))
        return [upper, re.sub(r"\\mp\s?", "+", re.sub(r"\\pm\s?", "-", text))]
    before, _, after = text.partition("\\pm")
    before, plus = before.rstrip(), "+" if re.search(r"[\w})\]]\s*$", before) else ""
    return [sign for rest in signs(after.lstrip()) for sign in (f"{before}{plus}{rest}", f"{before}-{rest}")][:16]


def bracket(text: str) -> tuple[str, str, list[str]] | None:
    """`("(", "]", ["1", "2"])` of `(1,2]`; `None` unless one pair of brackets holds two parts or more."""
    text = text.strip()
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return None
    depth = 0
    for position, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and position < len(text) - 1:
            return None
    parts = split(text[1:-1], "[,;]")
    return (text[0], text[-1], parts) if len(parts) > 1 else None


def intervals(text: str) -> list[Interval] | None:
    """The intervals that an answer is the union of, `None` where it is none."""
    text = text[member.end() :] if (member := MEMBER.match(text)) else text
    if builder := BUILDER.fullmatch(text):
        text = builder.group(2).strip()
    left_out = WITHOUT.fullmatch(text) or UNEQUAL.fullmatch(text)
    if left_out:
        point = left_out.group(1).strip()
        single = point and len(split(point, "[,;]")) == 1
        return [Interval("(", "-\\infty", point, ")"), Interval("(", point, "\\infty", ")")] if single else None
    found: list[Interval] = []
    for piece in split(text, r"\\cup(?![A-Za-z])|,"):
        both = split(piece, r"\\land(?![A-Za-z])")
        if piece in ("\\mathbb{R}", "\\R"):
            found.append(Interval(*LINE))
        elif (ends := bracket(piece)) and len(ends[2]) == 2:
            found.append(Interval(ends[0], *ends[2], ends[1]))
        elif len(both) == 2:
            found.append(_intersection(*(_inequality(RELATION.split(part)) for part in both)))
        else:
            found.append(_inequality(RELATION.split(piece)))
    return None if None in found else found


def _inequality(tokens: list[str]) -> Interval | None:
    sides, relations = [side.strip() for side in tokens[::2]], tokens[1::2]
    if len({relation.strip("\\")[0] in "l<" for relation in relations}) != 1 or len(sides) > 3:
        return None
    if relations[0] in (">", "\\ge"):
        sides, relations = sides[::-1], relations[::-1]
    if len(sides) == 2:
        names = [VARIABLE.fullmatch(side) is not None and side not in ("\\infty", "\\pi", "e") for side in sides]
        if sum(names) != 1:
            return None
        sides = ["-\\infty", *sides] if names[0] else [*sides, "\\infty"]
        relations = ["<", *relations] if names[0] else [*relations, "<"]
    low, name, high = sides
    opening, closing = ("(" if relations[0] in "<>" else "["), (")" if relations[1] in "<>" else "]")
    return Interval(opening, low, high, closing, name)


def _intersection(first: Interval | None, second: Interval | None) -> Interval | None:
    """Of an interval that is open to the right and one that is open to the left."""
    if None in (first, second) or key(first.name or "") != key(second.name or ""):
        return None
    if first.low == LINE[1]:
        first, second = second, first
    if first.high != LINE[2] or second.low != LINE[1]:
        return None
    return Interval(first.opening, first.low, second.high, second.closing, first.name)


def names_of(parts: list[str]) -> dict[str, str] | None:
    """`{"x": "1", "y": "2"}` of `x=1` and `y=2`, or of `(x,y)=(1,2)`; `None` unless every part names a value."""
    sides = [sides_of(part) for part in parts]
    if None in sides or any(len(each) != 2 for each in sides):
        return None
    if len(parts) == 1:
        names, values = (bracket(side) for side in sides[0])
        if names is None or values is None or len(names[2]) != len(values[2]):
            return None
        pairs = list(zip(names[2], values[2], strict=True))
    else:
        pairs = sides
    if not all(VARIABLE.fullmatch(name) for name, _ in pairs) or len({key(name) for name, _ in pairs}) < len(pairs):
        return None
    return {key(name): value for name, value in pairs}


def sides_of(text: str) -> list[str] | None:
    """The sides of an equation or of a chain of them."""
    parts = split(text, EQUALS.pattern)
    return parts if len(parts) > 1 else None


def bare(name: str) -> str:
    """A name without its indices."""
    return re.sub(r"_\s?(?:\{[^{}]*\}|\w)", "", name)


def may_name(side: str) -> bool:
    """Whether the left side of an equation can be what was asked for, as in `m + n = 5`, not `2x = 10`."""
    if NAME.fullmatch(bare(side)):
        return FUNCTION.search(side) is None
    return len(set(re.findall(r"(?<![A-Za-z\\])[A-Za-z]", side))) > 1


def based(text: str) -> tuple[str, int] | None:
    """Digits and base of a number like `4210_5`; `None` of anything else, as `V_0` and `F_{12}` are."""
    match = BASE.fullmatch(text.strip())
    if match is None:
        return None
    digits, name = match.groups()
    base = BASES.index(name) + 2 if name in BASES else int(name)
    if not 2 <= base <= 36 or not all(int(digit, 36) < base for digit in digits):
        return None
    return (digits, base) if any(digit.isdecimal() for digit in digits) or len(digits) > 1 else None


def matrix(text: str) -> list[list[str]] | None:
    match = MATRIX.fullmatch(text.strip())
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\", match.group(2)) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]
