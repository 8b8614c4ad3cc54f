"""Two evaluations of the same problems, compared problem by problem."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .pass_at_k import pass_at_k
from .results import with_intervals

NUM_RESAMPLES = 2000
# Settings whose difference a comparison of models has to name
OF_THE_WAY = {
    "prompt_format": "the prompt format",
    "chat_template_kwargs": "what the chat template is given",
    "temperature": "the temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_tokens": "the longest completion",
    "backend": "the engine",
    "dtype": "the numbers of the weights",
}
# Upper end of each band of a problem's pass rate -> its name
BANDS = {0.0: "never", 0.1: "rarely", 0.9: "often", 1.0: "nearly always"}


@dataclass(frozen=True)
class Evaluated:
    """
    A benchmark as one model solves it.

    Args:
        name (`str`):
            What the model is called.
        ids (`list[str]`):
            The problems.
        n (`int`):
            Samples of each.
        correct (`np.ndarray` of shape (P,)):
            How many of them are correct.
    """

    name: str
    ids: list[str]
    n: int
    correct: np.ndarray


def match(name: str, found: dict[str, dict[str, Any]]) -> list[Evaluated]:
    """
    The same benchmark of several evaluations, its problems in one order.

    Args:
        name (`str`):
            The benchmark.
        found (`dict[str, dict]`):
            What each model's `results.json` says about it.

    Returns:
        `list[Evaluated]`: one for each model.

    Raises:
        [`ValueError`]: they are of different problems.
    """
    (first, reference), *others = found.items()
    for model, each in others:
        if each["questions"] != reference["questions"]:
            raise ValueError(f"'{first}' and '{model}' were evaluated on different problems of '{name}'.")
        if each["golds"] != reference["golds"]:
            raise ValueError(f"'{first}' and '{model}' were judged by different right answers of '{name}'.")
    ids = list(reference["correct"])
    return [
        Evaluated(model, ids, each["samples"], np.array([each["correct"][key] for key in ids]))
        for model, each in found.items()
    ]


def difference(ours: Evaluated, theirs: Evaluated, k: int, level: float = 0.95, seed: int = 0) -> dict[str, Any]:
    """
    Pass@k of `ours` minus that of `theirs`, over the same problems.

    Args:
        ours, theirs ([`Evaluated`]):
            The two.
        k (`int`):
            Number of tries.
        level (`float`, *optional*, defaults to `0.95`):
            Coverage of the interval.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.

    Returns:
        `dict`: `value`; `interval` by the paired bootstrap over problems; `p`, the chance of a difference at least as
        far from 0 if there is none, by the same resamples centred at 0; `won` and `lost`, problems whose estimate is
        higher and lower; and `problems_to_settle`, how many problems of this kind would show a difference of this
        size in 4 of 5 evaluations, where this one does not.
    """
    values = _exactly(pass_at_k(ours.n, ours.correct, k) - pass_at_k(theirs.n, theirs.correct, k))
    picks = np.random.default_rng(seed).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    means, value = _exactly(values[picks].mean(axis=1)), _exactly(values.mean())
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    # Counted with the one that was seen, so that it is never 0
    p = (1 + (np.abs(means - value) >= abs(value) - 1e-12).sum()) / (1 + NUM_RESAMPLES)
    needed = None
    if low <= 0 <= high and value != 0:
        # The normal quantiles of 95 % confidence and of 80 % power, of a half width at the first
        needed = int(np.ceil(len(values) * ((1 + 0.8416 / 1.96) * (high - low) / 2 / abs(value)) ** 2))
    return {
        "value": float(value),
        "interval": [float(low), float(high)],
        "p": float(min(1.0, p)),
        "won": int((values > 1e-12).sum()),
        "lost": int((values < -1e-12).sum()),
        "problems_to_settle": needed,
    }


def _exactly(differences):
    """Without what rounding leaves where two are equal."""
    return np.where(np.abs(differences) < 1e-12, 0.0, differences)


def holm(p_values: list[float]) -> list[float]:
    """
    Holm's correction: p-values that hold for all of several comparisons together.

    Args:
        p_values (`list[float]`):
            One of each comparison.

    Returns:
        `list[float]`: adjusted, in the same order.
    """
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, worst)
    return adjusted.tolist()


def crossing(ours: Evaluated, theirs: Evaluated, level: float = 0.95, seed: int = 0) -> dict[str, Any]:
    """
    The k at which one curve overtakes the other.

    Args:
        ours, theirs ([`Evaluated`]):
            The two.
        level (`float`, *optional*, defaults to `0.95`):
            Coverage of the interval.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.

    Returns:
        `dict`: `k`, the smallest at which the difference has another sign than at k = 1, `None` where there is none;
        `interval` of it, over those resamples of the problems in which the curves cross; and `share`, of how many that
        is.
    """
    ks = np.arange(1, min(ours.n, theirs.n) + 1)
    curves = np.stack(
        [pass_at_k(ours.n, ours.correct, k) - pass_at_k(theirs.n, theirs.correct, k) for k in ks], axis=1
    )
    picks = np.random.default_rng(seed).integers(len(curves), size=(NUM_RESAMPLES // 2, len(curves)))
    weights = np.stack([np.bincount(pick, minlength=len(curves)) for pick in picks]) / len(curves)
    found = [k for curve in _exactly(weights @ curves) if (k := _first_change(curve)) is not None]
    interval = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]).round().astype(int).tolist() if found else None
    return {"k": _first_change(_exactly(curves.mean(axis=0))), "interval": interval, "share": len(found) / len(picks)}


def _first_change(curve: np.ndarray) -> int | None:
    changed = np.flatnonzero(curve * curve[0] < 0)
    return int(changed[0]) + 1 if len(changed) else None


def support(ours: Evaluated, theirs: Evaluated, base: Evaluated) -> dict[str, Any]:
    """
    Problems that one model solves in its samples and the other never does.

    Args:
        ours, theirs ([`Evaluated`]):
            The two.
        base ([`Evaluated`]):
            The model whose pass rate sorts problems into bands.

    Returns:
        `dict`: `expanded` (ours, never theirs) and `shrunk` (theirs, never ours), each with `count`, `by_noise` (how
        many there would be if each problem's correct samples had fallen to the two by chance alone), and `bands`.
    """
    bands = [band_of(rate) for rate in base.correct / base.n]

    def count(solver: Evaluated, other: Evaluated) -> dict[str, Any]:
        mine = (solver.correct > 0) & (other.correct == 0)
        # None of a problem's correct samples falls to the other's n: 1 less pass@n of all samples thrown together
        together = solver.n + other.n
        spared = 1 - pass_at_k(together, solver.correct + other.correct, other.n)
        noise = np.where(solver.correct + other.correct > 0, spared, 0.0).sum()
        by_band = {name: int(sum(mine[i] for i, band in enumerate(bands) if band == name)) for name in BANDS.values()}
        return {"count": int(mine.sum()), "by_noise": float(noise), "bands": by_band}

    return {"expanded": count(ours, theirs), "shrunk": count(theirs, ours)}


def band_of(rate: float) -> str:
    """Name of the band that a pass rate lies in."""
    return next(name for upper, name in BANDS.items() if rate <= upper)


def flow(ours: Evaluated, theirs: Evaluated) -> list[list[int]]:
    """How many problems go from each band of `theirs` to each band of `ours`."""
    names = list(BANDS.values())
    table = np.zeros((len(names), len(names)), dtype=int)
    for before, after in zip(theirs.correct / theirs.n, ours.correct / ours.n, strict=True):
        table[names.index(band_of(before)), names.index(band_of(after))] += 1
    return table.tolist()


def compare(found: dict[str, dict[str, Any]], ks: list[int]) -> dict[str, Any]:
    """
    Compares evaluations.

    Args:
        found (`dict[str, dict]`):
            Contents of each model's `results.json`, by the model's name. The first is the base.
        ks (`list[int]`):
            Numbers of tries.

    Returns:
        `dict`: `benchmarks`, by name, with a list of `pairs`: each later model against each earlier one.

    Raises:
        [`ValueError`]: fewer than two, no benchmark that all have, or different problems.
    """
    if len(found) < 2:
        raise ValueError("There must be two evaluations or more to compare.")
    (_, first), *_ = found.items()
    shared = [name for name in first["benchmarks"] if all(name in each["benchmarks"] for each in found.values())]
    if not shared:
        raise ValueError("No benchmark is in all of the evaluations.")
    benchmarks = {}
    for name in shared:
        models = match(name, {model: each["benchmarks"][name] for model, each in found.items()})
        usable = [k for k in ks if k <= min(model.n for model in models)]
        if not usable:
            raise ValueError(
                f"`k` is {ks}, and of each problem of '{name}' some evaluation has {min(m.n for m in models)} samples."
            )
        pairs = [(models[i], models[j]) for i in range(len(models)) for j in range(i)]
        benchmarks[name] = {
            "problems": len(models[0].ids),
            "samples": {model.name: model.n for model in models},
            "pass_at_k": {
                model.name: {str(k): with_intervals(model.n, model.correct, k) for k in usable} for model in models
            },
            "pairs": [
                {
                    "ours": ours.name,
                    "theirs": theirs.name,
                    "difference": {str(k): difference(ours, theirs, k) for k in usable},
                    "crossing": crossing(ours, theirs),
                    "support": support(ours, theirs, models[0]),
                    "flow": flow(ours, theirs),
                }
                for ours, theirs in pairs
            ],
        }
    _correct_for_many(benchmarks)
    settings = {model: each["settings"] for model, each in found.items()}
    every = dict.fromkeys(name for each in found.values() for name in each["benchmarks"])
    left = [f"Not compared, since not all have it: {name}." for name in every if name not in shared]
    return {
        "base": next(iter(found)),
        "settings": settings,
        "notes": left + notes(settings),
        "benchmarks": benchmarks,
    }


def notes(settings: dict[str, dict[str, Any]]) -> list[str]:
    """What makes evaluations differ other than their models, in words."""
    said = []
    for name, what in OF_THE_WAY.items():
        values = {model: each.get(name) for model, each in settings.items()}
        if len({str(value) for value in values.values()}) > 1:
            listed = ", ".join(f"{value} for {model}" for model, value in values.items())
            said.append(f"Not sampled alike: {what} is {listed}.")
    models = list(settings)
    for i, first in enumerate(models):
        for second in models[i + 1 :]:
            if settings[first] and settings[first] == settings[second]:
                said.append(
                    f"'{first}' and '{second}' are the same samples: their model, seed and settings are equal."
                )
    return said


def _correct_for_many(benchmarks: dict[str, Any]) -> None:
    """Adds Holm-corrected p-values: over the benchmarks, for each pair and each k."""
    for index in range(len(next(iter(benchmarks.values()))["pairs"])):
        pairs = [each["pairs"][index]["difference"] for each in benchmarks.values()]
        for k in {k for pair in pairs for k in pair}:
            having = [pair[k] for pair in pairs if k in pair]
            for entry, adjusted in zip(having, holm([entry["p"] for entry in having]), strict=True):
                entry["p_holm"] = adjusted
