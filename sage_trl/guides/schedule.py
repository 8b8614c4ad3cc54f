"""Schedules of a guide's strength: functions of the step, without state."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import GuideFunction


@dataclass(frozen=True)
class CosineCycles:
    """
    Cosine cycles whose peaks decay: cycle `c` falls from `upper * decay**c` to `lower`, then the next one starts.

    A value depends on `step` and `max_steps` alone, so a resumed run repeats an uninterrupted one.

    Args:
        upper (`float`):
            Value at the start of the first cycle.
        lower (`float`):
            Value that each cycle falls to.
        num_cycles (`int`, *optional*, defaults to `8`):
            Number of cycles in the run.
        decay (`float`, *optional*, defaults to `0.9`):
            Factor of the peak from one cycle to the next.
    """

    upper: float
    lower: float
    num_cycles: int = 8
    decay: float = 0.9

    def __post_init__(self):
        if not isinstance(self.num_cycles, int) or self.num_cycles < 1:
            raise ValueError(f"`num_cycles` is {self.num_cycles!r}; it must be an integer of at least 1.")
        for name in ("upper", "lower", "decay"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ValueError(f"`{name}` of a schedule is {value!r}; it must be a finite number of at least 0.")

    def __str__(self) -> str:
        if self.upper == self.lower:
            return f"{self.upper:g}"
        return f"{self.upper:g} to {self.lower:g} in {self.num_cycles} cycles"

    def value(self, step: int, max_steps: int) -> float:
        """The value at optimizer step `step` of `max_steps`."""
        length = max(1, max_steps // self.num_cycles)
        cycle = min(step // length, self.num_cycles - 1)
        upper = self.upper * self.decay**cycle
        return self.lower + (upper - self.lower) * (1 + math.cos(math.pi * (step % length) / length)) / 2


def schedules_of(guide: "GuideFunction") -> dict[str, CosineCycles]:
    """The schedules of a guide's settings by name; of a product's parts with the part's name before it."""
    parts = guide.parts
    return {
        name if len(parts) == 1 else f"{type(part).__name__}.{name}": value
        for part in parts
        for name, value in vars(part).items()
        if isinstance(value, CosineCycles)
    }


def cycles_from(name: str, bounds, num_cycles: int, decay: float) -> CosineCycles:
    """
    The schedule that a guide's setting asks for.

    Args:
        name (`str`):
            The setting, for the error message.
        bounds (`float` or pair of `float`):
            `(upper, lower)`, or one number for a constant.
        num_cycles (`int`):
            Number of cycles in the run.
        decay (`float`):
            Factor of the peak from one cycle to the next. A constant does not decay.
    """
    if isinstance(bounds, (int, float)) and not isinstance(bounds, bool):
        return CosineCycles(bounds, bounds, num_cycles, decay=1.0)
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise ValueError(f"`{name}` is {bounds!r}; it must be one number or a pair [upper, lower].")
    return CosineCycles(*bounds, num_cycles=num_cycles, decay=decay)
