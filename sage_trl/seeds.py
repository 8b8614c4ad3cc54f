"""Seeds that are derived from where something stands, so that nothing is drawn from a global generator."""

import numpy as np
import torch


def derive_seed(*place: int) -> int:
    """A seed of 63 bits from numbers of at least 0, such as (seed, step, process)."""
    return int(np.random.SeedSequence([int(part) for part in place]).generate_state(1, np.uint64)[0] >> 1)


class StepSeeds:
    """
    Places of the micro-batches of a run, each step's counted from 0: what their randomness is derived from. A resumed
    run repeats an uninterrupted one, since nothing is drawn from a global generator.
    """

    def __init__(self):
        self.last = (-1, 0)  # (step, micro-batches before the last one in it)

    def next(self, step: int) -> tuple[int, int]:
        """The place of the next micro-batch: the step and how many of it have been seen."""
        seen = self.last[1] + 1 if self.last[0] == step else 0
        self.last = (step, seen)
        return self.last


def derive_generator(device: torch.device, *place: int) -> torch.Generator:
    """A generator seeded by [`derive_seed`]."""
    return torch.Generator(device=device).manual_seed(derive_seed(*place))
