r"""The answer in a completion, and one spelling for the many ways to write it.

Everything here is plain text work in linear time: it runs in the trainer's own process, before any algebra.

    extract(completion)   the last box; else the last answer tag; else what follows "answer is"
    final_answer(text)    the answer of a worked solution: what follows `####`, else the last box, else all of it
    normalise(answer)     one spelling: `\dfrac12`, `½` and `\frac{1}{2}` become the same text; a unit is set apart
    words(text)           the words of an answer that is a text, as in `\text{east}`; None of one that is not
    choice(text)          the letter of a multiple-choice answer, as in `\text{(C)}`
    key(text)             what two spellings of one answer share: no spaces, no needless braces
"""

import re
import unicodedata
from typing import NamedTuple

# An answer longer than this is not read: it is wrong unless it is the gold, letter by letter.
MAX_ANSWER = 2_000
# How far before the last box its run of boxes, and a box around it, are looked for.
BOX_WINDOW = 10_000

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
BRACE = re.compile(r"\\[\\{}]|[{}]")
END_OF_OPEN_BOX = re.compile(r"(?<!\\)\$|\\\]|\\\)|\n|<\|")
BETWEEN_BOXES = re.compile(r"(?:[\s$,;.]|\\[,;\]\[)( ]|\\quad|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")
ANSWER_TAG = re.compile(r"<(answer|solution)>", re.IGNORECASE)
ANSWER_PHRASE = re.compile(r"answer(?:\s+is\s*:?|\s*:)[\s*]*", re.IGNORECASE)

FUNCTIONS = frozenset("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min gcd".split())
FONTS = ("text", "textbf", "textit", "textrm", "textnormal", "mathrm", "mathbf", "mathit", "mathsf", "mathtt")
FONTS += ("mbox", "hbox", "operatorname", "boldsymbol", "bf", "rm", "bm")
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
        (r"\\(?:approx|simeq|thickapprox)(?![A-Za-z])", r"\\approx "),
        (r"\\(?:overline|bar|dot)(?=\s*\{?\s*\d)", r"\\overline"),
        (r"\b(?:np|math|numpy)\.(?=[a-z])", ""),
        (r"(?<![A-Za-z\\])sqrt(?![A-Za-z])", r"\\sqrt"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    )
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
        "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre",
        "in inch inches", "ft foot feet", "yd yard", "mi mile", "g gram", "kg kilogram", "mg milligram",
        "lb lbs pound", "oz ounce", "s sec second", "min mins minute", "h hr hrs hour", "day", "week", "month",
        "yr year", "ml milliliter millilitre", "l liter litre", "gal gallon", "dollar usd", "cent", "am", "pm",
        "degree deg", "rad radian", "mph", "kmh kph", "unit",
    )
    for alias in names.split()
}  # fmt: skip


ONE_LETTER_UNITS = frozenset(alias for alias in UNITS if len(alias) == 1)


class Answer(NamedTuple):
    """A normalised answer: what it says, and the unit it says it in (an empty string where there is none)."""

    text: str
    unit: str = ""


def extract(completion: str) -> list[str]:
    r"""
    Finds the answers that a completion ends with.

    Args:
        completion (`str`):
            What the model wrote, however long.

    Returns:
        `list[str]`: the answer first; after it, where the last boxes stand side by side as in `\boxed{2}` and
        `\boxed{3}`, all of them as one list. Empty where there is no answer.
    """
    opening = None
    for match in ANSWER_TAG.finditer(completion):
        opening = match
    if opening is not None:
        inside, closing, after = _partition_folded(completion[opening.end() :], f"</{opening.group(1)}>")
        if closing and not BOX.search(after):
            return _boxes(inside) or _short(inside)
    return _boxes(completion) or _after_phrase(completion)


def final_answer(solution: str) -> str:
    r"""
    The answer that a worked solution ends with.

    Args:
        solution (`str`):
            A solution with `#### 42` or a box, or a bare answer (`42`, `\frac{1}{2}`).

    Returns:
        `str`: the answer; of a text without either mark, the text.
    """
    _, mark, final = solution.rpartition("####")
    if mark:
        return final.strip().partition("\n")[0].strip()
    if BOX.search(solution):
        return (_boxes(solution) or [""])[0]
    return solution.strip()


def _partition_folded(text: str, tag: str) -> tuple[str, bool, str]:
    match = re.search(re.escape(tag), text, re.IGNORECASE)
    return (text[: match.start()], True, text[match.end() :]) if match else (text, False, "")


def _boxes(text: str) -> list[str]:
    last = max(text.rfind(name) for name in ("\\boxed", "\\fbox", "\\framebox"))
    if last < 0:
        return []
    text = text[max(0, last - BOX_WINDOW) :]
    ends = _closing_braces(text)
    spans: list[tuple[int, int, str]] = []  # outermost closed boxes, and at the end perhaps an open one
    for match in BOX.finditer(text):
        start, inner = match.start(), match.end()
        if spans and start < spans[-1][1]:
            continue  # within the box before it
        if text[inner : inner + 1] == "{" and inner in ends:
            content, end = text[inner + 1 : ends[inner]], ends[inner] + 1
        elif BOX.search(text, inner):
            continue  # never closed, and not the last word: the boxes after it count
        else:
            rest = END_OF_OPEN_BOX.split(text[inner : inner + MAX_ANSWER + 1], maxsplit=1)[0]
            content, end = _close(rest[1:]) if rest[:1] == "{" else rest.partition(" ")[0].rstrip(".,"), len(text)
        content = _unbox(content).strip()
        if content.strip("{} "):
            spans.append((start, end, content))
    if not spans:
        return []
    run = [spans[-1]]
    while len(run) < len(spans) and BETWEEN_BOXES.fullmatch(text, spans[-len(run) - 1][1], run[0][0]):
        run.insert(0, spans[-len(run) - 1])
    return [spans[-1][2]] + ([", ".join(content for *_, content in run)] if len(run) > 1 else [])


