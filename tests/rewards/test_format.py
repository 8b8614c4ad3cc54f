import pytest

from sage_trl.data.prompts import PROMPT_FORMATS, follows_format
from sage_trl.rewards import resolve_reward
from sage_trl.rewards.format import FORMAT_OF_REWARD, format_tags_reward

TAGS = "We add.<end_working_out>\n<SOLUTION>2</SOLUTION>"


@pytest.mark.parametrize(
    ("reward", "completion", "expected"),
    [
        ("format_boxed", r"so \boxed{2}.", 1.0),
        ("format_boxed", r"so \boxed{}.", 0.0),
        ("format_boxed", r"so \boxed{2", 0.0),
        ("format_boxed", "so 2", 0.0),
        ("format_r1", "<think>\nWe add.\n</think>\n" + r"\boxed{2}", 1.0),
        ("format_r1", r"We add.</think>\boxed{2}", 1.0),  # the template wrote <think>
        ("format_r1", r"<think></think>\boxed{2}", 0.0),
        ("format_r1", r"<think>We add. \boxed{2}</think>", 0.0),
        ("format_r1", r"<think>We add.</think></think>\boxed{2}", 0.0),
        ("format_r1", r"<think><think>We add.</think>\boxed{2}", 0.0),
        ("format_r1", r"<think>We add. \boxed{2}", 0.0),
        ("format_r1", "<think>We add.</think>2", 0.0),
        ("format_tags", TAGS, 1.0),
        ("format_tags", f"<start_working_out>{TAGS}\n", 1.0),
        ("format_tags", TAGS.replace(">2<", "> <"), 0.0),
        ("format_tags", TAGS + " done", 0.0),
        ("format_tags", TAGS + "<SOLUTION>3</SOLUTION>", 0.0),
        ("format_tags", TAGS.replace("<SOLUTION>", "<SOLUTION><SOLUTION>"), 0.0),
        ("format_tags", TAGS.replace("<SOLUTION>", "</SOLUTION><SOLUTION>"), 0.0),
        ("format_tags", TAGS.removesuffix("</SOLUTION>"), 0.0),
        ("format_tags", "<SOLUTION>1</SOLUTION>" + TAGS, 0.0),
        ("format_tags", TAGS.removeprefix("We add."), 0.0),
        ("format_tags", "<SOLUTION>2</SOLUTION>", 0.0),
        ("format_tags", "", 0.0),
    ],
)
def test_a_form_is_paid_where_it_is_whole(reward, completion, expected):
    messages = [[{"role": "assistant", "content": completion}]]
    assert resolve_reward(reward)([completion], answer=["2"]) == [expected]
    assert resolve_reward(reward)(messages, answer=["2"]) == [expected]


def test_order_is_kept():
    assert format_tags_reward(["2", TAGS, "2", TAGS]) == [0.0, 1.0, 0.0, 1.0]


def test_every_format_that_asks_for_a_form_has_its_reward():
    assert set(FORMAT_OF_REWARD.values()) == set(PROMPT_FORMATS) - {"plain"}
    assert follows_format("plain", "anything")
