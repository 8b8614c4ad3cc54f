"""The random guide: the control that a guide has to beat. It perturbs tokens without looking at them."""

import torch

from .base import GuideFunction, GuideSignals
from .schedule import cycles_from

TINY = torch.finfo(torch.float32).tiny


class RandomGuide(GuideFunction):
    """
    `q = 1 + sigma_t * noise` on tokens picked with probability `p_t`, 1 elsewhere; noise standard normal, p and sigma
    on [`CosineCycles`].

    Args:
        probability (`tuple[float, float]`, *optional*, defaults to `(0.1, 0.0)`):
            Upper and lower bound of the share of tokens. One number keeps it constant.
        sigma (`tuple[float, float]`, *optional*, defaults to `(0.15, 0.05)`):
            Upper and lower bound of the noise. One number keeps it constant.
        num_cycles (`int`, *optional*, defaults to `8`):
            Cycles of both schedules in the run.
        decay (`float`, *optional*, defaults to `0.9`):
            Factor of both upper bounds from one cycle to the next.
    """

    requires = ()

    depends_on_token = False  # its noise is the same whichever token was drawn
    looks_ahead = False

    def __init__(
        self,
        probability: tuple[float, float] = (0.1, 0.0),
        sigma: tuple[float, float] = (0.15, 0.05),
        num_cycles: int = 8,
        decay: float = 0.9,
    ):
        self.probability = cycles_from("probability", probability, num_cycles, decay)
        self.sigma = cycles_from("sigma", sigma, num_cycles, decay)
        if self.probability.upper > 1:
            raise ValueError(f"`probability` is {probability!r}; it must lie between 0 and 1.")

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        picked = signals.rand() < self.probability.value(signals.step, signals.max_steps)
        perturbed = 1 + self.sigma.value(signals.step, signals.max_steps) * signals.randn()
        # A draw far enough out would make q negative; q_min takes over from here.
        return torch.where(picked, perturbed, 1.0).clamp(min=TINY)
