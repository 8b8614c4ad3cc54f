r"""Format rewards: 1.0 where a completion has the form that its prompt asked for, whether or not the answer is right.

    reward_funcs: [math, format_tags]
    reward_weights: [1.0, 0.1]

The forms are those of `sage_trl/data/prompts.py`. `format_boxed` is for `prompt_format: qwen-math` and for messages of
your own that ask for `\boxed{}`, `format_r1` for `r1`, `format_tags` for `tags`. `plain` asks for no form.
"""

from ..data.prompts import follows_format

# Name in a recipe -> the prompt format that asks for this form
FORMAT_OF_REWARD = {"format_boxed": "qwen-math", "format_r1": "r1", "format_tags": "tags"}


def format_boxed_reward(completions: list[str] | list[list[dict[str, str]]], **kwargs) -> list[float]:
    r"""
    Reward function that pays 1.0 for a completion with a closed, non-empty `\boxed{}`.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages; of messages, the last one is read.
        **kwargs:
            Dataset columns, ignored.

    Returns:
        `list[float]`: one reward per completion.
    """
    return _rewards("qwen-math", completions)


def format_r1_reward(completions: list[str] | list[list[dict[str, str]]], **kwargs) -> list[float]:
    r"""
    Reward function that pays 1.0 for reasoning that ends with one `</think>`, and a non-empty `\boxed{}` after it. The
    opening `<think>` may be missing, as the chat template may have written it.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages; of messages, the last one is read.
        **kwargs:
            Dataset columns, ignored.

    Returns:
        `list[float]`: one reward per completion.
    """
    return _rewards("r1", completions)


def format_tags_reward(completions: list[str] | list[list[dict[str, str]]], **kwargs) -> list[float]:
    """
    Reward function that pays 1.0 for reasoning that ends with one `<end_working_out>`, and then one non-empty
    `<SOLUTION>...</SOLUTION>` with nothing after it. The opening `<start_working_out>` may be missing, as the chat
    template may have written it.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages; of messages, the last one is read.
        **kwargs:
            Dataset columns, ignored.

    Returns:
        `list[float]`: one reward per completion.
    """
    return _rewards("tags", completions)


def _rewards(prompt_format: str, completions: list) -> list[float]:
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(follows_format(prompt_format, text)) for text in texts]
