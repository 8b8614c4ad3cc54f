r"""One spelling for the many ways to write an answer. Plain text work: nothing is evaluated.

normalise(answer)     one spelling: `\dfrac12`, `½` and `\frac{1}{2}` become the same text; a unit is set apart
words(text)           the words of an answer that is a text, as in `\text{east}`; None of one that is not
choice(text)          the letter of a multiple-choice answer, as in `\text{(C)}`
key(text)             what two spellings of one answer share: no spaces, no needless braces
"""

import re
import unicodedata
from typing import NamedTuple

from .answers import BOX, BRACE, closing_braces, unbox

FUNCTIONS = frozenset("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min gcd".split())
FONTS = ("text", "textbf", "textit", "textrm", "textnormal", "mathrm", "mathbf", "mathit", "mathsf", "mathtt")
FONTS += ("mbox", "hbox", "operatorname", "boldsymbol", "bf", "rm", "bm")
FONT = re.compile(r"\\(" + "|".join(sorted(FONTS, key=len, reverse=True)) + r")(?![A-Za-z])\s*\{")
SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\dbinom|\\tbinom", r"\\binom"),
        (r"(?:\\!)*,(?:\\!)+\s*|\{\s*,\s*\}", "{,}"),  # a comma that is set to group digits
        (r"(?<=\d)(?:\{,\}|\\[,;: ])(?=\d{3}(?!\d))", ""),
        (r"\{,\}", ","),
        (r"\\!|\\displaystyle|\\textstyle|\\limits|\\nolimits|\\m?(?:left|right)(?![A-Za-z])\.?", ""),
        (r"\\[bB]igg?[lrm]?(?![A-Za-z])", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~|\\(?:hspace|hskip|phantom)\{[^{}]*\}|\s", " "),
        (r"\\\$|\$|[€£¥₹]|\\(?:pounds|euro)(?![A-Za-z])", ""),
        (r"\\le(?:q|qslant)?(?![A-Za-z])|<=", r"\\le "),
        (r"\\ge(?:q|qslant)?(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq?(?![A-Za-z])", r"\\ne "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])|\\lparen(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])|\\rparen(?![A-Za-z])", ")"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\(?:varnothing|empty)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"(?<![A-Za-z\\])(?:infinity|inf)(?![A-Za-z])", r"\\infty "),
        (r"\{\s*(\w+)\s*\\choose\s+(\w+)\s*\}", r"\\binom{\1}{\2}"),
        # A degree sign counts within a trigonometric function only; elsewhere it is a unit that may be left out
        (
            r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*[)}]?",
            r"\1(\\frac{\2\\pi}{180})",
        ),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])|°", ""),
        (r"(?<=\d)\s*(?:\\text\s*\{\s*)?(?:percentage|percent|pct)\b\s*\}?|\\?%", r"\\%"),
        (r"^\s*\\(?:approx|simeq|thickapprox)(?![A-Za-z])\s*|(?<!\\)\\\s*$", ""),
        (r"\\(?:approx|simeq|thickapprox)(?![A-Za-z])", r"\\approx "),
        (r"\\log\s*_\s*\{?\s*e\s*\}?", r"\\ln "),
        (r"\\(?:ldots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\.", r"\\dots "),
        (r"\\lg(?![A-Za-z])", r"\\log_{10} "),
        (r"(?:\\text\s*\{\s*)?\ball\s+real(?:\s+numbers)?\s*\}?", r"\\mathbb{R}"),
        (r"\\(?:overline|bar|dot)(?=\s*\{?\s*\d)", r"\\overline"),
        (r"\b(?:np|math|numpy)\.(?=[a-z])", ""),
        (r"(?<![A-Za-z\\])sqrt(?![A-Za-z])", r"\\sqrt"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    )
]
# Between relations, where they mean an intersection and a union
JOINED = [
    (re.compile(rf",?\s*(?:\\text\s*\{{\s*{word}\s*\}}|(?<![A-Za-z\\{{]){word}(?![A-Za-z]))"), sign)
    for word, sign in (("and", r" \\land "), ("or", r" \\cup "))
]
# After fonts are plain
LATE_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z]))", ", "),
        (r"(?<=\d)\.(?=[/\s}]|$)", ""),  # the point of `5.` and `1./3`
    )
]
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
SUPERSCRIPT, SUBSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
    "∕": "/", "⁄": "/", "√": r"\sqrt ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "°": r"^\circ ", "º": r"^\circ ", "∘": r"^\circ ",
    "′": "'", "’": "'", "π": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "θ": r"\theta ",
    "λ": r"\lambda ", "μ": r"\mu ", "ω": r"\omega ", "φ": r"\phi ", "σ": r"\sigma ", "∶": ":",
    "\u200b": " ",
}  # fmt: skip

