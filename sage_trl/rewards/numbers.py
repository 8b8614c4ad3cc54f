r"""Plain numbers, read and compared exactly: most golds are one, and most answers too.

    number     = [sign] ( mixed | fraction | repeating | decimal ) [ exponent ] [ percent ]
    mixed      = digits fraction                     3\frac{1}{2}, 3 1/2
    fraction   = \frac{decimal}{decimal} | decimal "/" decimal
    repeating  = digits "." [ digits ] \overline{digits}
    exponent   = "e" integer | \times 10^{integer}

A decimal with at least six places also equals a value that it is the rounding or the truncation of, so that 0.333333
is one third. That is math-verify's tolerance for values near 1, and here it is relative as well: 0.000001 is not
0.0000012.
"""

import re
from fractions import Fraction
from typing import NamedTuple

# More digits, or a larger power of ten, than any answer needs and than is cheap to compute with.
MAX_DIGITS = 1_000
MIN_PLACES = 6
# A decimal of so many places is the printout of a float: its last digits are noise.
FLOAT_PLACES = 15

UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
FRACTION = rf"\\frac\s?\{{\s?(-?{UNSIGNED})\s?\}}\s?\{{\s?(-?{UNSIGNED})\s?\}}"
DECIMAL = re.compile(UNSIGNED)
MIXED = re.compile(r"(\d+)\s?(?:\\frac\{(\d+)\}\{(\d+)\}|(?<=\s)(\d+)\s?/\s?(\d+))")
RATIO = re.compile(rf"{FRACTION}|({UNSIGNED})\s?/\s?({UNSIGNED})|\(?({UNSIGNED})\)?\s?/\s?\(({UNSIGNED})\)")
REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{?(\d+)\}?")
GROUPED = re.compile(r"\d{1,3}(?: \d{3})+")
EXPONENT = re.compile(r"[eE]([+-]?\d+)$|(?:\\times|\\cdot|\*|^)\s?10\s?(?:\^|\*\*)\s?(?:\{\s?([+-]?\d+)\s?\}|(\d+))$")


class Number(NamedTuple):
    """
    A number as it was written.

    Attributes:
        value (`Fraction`):
            Its exact value, before a percent sign is applied.
        places (`int` or `None`):
            Digits after the point, of a decimal; `None` where the value is exact by its form.
        percent (`bool`):
            Whether a percent sign follows.
    """

    value: Fraction
    places: int | None = None
    percent: bool = False


def read_number(text: str) -> Number | None:
    """
    Reads a plain number.

    Args:
        text (`str`):
            Normalised answer.

    Returns:
        [`Number`]: the number, or `None` where the text is anything else, or beyond `MAX_DIGITS`.
    """
    if len(text) > MAX_DIGITS:
        return None
    body = text.strip()
    percent = body.endswith("\\%")
    body = body.removesuffix("\\%").strip()
    sign = 1
    while body[:1] in ("-", "+"):
        sign, body = (-sign if body[0] == "-" else sign), body[1:].strip()
        if body[:1] in ("-", "+"):
            return None
    if body[:1] == "{" and body[-1:] == "}" and body.count("{") == 1:
        body = body[1:-1].strip()
    exponent = EXPONENT.search(body)
    power = 0
    if exponent:
        body = body[: exponent.start()].strip() or "1"
        digits = next(group for group in exponent.groups() if group)
        if len(digits) > 4 or abs(int(digits)) > MAX_DIGITS:
            return None
        power = int(digits)
    found = _unsigned(body)
    if found is None or (exponent and not DECIMAL.fullmatch(body)):
        return None
    value, places = found
    if places is not None:
        places = max(0, places - power) or None
    return Number(sign * value * Fraction(10) ** power, places, percent)


def _unsigned(text: str) -> tuple[Fraction, int | None] | None:
    if DECIMAL.fullmatch(text):
        text = text.replace(",", "")
        return Fraction(text.rstrip(".")), len(text.partition(".")[2]) or None
    if GROUPED.fullmatch(text):
        return Fraction(text.replace(" ", "")), None
    if match := MIXED.fullmatch(text):
        whole, above, below = (int(group) for group in match.groups() if group)
        return (whole + Fraction(above, below), None) if below else None
    if match := RATIO.fullmatch(text):
        above, below = (Fraction(group.replace(",", "").rstrip(".")) for group in match.groups() if group)
        return (above / below, None) if below else None
    if match := REPEATING.fullmatch(text):
        whole, fixed, repeated = match.groups()
        tail = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed))
        return Fraction(f"{whole or 0}.{fixed or 0}") + tail, None
    return None


def numbers_equal(gold: Number, answer: Number) -> bool:
    """
    Whether two numbers are the same. A single percent sign is a hundredth, or from one percent on a unit that may be
    left out: 10% is 0.1 and 10.
    """
    if gold.percent == answer.percent:
        return values_equal(gold, answer)
    percent, plain = (gold, answer) if gold.percent else (answer, gold)
    hundredth = Number(percent.value / 100, percent.places and percent.places + 2)
    return values_equal(plain, hundredth) or (abs(percent.value) >= 1 and values_equal(plain, percent))


def values_equal(first: Number, second: Number) -> bool:
    """Whether two values are equal, or one is the other to at least six decimal places."""
    if first.value == second.value:
        return True
    places = [number.places for number in (first, second) if number.places is not None]
    if not places:
        return False
    coarse, fine = sorted((first, second), key=lambda number: number.places or MAX_DIGITS)
    difference = abs(coarse.value - fine.value)
    if max(places) >= FLOAT_PLACES and difference * 10**12 < abs(fine.value):
        return True
    if coarse.places < MIN_PLACES:
        return False
    unit = Fraction(1, 10**coarse.places)
    rounded = difference <= unit / 2
    truncated = difference < unit and abs(coarse.value) < abs(fine.value)
    # Close as a share of the value too: a few places say nothing about a tiny number
    return (rounded or truncated) and difference * 10_000 < abs(fine.value)
