"""What an engine that samples has to do: prompts with seeds in, completions out.

A sample's randomness is its own, started by a seed of its own. So the same seed gives the same sample whichever
samples share its batch, up to the rounding of the model's own arithmetic, which can depend on the shape of a batch.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BACKENDS = ("transformers", "vllm")


def default_backend() -> str:
    """`"vllm"` where it is installed."""
    return "transformers" if importlib.util.find_spec("vllm") is None else "vllm"


def ignore(ended: int) -> None:
    """Nobody wants to know."""


def check_positions(config: "PreTrainedConfig", longest: int, max_tokens: int) -> None:
    """Raises [`ValueError`] where a completion can run past the positions that the model knows."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest + max_tokens > positions:
        room = f"Set it to at most {positions - longest}." if longest < positions else "No completion has room."
        raise ValueError(
            f"`max_completion_length` is {max_tokens}, the longest prompt has {longest} tokens, and the model has "
            f"{positions} positions. {room}"
        )


@dataclass(frozen=True)
class Request:
    """One completion that is wanted: the prompt's tokens and the place that its seed is derived from."""

    prompt_ids: tuple[int, ...]
    place: tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """
    How completions are sampled.

    Args:
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature; 0 takes the likeliest token.
        top_p (`float`, *optional*, defaults to `1.0`):
            Share of probability that is kept, the likeliest tokens first.
        top_k (`int`, *optional*, defaults to `0`):
            How many tokens are kept; 0 for all.
        max_tokens (`int`, *optional*, defaults to `3072`):
            Tokens after which a completion is cut off.
        min_p (`float`, *optional*, defaults to `0.0`):
            Share of the likeliest token's probability below which a token is left out.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 3072
    min_p: float = 0.0

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"`temperature` is {self.temperature}; it must be at least 0.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` is {self.top_p}; it must be above 0 and at most 1.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"`min_p` is {self.min_p}; it must lie between 0 and 1.")
        if self.top_k < 0:
            raise ValueError(f"`top_k` is {self.top_k}; it must be at least 0, where 0 keeps all tokens.")
        if self.max_tokens < 1:
            raise ValueError(f"`max_completion_length` is {self.max_tokens}; it must be at least 1.")


class Backend(Protocol):
    """What an engine has to do. `ends` are the tokens that end a completion."""

    ends: list[int]

    def generate(self, requests: list[Request], ended: Callable[[int], None] = ignore) -> list[list[int]]:
        """
        Samples one completion for each request.

        Args:
            requests (`list[Request]`):
                What is wanted.
            ended (`Callable`, *optional*):
                Told now and then how many more completions have ended, for a progress bar.

        Returns:
            `list[list[int]]`: token ids, the end token included where there is one.
        """
        ...
