"""A generation batch as a guide may look at it: whole groups, before the loss sees a part of them."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase


@dataclass
class Rollout:
    """
    What was generated for some prompts, on all processes together. N is the number of completions, T the longest of
    them in tokens; the completions of one prompt stand together.

    Args:
        completion_ids (`torch.Tensor` of shape `(N, T)`):
            Token ids of the completions, padded on the right.
        mask (`torch.Tensor` of shape `(N, T)`):
            True where a token counts: neither padding nor a tool's output, and of no truncated completion where
            `mask_truncated_completions` leaves those out.
        rewards (`torch.Tensor` of shape `(N,)`):
            Weighted sum of the rewards.
        correct (`torch.Tensor` of shape `(N,)`):
            True where `pass_reward` is above `pass_threshold`.
        group_size (`int`):
            Completions of one prompt.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            The tokenizer of the ids.
        step (`int`, *optional*, defaults to `0`):
            Optimizer steps done.
        max_steps (`int`, *optional*, defaults to `1`):
            Optimizer steps of the whole run.
    """

    completion_ids: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    correct: torch.Tensor
    group_size: int
    tokenizer: PreTrainedTokenizerBase | None = None
    step: int = 0
    max_steps: int = 1

    @property
    def group(self) -> torch.Tensor:
        """Number of each completion's group, shape `(N,)`."""
        return torch.arange(len(self.completion_ids), device=self.mask.device) // self.group_size

    def texts(self) -> list[str]:
        """The completions as text. Decoded on each call, which takes its time: keep what you need."""
        rows = zip(self.completion_ids.tolist(), self.mask.tolist(), strict=True)
        valid = [[token for token, is_valid in zip(*row, strict=True) if is_valid] for row in rows]
        return self.tokenizer.batch_decode(valid)
