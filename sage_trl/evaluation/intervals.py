"""How sure a mean of pass@k is, by the bootstrap. Each interval answers another question:

- over *problems* ([`~sage_trl.evaluation.pass_at_k.bootstrap_interval`]): what if other problems of this kind had
  been asked, and sampled anew? Each problem's estimate carries the noise of its own samples, so it covers both.
- over *samples* ([`sample_interval`]): where does the mean lie over all samplings of these very problems? The one for
  a fixed benchmark; another run has noise of its own on top. A problem never solved in n samples may be solved in the
  next ones, so a rate is taken to be `(c + 1/2) / (n + 1)` rather than c / n.
- *hierarchical* ([`hierarchical_interval`]): problems, and then samples within them, are drawn again. It answers the
  first question too; at k = 1 the noise of the samples is in it twice.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .pass_at_k import pass_at_k


def sample_interval(
    n: int, correct: ArrayLike, k: int, level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """
    Interval of the mean of pass@k over these problems, for another draw of their samples.

    Args:
        n (`int`):
            Samples of each problem.
        correct (array of `int`, shape (P,)):
            How many of them are correct.
        k (`int`):
            Number of tries, at most `n`.
        level (`float`, *optional*, defaults to `0.95`):
            Coverage of the interval, between 0 and 1.
        num_resamples (`int`, *optional*, defaults to `2000`):
            How often samples are drawn again.
        seed (`int`, *optional*, defaults to `0`):
            Seed of that.

    Returns:
        `tuple[float, float]`: lower and upper end.
    """
    correct = tuple(int(count) for count in correct)
    return _recentred(n, correct, k, _draw_samples(n, correct, num_resamples, seed), level)


def hierarchical_interval(
    n: int, correct: ArrayLike, k: int, level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Interval of the mean of pass@k for another draw of problems and of samples. Arguments of [`sample_interval`]."""
    correct = tuple(int(count) for count in correct)
    return _recentred(n, correct, k, _draw_both(n, correct, num_resamples, seed), level)


# What is drawn is the same for every k, and drawing it takes most of the time
@lru_cache(maxsize=1)
def _draw_samples(n: int, correct: tuple[int, ...], num_resamples: int, seed: int) -> np.ndarray:
    rates = _rate(n, np.array(correct))
    return np.random.default_rng(seed).binomial(n, rates, size=(num_resamples, len(correct)))


@lru_cache(maxsize=1)
def _draw_both(n: int, correct: tuple[int, ...], num_resamples: int, seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    picked = np.array(correct)[source.integers(len(correct), size=(num_resamples, len(correct)))]
    return source.binomial(n, _rate(n, picked))


def _rate(n: int, correct: np.ndarray) -> np.ndarray:
    return (correct + 0.5) / (n + 1)


def _recentred(n: int, correct: tuple[int, ...], k: int, drawn: np.ndarray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"`level` is {level}; it must lie between 0 and 1, such as 0.95.")
    table = pass_at_k(n, np.arange(n + 1), k)
    means, found = table[drawn].mean(axis=1), table[list(correct)].mean()
    # Samples drawn again with replacement repeat themselves, and solve fewer problems in k tries than they did at
    # first. That shift is the method's, not the model's.
    low, high = np.quantile(means - means.mean() + found, [(1 - level) / 2, (1 + level) / 2])
    return float(max(0.0, low)), float(min(1.0, high))