# Names of one unit. Two answers with units of different rows differ; a unit of no row says nothing.
UNITS = {
    alias: names.split()[0]
    for names in (
        "nm nanometer nanometre", "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre",
        "km kilometer kilometre", "in inch inches", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram",
        "kg kilogram", "oz ounce", "lb lbs pound", "ms millisecond", "s sec second", "min mins minute",
        "h hr hrs hour", "day", "week", "month", "yr year", "ml milliliter millilitre", "l liter litre", "gal gallon",
        "dollar usd", "cent", "am", "pm", "degree deg", "rad radian", "mph", "kmh kph km/h", "m/s", "ev", "kev", "mev",
        "gev", "n", "kn", "j", "kj",
        "w", "kw", "v", "kv", "c", "f", "k", "bc", "ad", "north", "south", "east", "west", "quarter", "dime", "nickel",
        "penny pennies", "hz", "khz", "mhz", "ghz", "pa", "kpa", "atm", "unit",
    )
    for alias in names.split()
}  # fmt: skip
KNOWN_UNITS = frozenset(UNITS.values())
ONE_LETTER_UNITS = frozenset("mgshlNJWVKCTAF")
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# What follows a number and is no unit of it
NO_UNIT = re.compile(r"\b(?:minus|plus|times|or|more|less|not|wrong|false|factorial|to the|over)\b", re.IGNORECASE)


class Answer(NamedTuple):
    """A normalised answer: what it says, and the unit it says it in (an empty string where there is none)."""

    text: str
    unit: str = ""


def balanced(text: str) -> bool:
    """Whether every brace that opens is closed, and the other way round."""
    depth = 0
    for match in BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def normalise(answer: str) -> Answer:
    """
    Brings an answer to one spelling. The value is not computed and nothing is evaluated.

    Args:
        answer (`str`):
            LaTeX or text, with or without dollar signs.

    Returns:
        [`Answer`]: the text, and the unit that followed it.
    """
    text = _unicode(answer.strip())
    for delimiters in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        text = text.removeprefix(delimiters[0]).removesuffix(delimiters[1]).strip()
    text = unbox(text) if BOX.match(text) else text
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _plain_fonts(text)
    relations = re.search(r"\\[lg]e(?![A-Za-z])|[<>]", text)
    for pattern, replacement in (JOINED if relations else []) + LATE_SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _arguments(_arguments(text, "\\sqrt", 1), "\\frac", 2)
    text = re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()
    ends = closing_braces(text)
    while text[:1] == "{" and ends.get(0) == len(text) - 1:
        text = text[1:-1].strip()
        ends = closing_braces(text)
    return _split_unit(text)


def _unicode(text: str) -> str:
    # NFKC alone would turn x² into x2 and 1½ into 11⁄2
    text = SUPERSCRIPT.sub(lambda run: f"^{{{run.group().translate(SUPERSCRIPTS)}}}", text)
    text = SUBSCRIPT.sub(lambda run: f"_{{{run.group().translate(SUBSCRIPTS)}}}", text)
    return "".join(char if char.isascii() else SYMBOLS.get(char) or _compatible(char) for char in text)


