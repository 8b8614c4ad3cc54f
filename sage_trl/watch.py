"""Notices during training that a guide does nothing: the run would look healthy, and be plain GRPO."""

import math

from accelerate.logging import get_logger

from .guides import GuideFunction

LEAST_ACTIVE = 0.001  # share of tokens
PATIENCE = 20  # optimizer steps

logger = get_logger(__name__)


class IdleGuideWatch:
    """
    Warns once when a guide leaves q at 1 on all but 0.1 % of the tokens for 20 steps.

    Args:
        guide ([`GuideFunction`]):
            The guide.
    """

    def __init__(self, guide: GuideFunction):
        self.guide = guide
        self.idle_since: int | None = None
        self.warned = False

    def see(self, step: int, active_frac: float) -> None:
        """
        Takes note of a micro-batch.

        Args:
            step (`int`):
                Optimizer steps done.
            active_frac (`float`):
                Share of its tokens whose q is not 1; NaN without a valid token, which says nothing.
        """
        if math.isnan(active_frac) or self.warned:
            return
        if active_frac >= LEAST_ACTIVE:
            self.idle_since = None
            return
        if self.idle_since is None:
            self.idle_since = step
        if step - self.idle_since >= PATIENCE:
            self.warned = True
            logger.warning(
                f"`sage/active_frac` has been below {100 * LEAST_ACTIVE:g} % for {PATIENCE} steps: guide "
                f"{self.guide!r} does next to nothing to this model. `sage-trl guide --config RECIPE` shows what it "
                "sees, and which of its settings would be in reach."
            )
