"""maj@k, self-consistency: is the answer that most of k samples give the right one?"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def majority_at_k(
    counts: ArrayLike, correct: ArrayLike, ks: Sequence[int], num_draws: int = 200, seed: int = 0
) -> list[float]:
    """
    Chance that the most frequent answer among k of a problem's samples is correct.

    Args:
        counts (array of `int`, shape (A,)):
            How many of the n samples give each of the problem's A answers. Samples without an answer are no answer:
            leave them out, or count each as one of its own.
        correct (array of `bool`, shape (A,)):
            Which answers are correct.
        ks (sequence of `int`):
            Samples that vote, at most n. With k = 1 and k = n the result is exact, else it is estimated.
        num_draws (`int`, *optional*, defaults to `200`):
            How often the n samples are put into a random order; the first k of it vote.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.

    Returns:
        `list[float]`: for each k, in [0, 1]. Of answers that tie, each is as likely to be taken.
    """
    counts, correct = np.asarray(counts), np.asarray(correct, dtype=bool)
    n, num_answers = int(counts.sum()), len(counts)
    for k in ks:
        if not 1 <= k <= n:
            raise ValueError(f"`k` is {k}; it must lie between 1 and the {n} samples of a problem.")
    answers = np.tile(np.repeat(np.arange(num_answers), counts), (num_draws, 1))
    order = np.random.default_rng(seed).permuted(answers, axis=1)
    places = order + num_answers * np.arange(num_draws)[:, None]
    votes, counted, found = np.zeros((num_draws, num_answers), dtype=int), 0, {1: float(counts[correct].sum() / n)}
    for k in sorted({*ks} - {1, n}):
        votes += np.bincount(places[:, counted:k].ravel(), minlength=votes.size).reshape(votes.shape)
        counted, found[k] = k, _share(votes, correct)
    found[n] = _share(counts[None], correct)
    return [found[k] for k in ks]


def _share(votes: np.ndarray, correct: np.ndarray) -> float:
    """How often the answer with the most votes is correct. Votes have shape (draws, answers)."""
    winners = votes == votes.max(axis=1, keepdims=True)
    return float(((winners & correct).sum(axis=1) / winners.sum(axis=1)).mean())
