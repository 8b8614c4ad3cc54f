"""Values of expressions: read by math-verify, compared to 30 digits, never computed where they would be too large."""

import logging
import random
import re
from fractions import Fraction
from functools import lru_cache

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse
from sympy.core.function import AppliedUndef

from .numbers import Number, values_equal

# One line per process that there is no limit in time: the pool has one
logging.getLogger("math_verify").setLevel(logging.ERROR)

LATEX = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none"),
)
MAX_LOG10 = 1e6
MAX_TERMS = 1e5
DIGITS, MAX_DIGITS = 30, 100
TOLERANCE = sympy.Float(10, DIGITS) ** -20
# Tenths between which the points of a symbol lie: mostly small, where powers are harmless; some larger, for what bends
# only there, as |x - 3| does
RANGES = [(3, 23)] * 5 + [(30, 90), (90, 200), (200, 500)]
POINTS, ENOUGH_POINTS = len(RANGES), 3


class TooLarge(ValueError):
    """A value that is too large to compute with."""


@lru_cache(maxsize=512)
def read(text: str):
    """Expression of a piece of LaTeX as math-verify parses it, or `None`. Nothing is evaluated."""
    found = parse(f"${_told_apart(text)}$", [LATEX], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


# What keeps its letters: commands, and names in braces
KEPT = r"\\(?:mathbb|mathcal|mathfrak|text|operatorname|begin|end)\s*\{[^{}]*\}"
CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
SYMBOL = re.compile(
    rf"(?P<kept>{KEPT})|(?P<gcd>\\(?:gcd|lcm)\s*\([^()]*[A-Za-z][^()]*\))"
    rf"|(?P<name>\\(?:{'|'.join(CAPITALS)})(?![A-Za-z])|(?<!\\)(?<![A-Za-z])[a-z](?='|\^\s?\{{?\s?\\prime)|[A-Z])"
    r"(?:_\s?(?:\{(?P<index>\w+)\}|(?P<digit>\w)))?(?P<primes>'+|\^\s?\{?\s?(?:\\prime\s?)+\}?)?|\\[A-Za-z]+"
)


def _told_apart(text: str) -> str:
    """
    The same with other names for symbols that latex2sympy confuses: it reads capitals as small letters and E as
    Euler's number, drops primes, and takes the common divisor of two symbols for 1.
    """
    # A sign as an index is no letter to it: the Sun's mass, $M_{\odot}$
    text = re.sub(r"_\s?\{?\\(odot|oplus|star|ast|prime|circ|infty|dagger|parallel|perp)\s?\}?", r"_{\1}", text)
    return SYMBOL.sub(_rename, text)


def _rename(match: re.Match) -> str:
    if match["gcd"]:
        return "g_{" + "".join(str(ord(char)) for char in re.sub(r"\s", "", match["gcd"])) + "} "
    if not match["name"]:
        return match.group()
    name = match["name"].strip("\\")
    primes = (match["primes"] or "").count("'") + (match["primes"] or "").count("prime")
    index = (match["index"] or match["digit"] or "") + ("capital" if name[0].isupper() else "") + "prime" * primes
    command = "\\" if len(name) > 1 else ""
    return f"{command}{name.lower()}_{{{index}}} "


def values_agree(ours, theirs, number: Number | None = None, their_number: Number | None = None) -> bool | None:
    """
    Compares two expressions by value, at several points where they have symbols.

    Args:
        ours, theirs (`sympy.Expr`):
            Gold and answer.
        number, their_number ([`Number`], *optional*):
            Either of them as a plain number: a decimal equals a constant that it is the rounding of.

    Returns:
        `bool` or `None`: `None` where there are too few points at which both have a value.
    """
    ours, theirs = plain(ours), plain(theirs)
    if not (ours.free_symbols or theirs.free_symbols):
        return _constants_agree(ours, theirs, number, their_number)
    pairs = [(value(ours, index), value(theirs, index), index) for index in range(POINTS)]
    pairs = [pair for pair in pairs if pair[0] is not None]
    pairs = [pair for pair in pairs if pair[0].is_real] or pairs  # where the gold is real, if it is anywhere
    if len(pairs) < ENOUGH_POINTS or any(their is None for _, their, _ in pairs):
        return None
    return all(near(our, their) and vanishes(ours - theirs, index) for our, their, index in pairs)


def _constants_agree(ours, theirs, number: Number | None, their_number: Number | None) -> bool | None:
    is_rounded = any(found is not None and found.places is not None for found in (number, their_number))
    if is_rational(ours) and is_rational(theirs):
        exact = [side.doit() for side in (ours, theirs)]
        if all(side.is_Rational for side in exact):
            if exact[0] == exact[1]:
                return True
            if not is_rounded:
                return False
            return values_equal(number or _as_number(exact[0]), their_number or _as_number(exact[1]))
    our, their = value(ours, 0), value(theirs, 0)
    if our is None or their is None:
        return ours == theirs if ours.is_infinite and theirs.is_infinite else None if our is None else False
    if near(our, their) and vanishes(ours - theirs, 0):
        return True
    if is_rounded and our.is_real and their.is_real:
        return values_equal(number or _as_number(our), their_number or _as_number(their))
    return False


def is_rational(constant) -> bool:
    """Whether a constant is made of integers by sums, products, whole powers, factorials and binomials alone."""
    return all(
        node.is_Rational
        or isinstance(node, (sympy.Add, sympy.Mul, sympy.factorial, sympy.binomial))
        or (node.is_Pow and node.exp.is_Integer)
        for node in sympy.preorder_traversal(constant)
    )


def vanishes(difference, index: int) -> bool:
    """Whether a difference of two values that are near is zero, to as many digits as that takes."""
    if difference.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit):
        return True  # more digits of these would take for ever
    gap = difference.xreplace({symbol: _point(str(symbol), index) for symbol in difference.free_symbols})
    gap = gap.doit() if is_rational(gap) else gap.evalf(5, maxn=MAX_DIGITS)
    # A Float of precision 1 has no digit that is known
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in gap.as_real_imag())


