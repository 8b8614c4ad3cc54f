"""The token guide: favour tokens that are surprising for their completion, by an amount that cycles over the run."""

from collections.abc import Callable

import torch

from .base import GuideFunction, GuideSignals, check_source
from .schedule import cycles_from

TINY = torch.finfo(torch.float32).tiny
QUANTILES = (0.05, 0.95)
MIN_SPREAD = 1e-6


class TokenGuide(GuideFunction):
    """
    `q = 1 + alpha_t * w + sigma_t * w * noise`, w the surprisal of each token normalised to `[0, 1]` over its
    completion's valid tokens, noise standard normal, alpha and sigma on [`CosineCycles`].

    Args:
        alpha (`tuple[float, float]`, *optional*, defaults to `(0.3, 0.1)`):
            Upper and lower bound of the strength. One number keeps it constant.
        sigma (`tuple[float, float]`, *optional*, defaults to `(0.25, 0.1)`):
            Upper and lower bound of the noise. One number keeps it constant.
        num_cycles (`int`, *optional*, defaults to `8`):
            Cycles of both schedules in the run.
        decay (`float`, *optional*, defaults to `0.9`):
            Factor of both upper bounds from one cycle to the next.
        norm (`str`, *optional*, defaults to `"minmax"`):
            `"minmax"` (between the 5 % and 95 % quantiles), `"rank"` or `"zscore"` (through a sigmoid).
        source (`str`, *optional*, defaults to `"policy"`):
            Whose surprisal: `"policy"` or `"ref"`.
    """

    def __init__(
        self,
        alpha: tuple[float, float] = (0.3, 0.1),
        sigma: tuple[float, float] = (0.25, 0.1),
        num_cycles: int = 8,
        decay: float = 0.9,
        norm: str = "minmax",
        source: str = "policy",
    ):
        if norm not in NORMS:
            raise ValueError(f"`norm` is {norm!r}; it must be one of {sorted(NORMS)}.")
        self.alpha = cycles_from("alpha", alpha, num_cycles, decay)
        self.sigma = cycles_from("sigma", sigma, num_cycles, decay)
        self.norm = norm
        self.source = check_source(source)
        self.requires = ("policy_logps",) if source == "policy" else ("ref_logps",)

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        surprisal = -(signals.policy_logps if self.source == "policy" else signals.ref_logps)
        weights = NORMS[self.norm](surprisal, signals.mask)
        strength = self.alpha.value(signals.step, signals.max_steps)
        sigma = self.sigma.value(signals.step, signals.max_steps)
        if sigma > 0:
            strength = strength + sigma * signals.randn()
        # A draw far enough out would make q negative; q_min takes over from here.
        return (1 + strength * weights).clamp(min=TINY)


def minmax_weights(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Position of each valid value between its row's 5 % and 95 % quantiles, clipped to `[0, 1]`. Shapes `(B, T)`.

    A row of one value or of equal ones gets 0.
    """
    counts = mask.sum(-1, keepdim=True)
    in_order = values.masked_fill(~mask, torch.inf).sort(dim=-1).values
    low, high = (_quantile(in_order, counts, level) for level in QUANTILES)
    weights = (values.clamp(low, high) - low) / (high - low).clamp(min=MIN_SPREAD)
    return torch.where(mask, weights, 0.0)


def _quantile(in_order: torch.Tensor, counts: torch.Tensor, level: float) -> torch.Tensor:
    """Linearly interpolated quantile of the first `counts` values of each sorted row. Shape `(B, 1)`."""
    position = level * (counts - 1).clamp(min=0)
    below, above = (in_order.gather(-1, index.long()) for index in (position.floor(), position.ceil()))
    return torch.lerp(below, above, (position - position.floor()).to(below.dtype))


def rank_weights(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Rank of each valid value in its row divided by the highest rank. Shapes `(B, T)`.

    Ties keep the order of the tokens; a row of one value gets 0.
    """
    order = values.masked_fill(~mask, torch.inf).argsort(dim=-1, stable=True)
    positions = torch.arange(values.size(-1), device=values.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(-1, order, positions)
    highest = (mask.sum(-1, keepdim=True) - 1).clamp(min=1)
    return torch.where(mask, ranks / highest, 0.0)


def zscore_weights(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Sigmoid of each valid value's distance from its row's mean in population standard deviations. Shapes `(B, T)`.

    A row of one value or of equal ones gets 0.5.
    """
    counts = mask.sum(-1, keepdim=True).clamp(min=1)
    # Measured from the row's minimum, so that equal values differ from their mean by exactly 0.
    lowest = values.masked_fill(~mask, torch.inf).amin(-1, keepdim=True)
    centred = torch.where(mask, values - lowest, 0.0)
    centred = torch.where(mask, centred - centred.sum(-1, keepdim=True) / counts, 0.0)
    spread = (centred.square().sum(-1, keepdim=True) / counts).sqrt().clamp(min=MIN_SPREAD)
    return torch.where(mask, torch.sigmoid(centred / spread), 0.0)


NORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "minmax": minmax_weights,
    "rank": rank_weights,
    "zscore": zscore_weights,
}