def _compatible(char: str) -> str:
    form = unicodedata.normalize("NFKC", char)
    above, slash, below = form.partition("⁄")
    return f"\\frac{{{above}}}{{{below}}}" if slash else form


def _plain_fonts(text: str) -> str:
    r"""One command, `\text`, for words; none around what is a formula or a single letter."""
    ends = closing_braces(text)
    pieces, done = [], 0
    for match in FONT.finditer(text):
        end = ends.get(match.end() - 1)
        if match.start() < done or end is None:
            continue
        content = text[match.end() : end].strip()
        # Upright letters at the end are a unit, elsewhere a symbol: 5\mathrm{m}, but 1/\mathrm{e}
        ends_text = match.start() > 0 and re.fullmatch(r"\s*(?:\^\s*\{?-?\d\}?)?\s*\.?", text[end + 1 :])
        if content in FUNCTIONS:
            content = f"\\{content} "
        elif re.search(r"\\[A-Za-z]", content):
            content = _plain_fonts(content)
        elif re.search(r"[A-Za-z]\s?[A-Za-z]|^\([A-Z]\)", content) or (ends_text and content in ONE_LETTER_UNITS):
            content = f"\\text{{{content}}}"
        pieces += [text[done : match.start()], " " if text[end + 1 : end + 2].isalpha() else "", content]
        done = end + 1
    return "".join([*pieces, text[done:]])


def _arguments(text: str, command: str, count: int) -> str:
    r"""Braces around the arguments of a command: `\frac12`, `\frac 1{2}`, `\sqrt2`, `\sqrt(2)`."""
    # From the right, so that what stands within an argument is done before it
    for match in reversed(list(re.finditer(re.escape(command) + r"(?![A-Za-z])", text))):
        done, rest = text[: match.end()], text[match.end() :].lstrip()
        if rest[:1] == "[" and count == 1:  # the index of a root
            done, rest = done + rest[: rest.find("]") + 1], rest[rest.find("]") + 1 :]
        for index in range(count):
            argument, rest = _argument(rest.lstrip(), last=index == count - 1, alone=count == 1)
            done += argument
        text = done + rest
    return text


def _argument(text: str, last: bool, alone: bool) -> tuple[str, str]:
    """The first argument of a text in braces, and the rest of it."""
    if not text:
        return "", ""
    if text[0] == "{":
        end = closing_braces(text).get(0, len(text) - 1) + 1
        return text[:end], text[end:]
    found = re.match(r"\d+" if last else r"\d", text) or re.match(r"\\[A-Za-z]+", text)  # `\sqrt13`, `\frac110`
    if found is None and alone:
        found = re.match(r"\([^()]*\)", text)
    argument = found.group() if found else text[0]
    return f"{{{argument}}}", text[len(argument) :]


EXPONENT = r"(?:\^\s*\{?(-?\d)\}?)?"
UNIT_TEXT = re.compile(rf"\s*((?:\\text\s*\{{[^{{}}\d]*\}}[\s/.]*)+){EXPONENT}$")
UNIT_WORDS = re.compile(rf"(\d|\}})( ?)([A-Za-z][A-Za-z./ ]*){EXPONENT}$")


def _split_unit(text: str) -> Answer:
    match = UNIT_TEXT.search(text)
    if match and re.search(r"\d|\\(?!text)[A-Za-z]", text[: match.start()]):
        unit = re.sub(r"\\text|[{}]", " ", match.group(1))
        return _text_and_unit(text, match.start(), unit, match.group(2))
    match = UNIT_WORDS.search(text)
    if match:
        names = match.group(3).lower().split()
        # A single bare letter is left alone: 5 m may be five times m
        known = len(names[0]) > 1 and _unit(match.group(3), None).partition("^")[0] in KNOWN_UNITS
        spelt = match.group(2) and len(names[0]) > 2 and not FUNCTIONS.union(["mod", "bmod"]).intersection(names)
        if (known or spelt) and not re.search(r"[A-Za-z]{3}", re.sub(r"\\[A-Za-z]+", "", text[: match.start(3)])):
            return _text_and_unit(text, match.start(3), match.group(3), match.group(4))
    return Answer(text)


