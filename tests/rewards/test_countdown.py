import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_trl.rewards.countdown import countdown_reward, is_correct, max_answer_length

RIGHT = [
    ("3 * 5 + 25", [3, 5, 25], 40),
    ("3*5+25", [25, 3, 5], 40),
    ("( 25 + 3 * 5 )", [3, 5, 25], 40),
    ("((((25)) + (3 * (5))))", [3, 5, 25], 40),
    ("3 * 5 + 25 = 40", [3, 5, 25], 40),
    ("3 × 5 + 25", [3, 5, 25], 40),
    ("8 ÷ 2 − 1", [8, 2, 1], 3),
    ("1 / 3 * 6", [1, 3, 6], 2),  # through a fraction
    ("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24),  # floating point would give 23.999…
    ("3 - 5 + 9", [3, 5, 9], 7),  # through a negative value
    ("9 - 3 - 2", [9, 3, 2], 4),  # from the left
    ("16 / 4 / 2", [16, 4, 2], 2),
    ("2 - 1 * 2", [1, 2, 2], 0),
    ("Let me think.\n3 + 5\n\n3 * 5 + 25\n \n", [3, 5, 25], 40),
    ("so <answer> 3 * 5 + 25 </answer> done", [3, 5, 25], 40),
    ("<answer>1</answer> no: <answer>3 * 5 + 25</answer>", [3, 5, 25], 40),
    ("<answer>3 * 5 + 25</answer> </answer>", [3, 5, 25], 40),
    ("<answer>\n3 * 5 + 25\n</answer>\n1 + 1", [3, 5, 25], 40),
    ("<answer>\n3 * 5 + 25", [3, 5, 25], 40),  # no closing tag: the last line counts
    ("7", [7], 7),
]

WRONG = [
    ("3 * 5 + 25", [3, 5, 25], 41),
    ("3 * 5 + 25", [3, 5, 25, 1], 40),  # a number left out
    ("3 * 5 + 25", [3, 5], 40),  # a number not given
    ("3 * 5 + 25 + 3 - 3", [3, 5, 25], 40),  # a number used twice
    ("5 + 5", [5, 3], 10),
    ("40", [3, 5, 25], 40),
    ("3 * 5 + 25 = 41", [3, 5, 25], 40),
    ("40 = 3 * 5 + 25", [3, 5, 25], 40),
    ("3 * 5 + 25 = 40 = 40", [3, 5, 25], 40),
    ("3 * 5 + 25 = 20 + 20", [3, 5, 25], 40),
    ("3 * 5 + 25 =", [3, 5, 25], 40),
    ("3 * 5 + 26 = 40", [3, 5, 25], 40),
    ("-3 + 5 + 8", [3, 5, 8], 10),  # sign in front of a number
    ("5 + +3", [5, 3], 8),
    ("5 - -3", [5, 3], 8),
    ("+ 5 + 3", [5, 3], 8),
    ("3 5 + 0", [3, 5, 0], 35),  # givens cannot be joined into one
    ("35", [3, 5], 35),
    ("3 (5)", [3, 5], 15),  # implied multiplication
    ("(3)(5)", [3, 5], 15),
    ("2 ** 3", [2, 3], 8),
    ("7 // 2", [7, 2], 3),
    ("2 ^ 3", [2, 3], 8),
    ("5 % 3", [5, 3], 2),
    ("3.0 + 5", [3, 5], 8),
    ("3,5", [3, 5], 8),
    ("03 + 5", [3, 5], 8),
    ("1_0 + 5", [10, 5], 15),
    ("1e1 + 5", [10, 5], 15),
    ("0x3 + 5", [3, 5], 8),
    ("٣ + 5", [3, 5], 8),  # digits, but not ASCII
    ("3² + 5", [3, 5, 2], 14),
    ("\uff13 + 5", [3, 5], 8),  # full-width digit
    ("3 / 0", [3, 0], 0),
    ("3 / (5 - 5)", [3, 5, 5], 0),
    ("(3 + 5", [3, 5], 8),
    ("3 + 5)", [3, 5], 8),
    ("() 3 + 5", [3, 5], 8),
    ("3 +", [3], 3),
    ("3 + 5 # easy", [3, 5], 8),
    ("int('3') + 5", [3, 5], 8),
    ("__import__('os')", [3, 5], 8),
    ("3 + 5\nTrust me.", [3, 5], 8),  # the last line is the answer
    ("3 + 5 <answer>3 * 5</answer>", [3, 5], 8),  # the tag goes before the text around it
    ("3 + 5\n<answer></answer>", [3, 5], 8),
    ("<answer>3\n+ 5</answer>", [3, 5], 8),  # one line
    ("3 + 5\x00", [3, 5], 8),
    ("", [3, 5], 8),
    (" \n\t\n", [3, 5], 8),
]


@pytest.mark.parametrize(("completion", "numbers", "target"), RIGHT)
def test_right_answers(completion, numbers, target):
    assert is_correct(completion, numbers, target)


@pytest.mark.parametrize(("completion", "numbers", "target"), WRONG)
def test_wrong_answers(completion, numbers, target):
    assert not is_correct(completion, numbers, target)


@pytest.mark.parametrize(
    "completion",
    [
        "(" * 100_000 + "3 + 5" + ")" * 100_000,
        "(" * 1_000_000,
        "9" * 1_000_000,  # longer than int() accepts
        "3 + 5" + " " * 1_000_000 + "= 8",
        "1 + " * 250_000 + "1",
        "<answer>" * 125_000,
        "</answer>" * 125_000,
        "<answer>" * 60_000 + "</answer>" * 60_000,
        "\n" * 1_000_000,
        "\x00" * 1_000_000,
    ],
    ids=["deep", "open", "digits", "spaces", "sum", "openings", "closings", "both", "lines", "nul"],
)
def test_huge_inputs_are_refused_fast(completion):
    start = time.perf_counter()
    assert not is_correct(completion, [3, 5], 8)
    assert time.perf_counter() - start < 0.5


def test_the_length_bound_is_exact():
    numbers, target = [3, 5], 8
    room = max_answer_length(numbers, target) - len("3 + 5")
    assert is_correct("3" + " " * room + " + 5", numbers, target)
    assert not is_correct("3" + " " * (room + 1) + " + 5", numbers, target)


def test_the_deepest_answer_within_the_bound_is_read():
    numbers = list(range(1, 13))
    depth = (max_answer_length(numbers, 78) - len("+".join(map(str, numbers)))) // 2
    assert is_correct("(" * depth + "+".join(map(str, numbers)) + ")" * depth, numbers, 78)


def test_reward_reads_text_and_messages():
    numbers, target = [[3, 5], [3, 5], [2, 4]], [8, 8, 8]
    texts = ["3 + 5", "3 * 5", "2 * 4"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert countdown_reward(completions=texts, numbers=numbers, target=target, prompts=["?"] * 3) == [1.0, 0.0, 1.0]
    assert countdown_reward(completions=messages, numbers=numbers, target=target) == [1.0, 0.0, 1.0]


# The answer tag, all symbols of the grammar and their look-alikes, so that many strings come near to an expression.
FRAGMENTS = [*"0123456789+-*/()= \n×÷−٣²_.^\x00", "**", "//", "<answer>", "</answer>"]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_never_raises_and_no_short_cut_is_right(completion):
    # No expression over these numbers reaches the target, so anything accepted is a fault.
    assert is_correct(completion, [1, 2, 3], 1000) is False


def random_expression(numbers, rng):
    """An expression over all `numbers` and its value (`None` after a division by zero), built side by side."""
    if len(numbers) == 1:
        return str(numbers[0]), Fraction(numbers[0])
    cut = rng.randint(1, len(numbers) - 1)
    left_text, left = random_expression(numbers[:cut], rng)
    right_text, right = random_expression(numbers[cut:], rng)
    operator = rng.choice("+-*/")
    text = f"({left_text}){operator}({right_text})"
    if left is None or right is None or (operator == "/" and right == 0):
        return text, None
    if operator == "+":
        return text, left + right
    if operator == "-":
        return text, left - right
    return text, left * right if operator == "*" else left / right


@settings(max_examples=300)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 2**32))
def test_agrees_with_a_value_computed_beside_the_expression(numbers, seed):
    text, value = random_expression(numbers, random.Random(seed))
    shown = list(reversed(numbers))
    if value is None or value.denominator > 1:
        # Not an integer: no integer target may match, in particular not the rounded one.
        assert not is_correct(text, shown, 0 if value is None else round(value))
    else:
        assert is_correct(text, shown, int(value))
        assert not is_correct(text, shown, int(value) + 1)
        assert not is_correct(text, [*shown, 1], int(value))


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("+-*")), min_size=1, max_size=6))
def test_precedence_agrees_with_python(pairs):
    text = " ".join(f"{number} {operator}" for number, operator in pairs)[:-1]
    assert is_correct(text, [number for number, _ in pairs], eval(text))  # digits and + - * only
