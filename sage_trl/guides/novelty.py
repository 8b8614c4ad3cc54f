"""The novelty guide: a stronger anchor under correct completions that are found rarely, or in another way."""

import torch

from .base import GuideFunction, GuideSignals
from .rollout import Rollout


class NoveltyGuide(GuideFunction):
    """
    `q = 1 + scale * (novelty + rarity) / 2` on all tokens of a correct completion, 1 on all others.

    - *novelty* is 1 less the largest overlap with another correct completion of the same prompt: the Jaccard index of
      their sets of token n-grams. A group's only correct completion has novelty 1.
    - *rarity* is 1 less the share of the group that is correct.

    It reads rewards, so q depends on r. The optimum is `q * ref * exp(r / beta)` all the same, with a q that is larger
    where r is: the guide is a reward for being new among the correct, which no policy before this update can earn by
    being new and wrong.

    Args:
        scale (`float`, *optional*, defaults to `0.3`):
            Growth of q for a completion that is new and whose prompt is hardly ever solved.
        ngram (`int`, *optional*, defaults to `4`):
            Tokens of an n-gram. A completion of fewer tokens has none, and overlaps with nothing.
        min_pass (`float`, *optional*, defaults to `0.0`):
            Share of a group that must be correct. Below it all completions are left alone, as lucky guesses may be.
    """

    requires = ()

    def __init__(self, scale: float = 0.3, ngram: int = 4, min_pass: float = 0.0):
        if not 0 <= scale < float("inf"):
            raise ValueError(f"`scale` is {scale!r}; it must be a finite number of at least 0.")
        if not isinstance(ngram, int) or ngram < 1:
            raise ValueError(f"`ngram` is {ngram!r}; it must be an integer of at least 1.")
        if not 0 <= min_pass <= 1:
            raise ValueError(f"`min_pass` is {min_pass!r}; it must lie between 0 and 1.")
        self.scale, self.ngram, self.min_pass = scale, ngram, min_pass

    def prepare(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        correct = rollout.correct.view(-1, rollout.group_size)
        pass_rate = correct.float().mean(1, keepdim=True)
        overlap = ngram_overlap(rollout.completion_ids, rollout.mask, rollout.group_size, self.ngram)
        others = correct.unsqueeze(1) & ~torch.eye(rollout.group_size, dtype=torch.bool, device=correct.device)
        novelty = 1 - torch.where(others, overlap, 0.0).amax(-1)
        counts = correct & (pass_rate >= self.min_pass)
        bonus = torch.where(counts, (novelty + 1 - pass_rate) / 2, 0.0)
        return {"novelty": bonus.flatten()}

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        bonus = signals.extra["novelty"].unsqueeze(1).expand(signals.mask.shape)
        return 1 + self.scale * bonus

    def remarks(self, signals: GuideSignals) -> list[str]:
        if (signals.extra["novelty"] > 0).any():
            return []
        return ["No completion is correct and new, so this guide does nothing here. Look at more problems."]


def ngram_overlap(ids: torch.Tensor, mask: torch.Tensor, group_size: int, ngram: int) -> torch.Tensor:
    """
    Jaccard index of the sets of token n-grams of each two completions of a group.

    Args:
        ids (`torch.Tensor` of shape `(N, T)`):
            Token ids, groups together.
        mask (`torch.Tensor` of shape `(N, T)`):
            True where a token counts.
        group_size (`int`):
            Completions of one prompt.
        ngram (`int`):
            Tokens of an n-gram.

    Returns:
        `torch.Tensor` of shape `(N / group_size, group_size, group_size)`: between 0 and 1; 0 where neither has any.
    """
    num_groups = len(ids) // group_size
    if ids.size(1) < ngram:
        return torch.zeros(num_groups, group_size, group_size, device=ids.device)
    windows, valid = ids.unfold(1, ngram, 1), mask.unfold(1, ngram, 1).all(-1)
    # Every n-gram of a group gets a number; a set is a row of ones at its numbers. The group is part of the n-gram
    group = (torch.arange(len(ids), device=ids.device) // group_size).view(-1, 1, 1).expand(-1, windows.size(1), 1)
    grams = torch.cat([group, windows], dim=-1)[valid]
    if len(grams) == 0:
        return torch.zeros(num_groups, group_size, group_size, device=ids.device)
    distinct, numbers = torch.unique(grams, dim=0, return_inverse=True)
    rows = torch.arange(len(ids), device=ids.device).unsqueeze(1).expand(valid.shape)[valid]
    members = torch.unique(torch.stack([rows, numbers]), dim=1)
    sets = torch.sparse_coo_tensor(members, torch.ones(members.size(1), device=ids.device), (len(ids), len(distinct)))
    shared = torch.sparse.mm(sets, sets.t()).to_dense()
    shared = shared.view(num_groups, group_size, num_groups, group_size)
    shared = shared.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    sizes = torch.sparse.sum(sets, dim=1).to_dense().view(num_groups, group_size)
    union = sizes.unsqueeze(1) + sizes.unsqueeze(2) - shared
    return shared / union.clamp(min=1)
