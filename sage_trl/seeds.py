"""Seeds that are derived from where something stands, so that nothing is drawn from a global generator."""

import numpy as np
import torch


def derive_seed(*place: int) -> int:
    """A seed of 63 bits from numbers of at least 0, such as (seed, step, process)."""
    return int(np.random.SeedSequence([int(part) for part in place]).generate_state(1, np.uint64)[0] >> 1)


def derive_generator(device: torch.device, *place: int) -> torch.Generator:
    """A generator seeded by [`derive_seed`]."""
    return torch.Generator(device=device).manual_seed(derive_seed(*place))
