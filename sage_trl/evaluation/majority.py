"""maj@k, self-consistency: is the answer that most of k samples give the right one?"""

import numpy as np
from numpy.typing import ArrayLike


def majority_at_k(counts: ArrayLike, correct: ArrayLike, k: int, num_draws: int = 200, seed: int = 0) -> float:
    """
    Chance that the most frequent answer among k of a problem's samples is correct.

    Args:
        counts (array of `int`, shape (A,)):
            How many of the n samples give each of the problem's A answers. Samples without an answer are no answer:
            leave them out, or count each as one of its own.
        correct (array of `bool`, shape (A,)):
            Which answers are correct.
        k (`int`):
            Samples that vote, at most n. With k = 1 and k = n the result is exact, else it is estimated.
        num_draws (`int`, *optional*, defaults to `200`):
            How many sets of k samples are drawn, without replacement.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.

    Returns:
        `float`: in [0, 1]. Of answers that tie, each is as likely to be taken.
    """
    counts, correct = np.asarray(counts), np.asarray(correct, dtype=bool)
    n = int(counts.sum())
    if not 1 <= k <= n:
        raise ValueError(f"`k` is {k}; it must lie between 1 and the {n} samples of a problem.")
    if k == 1:  # exactly pass@1
        return float(counts[correct].sum() / n)
    if k == n:
        votes = counts[None]
    else:
        votes = np.random.default_rng(seed).multivariate_hypergeometric(counts, k, size=num_draws, method="marginals")
    winners = votes == votes.max(axis=1, keepdims=True)
    return float(((winners & correct).sum(axis=1) / winners.sum(axis=1)).mean())
