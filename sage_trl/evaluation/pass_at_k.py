"""pass@k without bias, and how sure it is.

The chance that at least one of k samples is correct, estimated from n >= k samples of which c are correct (Chen et
al., 2021, https://huggingface.co/papers/2107.03374):

    pass@k = 1 - C(n - c, k) / C(n, k)

Problems are drawn at random too, so the uncertainty of the mean over problems comes from resampling problems.
"""

import numpy as np
from numpy.typing import ArrayLike


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> np.ndarray:
    """
    Estimates pass@k of each problem, without bias.

    Args:
        n (`int` or array of `int`, shape (P,)):
            Samples drawn for each of the P problems.
        c (`int` or array of `int`, shape (P,)):
            How many of them are correct.
        k (`int`):
            Number of tries, at most the smallest `n`.

    Returns:
        `np.ndarray` of shape (P,): the estimates, in [0, 1].
    """
    n, c = np.broadcast_arrays(np.atleast_1d(n), np.atleast_1d(c))
    if n.dtype.kind not in "iu" or c.dtype.kind not in "iu":
        raise ValueError(f"`n` and `c` must be whole numbers, not {n.dtype} and {c.dtype}.")
    if n.size == 0:
        raise ValueError("`c` is empty: there is no problem to estimate pass@k of.")
    if not 1 <= k <= n.min():
        raise ValueError(f"`k` is {k}; it must lie between 1 and the {n.min()} samples of a problem.")
    if c.min() < 0 or (c > n).any():
        worst = int(np.argmax(np.where(c < 0, n + 1, c - n)))
        raise ValueError(f"`c` is {c[worst]} for a problem of {n[worst]} samples; it must lie between 0 and `n`.")
    # C(n - c, k) / C(n, k) is the product of (n - c - i) / (n - i) over i < k: no factorial can overflow. Once a
    # factor is 0 it stays 0, so that pass@k is exactly 1 where n - c < k.
    i = np.arange(k)
    all_wrong = np.prod(np.maximum(n[:, None] - c[:, None] - i, 0) / (n[:, None] - i), axis=1)
    return 1.0 - all_wrong


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """
    Percentile bootstrap interval of the mean over problems. For two models on the same problems, pass the differences
    per problem: that is the paired interval.

    Args:
        values (array of `float`, shape (P,)):
            One value per problem.
        level (`float`, *optional*, defaults to `0.95`):
            Coverage of the interval, between 0 and 1.
        num_resamples (`int`, *optional*, defaults to `2000`):
            How often the problems are resampled.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.

    Returns:
        `tuple[float, float]`: lower and upper end.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"`values` has shape {values.shape}; it must hold one value for each of at least 1 problem.")
    if not 0 < level < 1:
        raise ValueError(f"`level` is {level}; it must lie between 0 and 1, such as 0.95.")
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` is {num_resamples}; use at least 1.")
    picks = np.random.default_rng(seed).integers(values.size, size=(num_resamples, values.size))
    lower, upper = np.quantile(values[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(lower), float(upper)


def rate_interval(values: ArrayLike, level: float = 0.95, num_resamples: int = 2000) -> tuple[float, float]:
    """
    Interval of the mean of rates, values in [0, 1]: [`bootstrap_interval`], and where all are 0, or all 1, so that
    resampling shows nothing, the exact one of Clopper and Pearson, as of counts.
    """
    values = np.asarray(values, dtype=float)
    low, high = bootstrap_interval(values, level, num_resamples)
    bound = ((1 - level) / 2) ** (1 / values.size)
    if (values == 0).all():
        return 0.0, 1 - bound
    return (bound, 1.0) if (values == 1).all() else (low, high)