def plain(expression):
    """Exact decimals, the imaginary unit, and a symbol for each unknown function or derivative."""
    swaps = {atom: sympy.Rational(str(atom)) for atom in expression.atoms(sympy.Float)}
    swaps.update({atom: atom.args[0] for atom in expression.atoms(sympy.UnevaluatedExpr)})
    swaps.update({atom: sympy.I for atom in expression.free_symbols if atom.name == "i"})
    swaps.update({atom: sympy.Symbol(str(atom)) for atom in expression.atoms(AppliedUndef, sympy.Derivative)})
    return expression.xreplace(swaps) if swaps else expression


def value(expression, index: int):
    """Value to `DIGITS` digits, each symbol at the point that its name gives it; `None` where there is no number."""
    points = {symbol: _point(str(symbol), index) for symbol in expression.free_symbols}
    try:
        found = expression.evalf(DIGITS, subs=points)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError, NotImplementedError):
        return None
    if not found.is_number or found.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    parts = [part if part.is_Float or part.is_Rational else None for part in found.as_real_imag()]
    if None in parts:
        return None
    # A Float of precision 1 has no digit that is known: it is zero
    parts = [sympy.S.Zero if part.is_Float and part._prec == 1 else part for part in parts]
    return parts[0] + sympy.I * parts[1] if parts[1] != 0 else parts[0]


def _point(name: str, index: int) -> sympy.Rational:
    rng = random.Random(f"{name} {index}")
    sign = -1 if index % 2 and rng.random() < 0.5 else 1
    low, high = RANGES[index]
    return sympy.Rational(sign * rng.randint(1009 * low // 10, 1009 * high // 10), 1009)


def near(first, second) -> bool:
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))


def _as_number(constant) -> Number:
    return Number(Fraction(str(constant)))


def log10(expression) -> float:
    """
    Bound on the decimal logarithm of a value, and of its inverse, from the form alone.

    Raises:
        [`TooLarge`]: if the value, or one on the way to it, exceeds `MAX_LOG10`.
    """
    if isinstance(expression, sympy.MatrixBase):
        return max((log10(entry) for entry in expression), default=0.0)
    if expression.is_Rational:
        digits = len(str(abs(expression.p))) if abs(expression.p) < 10**4000 else MAX_LOG10
        return float(digits + len(str(expression.q)))
    if not expression.args:
        return 1.0
    parts = [log10(argument) for argument in expression.args]
    if expression.is_Mul:
        bound = sum(parts)
    elif expression.is_Pow:
        bound = parts[0] * _size(parts[1], expression.args[1])
    elif isinstance(expression, sympy.exp):
        bound = _size(parts[0], expression.args[0])
    elif isinstance(expression, (sympy.factorial, sympy.gamma, sympy.binomial)):
        bound = 6 * _size(parts[0], expression.args[0])
    else:
        bound = max(parts) + 1
    if isinstance(expression, (sympy.Sum, sympy.Product)):
        for _, *limits in expression.limits:
            if any(limit.is_finite and _size(log10(limit), limit) > MAX_TERMS for limit in limits):
                raise TooLarge
    if bound > MAX_LOG10:
        raise TooLarge
    return bound


def _size(bound: float, expression) -> float:
    if expression.is_Rational:
        return abs(float(expression)) if bound < 300 else 10.0**300
    return 10.0 ** min(bound, 300)