def _unbox(text: str) -> str:
    """Leaves out the boxes within a box, commands and braces, and keeps what they hold."""
    ends, out = _closing_braces(text), set()
    for match in BOX.finditer(text):
        out.update(range(match.start(), match.end()))
        if match.end() in ends:
            out.update((match.end(), ends[match.end()]))
    return "".join(char for index, char in enumerate(text) if index not in out)


def _closing_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of the brace that closes it."""
    ends, stack = {}, []
    for match in BRACE.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            ends[stack.pop()] = match.start()
    return ends


def balanced(text: str) -> bool:
    """Whether every brace that opens is closed, and the other way round."""
    depth = 0
    for match in BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def _close(text: str) -> str:
    braces = [match.group() for match in BRACE.finditer(text)]
    return text + "}" * max(0, braces.count("{") - braces.count("}"))


def _after_phrase(text: str) -> list[str]:
    last = None
    for match in ANSWER_PHRASE.finditer(text[-BOX_WINDOW:]):
        last = match
    return _short(text[-BOX_WINDOW:][last.end() :].partition("\n")[0].rstrip(" .*")) if last else []


def _short(text: str) -> list[str]:
    text = text.strip()
    return [text] if 0 < len(text) <= MAX_ANSWER else []


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
    text = _unbox(text) if BOX.match(text) else text
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _plain_fonts(text)
    for pattern, replacement in LATE_SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _arguments(_arguments(text, "\\sqrt", 1), "\\frac", 2)
    text = re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()
    ends = _closing_braces(text)
    while text[:1] == "{" and ends.get(0) == len(text) - 1:
        text = text[1:-1].strip()
        ends = _closing_braces(text)
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
    ends = _closing_braces(text)
    pieces, done = [], 0
    for match in re.finditer(r"\\(" + "|".join(sorted(FONTS, key=len, reverse=True)) + r")(?![A-Za-z])\s*\{", text):
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
        elif re.search(r"[A-Za-z]{2}|^\([A-Z]\)", content) or (ends_text and content in ONE_LETTER_UNITS):
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
        end = _closing_braces(text).get(0, len(text) - 1) + 1
        return text[:end], text[end:]
    found = re.match(r"\d+" if last else r"\d", text) or re.match(r"\\[A-Za-z]+", text)  # `\sqrt13`, `\frac110`
    if found is None and alone:
        found = re.match(r"\([^()]*\)", text)
    argument = found.group() if found else text[0]
    return f"{{{argument}}}", text[len(argument) :]


UNIT_TEXT = re.compile(r"\s*((?:\\text\s*\{[^{}\d]*\}[\s/.]*)+)(?:\^\s*\{?-?\d\}?)?$")
UNIT_WORDS = re.compile(r"(\d|\})( ?)([A-Za-z][A-Za-z./ ]*)(?:\^\s*\{?-?\d\}?)?$")


def _split_unit(text: str) -> Answer:
    match = UNIT_TEXT.search(text)
    if match and re.search(r"\d|\\(?!text)[A-Za-z]", text[: match.start()]):
        unit = re.sub(r"\\text|[{}]", " ", match.group(1))
        return Answer(text[: match.start()].strip(), _unit(unit))
    match = UNIT_WORDS.search(text)
    if match:
        names = match.group(3).lower().split()
        # A single bare letter is left alone: 5 m may be five times m
        known = len(names[0]) > 1 and _unit(match.group(3)) in UNITS.values()
        spelt = match.group(2) and len(names[0]) > 2 and not FUNCTIONS.union(["mod", "bmod"]).intersection(names)
        if (known or spelt) and not re.search(r"[A-Za-z]{3}", re.sub(r"\\[A-Za-z]+", "", text[: match.start(3)])):
            return Answer(text[: match.start(3)].strip(), _unit(match.group(3)))
    return Answer(text)


def _unit(text: str) -> str:
    name = re.sub(r"[.\s]", "", text.lower())
    return UNITS.get(name) or UNITS.get(name.removesuffix("s"), name)


def units_differ(first: str, second: str) -> bool:
    """Whether two units are both known and not the same."""
    known = UNITS.values()
    return first != second and first in known and second in known and "unit" not in (first, second)


def key(text: str) -> str:
    """What two spellings of one answer share. Not LaTeX any more: only for comparing."""
    text = re.sub(r"([_^])\s*\{(\w)\}", r"\1\2", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def words(text: str) -> tuple[str, ...] | None:
    """The words of an answer that is a text, in lower case; `None` where it is a formula."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    if re.search(r"[\\^_=<>+*/|]", plain):
        return None
    found = re.findall(r"[^\W_]+", plain)
    if "\\text" not in text and not any(len(w) > 2 and w.isalpha() and w.lower() not in FUNCTIONS for w in found):
        return None
    if not any(w.isalpha() for w in found) or re.match(r"\s*[\d(\[]", text):
        return None
    return tuple(w.casefold() for w in found if w.lower() != "the")


def choice(text: str) -> str | None:
    r"""The letter of a multiple-choice answer: `C`, `(C)`, `\text{(C)}`, `C.`, `(C) 12`; `None` where it is none."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    match = re.fullmatch(r"([A-J])[.):]?|([A-J])[.):]\s.*|\(([A-Ja-j])\)\s*.*", plain)
    return next(letter for letter in match.groups() if letter).upper() if match else None