def _text_and_unit(text: str, start: int, unit: str, exponent: str | None) -> Answer:
    """An answer whose unit starts at a position. `million` is part of the number; some words are no unit."""
    if NO_UNIT.search(unit):
        return Answer(text)
    number, names = text[:start].strip(), unit.split()
    if names and (scale := names[0].lower()) in SCALES:
        number, names = rf"{number} \times 10^{{{SCALES[scale]}}}", names[1:]
    elif names and names[0].lower() == "dozen":
        number, names = rf"{number} \cdot 12", names[1:]
    elif not exponent and len(names) == 1 and names[0].lower() in ("squared", "cubed"):
        return Answer(text)  # of the number
    return Answer(number, _unit(" ".join(names), exponent))


def _unit(text: str, exponent: str | None) -> str:
    """Name of a unit and its power: `cm^2` of `square centimeters`."""
    names = text.lower().split()
    for word, power in (("square", "2"), ("sq", "2"), ("sq.", "2"), ("squared", "2"), ("cubic", "3"), ("cubed", "3")):
        if word in names and exponent is None:
            names.remove(word)
            exponent = power
    name = "".join(names).replace(".", "")
    name = UNITS.get(name) or UNITS.get(name.removesuffix("s"), name)
    return f"{name}^{exponent}" if name and exponent else name


def units_differ(first: str, second: str) -> bool:
    """Whether two units are both known and not the same."""
    names = [unit.partition("^")[0] for unit in (first, second)]
    return first != second and all(name in KNOWN_UNITS for name in names) and "unit" not in names


def key(text: str) -> str:
    """What two spellings of one answer share. Not LaTeX any more: only for comparing."""
    text = re.sub(r"([_^])\s*\{(\w)\}", r"\1\2", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def words(text: str) -> tuple[str, ...] | None:
    """The words of an answer that is a text, in lower case; `None` where it is a formula."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    if re.search(r"[\\^_=<>+*/|]", plain):
        return None
    found = re.findall(r"-?\d+(?:[.,]\d+)*|[^\W_]+", plain)
    if "\\text" not in text and not any(map(_is_word, found)):
        return None
    if not any(w.isalpha() for w in found) or re.match(r"\s*[\d(\[]", text):
        return None
    return tuple(w.casefold() for w in found if w.lower() != "the")


def _is_word(text: str) -> bool:
    """Whether letters are a word and no product, as ab, GMm and sin are."""
    is_cased = text.islower() or text.istitle() or (text.isupper() and len(text) > 3)
    return len(text) > 2 and text.isalpha() and is_cased and text.lower() not in FUNCTIONS


CHOICE = re.compile(r"([A-J])[.):]?|([A-J])[.):]\s+(.*)|\(([A-J])\)(?:(?=[\s\\])\s*(.*))?|\(([a-j])\)")
OTHER_CHOICE = re.compile(r"^[A-J]$|\([A-J]\)|(?<![A-Za-z])[A-J][.):]|\b(?:or|and|not|false|wrong)\b|[,;=^]")


def choice(text: str) -> str | None:
    r"""The letter of a multiple-choice answer: `C`, `(C)`, `\text{(C)}`, `C.`, `(C) 12`; `None` where it is none."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    match = CHOICE.fullmatch(plain)
    if match is None:
        return None
    letter = match.group(1) or match.group(2) or match.group(4) or match.group(6)
    # One letter, and then what it stands for: not a second one
    return None if OTHER_CHOICE.search(match.group(3) or match.group(5) or "") else letter.upper()
