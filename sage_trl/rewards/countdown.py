"""Exact verifier of countdown answers.

The answer is the text of the last `<answer>...</answer>` of a completion, or its last non-empty line when there is no
such pair. It is right if it is an expression in + - * / and parentheses that uses every given number exactly once and
whose value, in exact rational arithmetic, is the target. The grammar is deliberately small:

    equation   = expression [ "=" number ]          the number must be the target
    expression = term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = number | "(" expression ")"

So there is no sign in front of a number, no implied multiplication, no power, no floor division and no decimals; a
number is ASCII digits without a leading zero. `×`, `÷` and `−` stand for `*`, `/` and `-`. Division by zero is wrong.
An answer longer than `max_answer_length` is wrong unread, which bounds time and recursion for any input.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

TOKEN = re.compile(r"[0-9]+|[-+*/()=]")
SPACES = " \t"
UNICODE_OPERATORS = str.maketrans({"×": "*", "÷": "/", "−": "-"})


def countdown_reward(
    completions: list[str] | list[list[dict[str, str]]],
    numbers: list[list[int]],
    target: list[int],
    **kwargs,
) -> list[float]:
    """
    Reward function that pays 1.0 for a right countdown answer and 0.0 for any other.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages; of messages, the last one is read.
        numbers (`list[list[int]]`):
            Given numbers of each problem.
        target (`list[int]`):
            Target of each problem.
        **kwargs:
            Other dataset columns, ignored.

    Returns:
        `list[float]`: one reward per completion.
    """
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(is_correct(*row)) for row in zip(texts, numbers, target, strict=True)]


def is_correct(completion: str, numbers: Sequence[int], target: int) -> bool:
    """
    Tells whether a completion solves a countdown problem. Never raises, whatever the completion.

    Args:
        completion (`str`):
            What the model wrote.
        numbers (`Sequence[int]`):
            Given numbers, each to be used exactly once.
        target (`int`):
            Value to reach.

    Returns:
        `bool`: whether the answer is right.
    """
    answer = extract_answer(completion)
    if len(answer) > max_answer_length(numbers, target):
        return False
    try:
        parser = _Parser(answer.translate(UNICODE_OPERATORS))
        value = parser.equation()
    except _WrongAnswer:
        return False
    return value == target and Counter(parser.numbers) == Counter(numbers) and parser.claim in (None, target)


def extract_answer(completion: str) -> str:
    """The text of the last `<answer>...</answer>`, else the last non-empty line."""
    # Searched by position, not by regular expression: many openings without an end would make that quadratic.
    opening = completion.rfind("<answer>", 0, max(completion.rfind("</answer>"), 0))
    if opening >= 0:
        return completion[opening:].removeprefix("<answer>").partition("</answer>")[0].strip()
    return completion.strip().rpartition("\n")[2].strip()


def max_answer_length(numbers: Sequence[int], target: int) -> int:
    """
    Most characters that an answer may have. n numbers need n - 1 operators and, even with every useful pair of
    parentheses doubled, 4n parentheses; with two spaces around each of those and the claimed target that is at most
    30 characters per number.
    """
    digits = sum(len(str(number)) for number in numbers) + len(str(target))
    return digits + 30 * (len(numbers) + 1)


class _WrongAnswer(ValueError):
    pass


class _Parser:
    """Recursive descent over the grammar above; `numbers` and `claim` collect what was read on the way."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokenize(text)
        self.position = 0
        self.numbers: list[int] = []
        self.claim: int | None = None

    def equation(self) -> Fraction:
        value = self.expression()
        if self.accept("="):
            self.claim = self.number()
        if self.position < len(self.tokens):
            raise _WrongAnswer
        return value

    def expression(self) -> Fraction:
        value = self.term()
        while operator := self.accept("+", "-"):
            right = self.term()
            value = value + right if operator == "+" else value - right
        return value

    def term(self) -> Fraction:
        value = self.factor()
        while operator := self.accept("*", "/"):
            right = self.factor()
            if operator == "/" and right == 0:
                raise _WrongAnswer
            value = value * right if operator == "*" else value / right
        return value

    def factor(self) -> Fraction:
        if self.accept("("):
            value = self.expression()
            if not self.accept(")"):
                raise _WrongAnswer
            return value
        number = self.number()
        self.numbers.append(number)
        return Fraction(number)

    def number(self) -> int:
        if self.position == len(self.tokens) or not self.tokens[self.position][0].isdigit():
            raise _WrongAnswer
        text = self.tokens[self.position]
        if text[0] == "0" and text != "0":
            raise _WrongAnswer
        self.position += 1
        return int(text)

    def accept(self, *choices: str) -> str | None:
        """Reads the next token if it is one of `choices`."""
        if self.position == len(self.tokens) or self.tokens[self.position] not in choices:
            return None
        self.position += 1
        return self.tokens[self.position - 1]


def _tokenize(text: str) -> list[str]:
    tokens, start = [], 0
    while start < len(text):
        if text[start] in SPACES:
            start += 1
            continue
        match = TOKEN.match(text, start)
        if match is None:
            raise _WrongAnswer
        tokens.append(match.group())
        start = match.end()
    return tokens
