r"""The answer in a completion. Plain text work in linear time: it runs in the trainer's own process.

extract(completion)   the last box or answer tag; else what follows the last "answer is"
final_answer(text)    the answer of a worked solution: what follows `####`, else the last box, else all of it
"""

import re

# An answer longer than this is not read: it is wrong.
MAX_ANSWER = 2_000
# How far before the last box its run of boxes, and a box around it, are looked for.
BOX_WINDOW = 10_000

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
BRACE = re.compile(r"\\[\\{}]|[{}]")
END_OF_OPEN_BOX = re.compile(r"(?<!\\)\$|\\\]|\\\)|\n|<\|")
BETWEEN_BOXES = re.compile(r"(?:[ $,;]|\\[,;\]\[)( ]|\\quad|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")
ANSWER_TAG = re.compile(r"<(answer|solution)>", re.IGNORECASE)
ANSWER_PHRASE = re.compile(r"answer[*_]*(?:\s+is\s*:?|\s*:)[\s*_]*(?:(?:option|choice)\s+)?", re.IGNORECASE)
DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def extract(completion: str) -> str | None:
    r"""
    Finds the answer that a completion ends with.

    Args:
        completion (`str`):
            What the model wrote, however long.

    Returns:
        `str` or `None`: the answer; boxes that stand side by side, as `\boxed{2}, \boxed{3}`, are one list. `None`
        where there is none.
    """
    opening = None
    for match in ANSWER_TAG.finditer(completion):
        opening = match
    if opening is not None:
        inside, closing, after = _partition_folded(completion[opening.end() :], f"</{opening.group(1)}>")
        if closing and not BOX.search(after):
            return _boxed(inside) or _short(inside)
    return _boxed(completion) or _after_phrase(completion)


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
        return _boxed(solution) or ""
    return solution.strip()


def _partition_folded(text: str, tag: str) -> tuple[str, bool, str]:
    match = re.search(re.escape(tag), text, re.IGNORECASE)
    return (text[: match.start()], True, text[match.end() :]) if match else (text, False, "")


def _boxed(text: str) -> str | None:
    last = max(text.rfind(name) for name in ("\\boxed", "\\fbox", "\\framebox"))
    if last < 0:
        return None
    text = text[max(0, last - BOX_WINDOW) :]
    ends = closing_braces(text)
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
        content = unbox(content).strip()
        if content.strip("{} "):
            spans.append((start, end, content))
    if not spans:
        return None
    run = [spans[-1]]
    while len(run) < len(spans) and BETWEEN_BOXES.fullmatch(text, spans[-len(run) - 1][1], run[0][0]):
        run.insert(0, spans[-len(run) - 1])
    return ", ".join(dict.fromkeys(content for *_, content in run))


def unbox(text: str) -> str:
    """Leaves out the boxes within a box, commands and braces, and keeps what they hold."""
    ends, out = closing_braces(text), set()
    for match in BOX.finditer(text):
        out.update(range(match.start(), match.end()))
        if match.end() in ends:
            out.update((match.end(), ends[match.end()]))
    return "".join(char for index, char in enumerate(text) if index not in out)


def closing_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of the brace that closes it."""
    ends, stack = {}, []
    for match in BRACE.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            ends[stack.pop()] = match.start()
    return ends


def _close(text: str) -> str:
    braces = [match.group() for match in BRACE.finditer(text)]
    return text + "}" * max(0, braces.count("{") - braces.count("}"))


def _after_phrase(text: str) -> str | None:
    text, last = text[-BOX_WINDOW:], None
    for match in ANSWER_PHRASE.finditer(text):
        last = match
    if last is None:
        return None
    rest = text[last.end() :]
    formula = DELIMITED.match(rest)
    if formula:
        return _short(next(group for group in formula.groups() if group))
    return _short(re.split(r"\n|\.(?=\s)", rest, maxsplit=1)[0].rstrip(" .*_"))


def _short(text: str) -> str | None:
    text = text.strip()
    return text if 0 < len(text) <= MAX_ANSWER else None
