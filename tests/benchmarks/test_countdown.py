from pathlib import Path

import numpy as np
import pytest

from benchmarks import countdown

ROOT = Path(__file__).parents[2]


def test_the_slope_is_within_problems():
    source = np.random.default_rng(0)
    log_q = source.normal(size=(200, 32)) + source.normal(size=(200, 1))
    # What a problem adds to all its completions is no work of the guide
    ratio = 0.4 * log_q + 3 * log_q.mean(1, keepdims=True) + 0.2 * source.normal(size=log_q.shape)
    found, low, high = countdown.slope(log_q, ratio)
    assert found == pytest.approx(0.4, abs=0.02) and low < 0.4 < high < low + 0.05


def test_a_model_is_as_likely_as_itself(monkeypatch):
    monkeypatch.chdir(ROOT)
    for guide in countdown.GUIDES.values():
        log_q, ratio = countdown.log_ratios(countdown.MODEL, countdown.MODEL, guide, problems=3, samples=5)
        assert log_q.shape == ratio.shape == (3, 5)
        assert np.abs(ratio).max() == 0 and np.ptp(log_q, axis=1).min() > 0
