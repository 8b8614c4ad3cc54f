"""What pass@k is measured while a model is trained."""

from dataclasses import dataclass, field, fields
from typing import Any

from ..data.prompts import resolve_prompt_format
from ..imports import nearest
from .settings import parse_ks, powers_of_two


@dataclass(frozen=True)
class PassAtK:
    """
    What is measured.

    Args:
        benchmarks (`str`):
            Benchmarks, separated by commas, as of `sage-trl eval`: names, files, or `name=file`.
        n (`int`, *optional*, defaults to `16`):
            Completions of each problem.
        k (`int`, `str` or `list[int]`, *optional*):
            Numbers of tries. Defaults to the powers of 2 up to `n`.
        num_problems (`int`, *optional*):
            How many of each benchmark's first problems to take.
        prompt_format (`str`, *optional*):
            How a problem is put to the model. A recipe's own is the default.
        batch_size (`int`, *optional*):
            Completions sampled at once by each process. Defaults to 256, and to 4096 with vLLM.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples, the same at every evaluation.
    """

    benchmarks: str
    n: int = 16
    k: int | str | list[int] | None = None
    num_problems: int | None = None
    prompt_format: str | None = None
    batch_size: int | None = None
    seed: int = 0
    ks: list[int] = field(init=False, repr=False)

    def __post_init__(self):
        for name, least in (("n", 1), ("num_problems", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"`{name}` of `eval_pass_at_k` is {value!r}; it must be a whole number >= {least}.")
        if not isinstance(self.benchmarks, str):
            raise ValueError(f"`benchmarks` of `eval_pass_at_k` is {self.benchmarks!r}; write names with commas.")
        if self.prompt_format is not None:
            resolve_prompt_format(str(self.prompt_format))
        named = ",".join(map(str, self.k)) if isinstance(self.k, list) else self.k
        ks = powers_of_two(self.n) if named is None else parse_ks(named)
        if max(ks) > self.n:
            raise ValueError(
                f"`k` of `eval_pass_at_k` names {max(ks)}; it must lie between 1 and the {self.n} samples of `n`."
            )
        object.__setattr__(self, "ks", ks)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "PassAtK":
        """From a mapping, as a recipe has it. Raises [`ValueError`] naming what is not known or missing."""
        known = [each.name for each in fields(cls) if each.init]
        for name in settings:
            if name not in known:
                raise ValueError(f"`eval_pass_at_k` has no setting '{name}'.{nearest(name, known)} It has {known}.")
        if "benchmarks" not in settings:
            raise ValueError("`eval_pass_at_k` needs `benchmarks`: names or files, separated by commas.")
        return cls(**settings)
