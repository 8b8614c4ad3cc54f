"""Intervals against data whose truth is known."""

import numpy as np
import pytest

from sage_trl.evaluation.intervals import hierarchical_interval, sample_interval
from sage_trl.evaluation.pass_at_k import bootstrap_interval, pass_at_k

N, PROBLEMS, SHAPE = 16, 60, (0.6, 1.4)
RUNS = 300


def truth_of_population(k: int) -> float:
    rates = np.random.default_rng(99).beta(*SHAPE, size=400_000)
    return float((1 - (1 - rates) ** k).mean())


def coverage(interval, k: int, fixed: bool) -> float:
    source, inside = np.random.default_rng(k), 0
    rates, truth = source.beta(*SHAPE, size=PROBLEMS), truth_of_population(k)
    for _ in range(RUNS):
        if fixed:
            truth = (1 - (1 - rates) ** k).mean()
        else:
            rates = source.beta(*SHAPE, size=PROBLEMS)
        low, high = interval(source.binomial(N, rates), k)
        inside += low <= truth <= high
    return inside / RUNS


@pytest.mark.parametrize("k", [1, 4, 16])
def test_the_interval_over_problems_covers_the_population(k):
    covered = coverage(lambda c, k: bootstrap_interval(pass_at_k(N, c, k), num_resamples=500), k, fixed=False)
    assert 0.90 <= covered <= 0.98


@pytest.mark.parametrize("k", [1, 4, 8, 16])
def test_the_interval_over_samples_covers_another_run(k):
    covered = coverage(lambda c, k: sample_interval(N, c, k, num_resamples=500), k, fixed=True)
    assert 0.90 <= covered <= 0.99


@pytest.mark.parametrize("k", [1, 4, 16])
def test_the_hierarchical_interval_covers_the_population(k):
    assert 0.89 <= coverage(lambda c, k: hierarchical_interval(N, c, k, num_resamples=500), k, fixed=False) <= 0.99


def test_another_run_of_the_same_problems_is_surer_than_other_problems():
    correct = np.array([0, 16] * 30)
    low, high = sample_interval(N, correct, 1)  # these are always or never solved, as far as 16 samples tell
    assert low < 0.5 < high < low + 0.04
    low, high = bootstrap_interval(pass_at_k(N, correct, 1))
    assert high - low > 0.2


def test_ends_are_probabilities_around_the_estimate():
    for k in (1, 7, 16):
        for correct in ([0, 0, 0], [16, 16], [1, 0, 15, 8]):
            found = pass_at_k(N, np.array(correct), k).mean()
            for interval in (sample_interval, hierarchical_interval):
                low, high = interval(N, correct, k)
                assert 0 <= low <= found + 1e-12 and found - 1e-12 <= high <= 1
    assert sample_interval(N, [3, 9], 4) == sample_interval(N, [3, 9], 4)
    assert sample_interval(N, [3, 9], 4, seed=1) != sample_interval(N, [3, 9], 4)
    with pytest.raises(ValueError, match="`level` is 1"):
        sample_interval(N, [1], 1, level=1)
