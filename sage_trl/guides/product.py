"""Guides multiplied."""

import math

import torch

from .base import GuideFunction, GuideSignals
from .rollout import Rollout


class ProductGuide(GuideFunction):
    """
    The product of several guides. The bounds `q_min` and `q_max` apply once, to the product.

    In a recipe it is a list: `guide: [branch, novelty]`, with `guide_kwargs` a list of as many mappings.

    Args:
        guides (`list[GuideFunction]`):
            The guides.
    """

    def __init__(self, guides: list[GuideFunction]):
        if len(guides) < 2:
            raise ValueError(f"`guides` of a product are {guides!r}; there must be two or more.")
        self.guides = list(guides)
        self.requires = tuple(dict.fromkeys(name for guide in self.guides for name in guide.requires))

    @property
    def depends_on_token(self) -> bool:
        return any(guide.depends_on_token for guide in self.guides)

    @property
    def looks_ahead(self) -> bool:
        return any(guide.looks_ahead for guide in self.guides)

    @property
    def parts(self) -> list[GuideFunction]:
        return [part for guide in self.guides for part in guide.parts]

    def remarks(self, signals: GuideSignals) -> list[str]:
        return [remark for index, guide in enumerate(self.guides) for remark in guide.remarks(signals.of_part(index))]

    @property
    def prepares(self) -> bool:
        return any(guide.prepares for guide in self.guides)

    def prepare(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        made = [guide.prepare(rollout) for guide in self.guides]
        return {f"{index}.{name}": value for index, part in enumerate(made) for name, value in part.items()}

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        return math.prod(guide(signals.of_part(index)) for index, guide in enumerate(self.guides))
