"""Reward functions that verify an answer exactly, and how a recipe names one."""

from collections.abc import Callable

from ..imports import load_object, nearest

# Name in a recipe -> import path. TRL's own rewards are here under the names that TRL's script gives them.
REWARDS = {
    "countdown": "sage_trl.rewards.countdown:countdown_reward",
    "math": "sage_trl.rewards.math:math_reward",
    "format_boxed": "sage_trl.rewards.format:format_boxed_reward",
    "format_r1": "sage_trl.rewards.format:format_r1_reward",
    "format_tags": "sage_trl.rewards.format:format_tags_reward",
    "accuracy_reward": "trl.rewards.accuracy_rewards:accuracy_reward",
    "reasoning_accuracy_reward": "trl.rewards.accuracy_rewards:reasoning_accuracy_reward",
    "think_format_reward": "trl.rewards.format_rewards:think_format_reward",
}


def resolve_reward(name: str) -> Callable:
    """
    Loads the reward function that a recipe names.

    Args:
        name (`str`):
            A built-in name, or an import path `package.module:function` or `path/to/file.py:function`.

    Returns:
        `Callable`: takes `completions` and the dataset's columns, returns one `float` per completion.

    Raises:
        [`ValueError`], [`TypeError`], [`ImportError`]: with the setting, its value and what would be right.
    """
    if name not in REWARDS and ":" not in name:
        raise ValueError(
            f"`reward_funcs` names '{name}', which is no reward of this version.{nearest(name, REWARDS)} Choose from "
            f"{list(REWARDS)}, or an import path 'package.module:function' or 'path/to/file.py:function'."
        )
    reward = load_object(REWARDS.get(name, name), setting="reward_funcs")
    if not callable(reward):
        raise TypeError(f"`reward_funcs` names '{name}', which is {reward!r}, not a function.")
    return reward
