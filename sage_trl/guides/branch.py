"""The branch guide: a stronger anchor where the model is undecided, so that its branches are not cut off."""

import math

import torch

from .base import GuideFunction, GuideSignals, check_source


class BranchGuide(GuideFunction):
    """
    `q = 1 + ratio * relu(H - threshold)`, H the entropy in nats of the distribution each token was drawn from.

    q depends on the state alone, not on the token: see `docs/anchor.md` for the estimators under which that matters.

    Args:
        ratio (`float`, *optional*, defaults to `0.3`):
            Growth of q per nat above the threshold.
        threshold (`float`, *optional*, defaults to `1.2`):
            Entropy in nats below which a token is left alone.
        source (`str`, *optional*, defaults to `"policy"`):
            Whose entropy: `"policy"` or `"ref"`. The reference's comes out of the forward pass that is made anyway.
    """

    depends_on_token = False
    looks_ahead = False

    def __init__(self, ratio: float = 0.3, threshold: float = 1.2, source: str = "policy"):
        if not math.isfinite(ratio) or ratio < 0:
            raise ValueError(f"`ratio` is {ratio!r}; it must be a finite number of at least 0.")
        if not math.isfinite(threshold):
            raise ValueError(f"`threshold` is {threshold!r}; it must be a finite number of nats.")
        self.ratio = ratio
        self.threshold = threshold
        self.source = check_source(source)
        self.requires = ("entropies",) if source == "policy" else ("ref_entropies",)

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        return 1 + self.ratio * torch.relu(self._entropies(signals) - self.threshold)

    def _entropies(self, signals: GuideSignals) -> torch.Tensor:
        return signals.entropies if self.source == "policy" else signals.ref_entropies

    def remarks(self, signals: GuideSignals) -> list[str]:
        entropies = self._entropies(signals)[signals.mask]
        below = (entropies <= self.threshold).float().mean().item()
        if not below >= 0.99:
            return []
        share = math.floor(1000 * below) / 10
        levels = torch.tensor([0.5, 0.9, 0.99], device=entropies.device)
        above = "all" if below == 1 else f"{share:.1f} %"
        half, most, nearly_all = entropies.sort().values[(levels * (len(entropies) - 1)).long()].tolist()
        return [
            f"`threshold` {self.threshold:g} is above {above} of this model's entropies: this "
            f"guide will do {'nothing' if below == 1 else 'next to nothing'}. Half of them are below {half:.2f}, "
            f"90 % below {most:.2f} and 99 % below {nearly_all:.2f} nats."
        ]
