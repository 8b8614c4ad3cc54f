from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_trl.evaluation.pass_at_k import bootstrap_interval, pass_at_k, rate_interval


@pytest.mark.parametrize("n", range(1, 9))
def test_it_is_the_share_of_all_k_subsets_with_a_correct_sample(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(combinations([True] * c + [False] * (n - c), k))
            expected = sum(map(any, subsets)) / len(subsets)
            assert pass_at_k(n, c, k)[0] == pytest.approx(expected, abs=1e-12)


def test_at_1_it_is_the_share_of_correct_samples():
    np.testing.assert_allclose(pass_at_k(256, [0, 1, 64, 256], 1), [0, 1 / 256, 0.25, 1])


def test_it_is_exactly_1_when_no_k_samples_are_all_wrong():
    assert pass_at_k(256, 1, 256)[0] == 1.0
    assert pass_at_k(10, 4, 7)[0] == 1.0
    assert pass_at_k(10, 0, 10)[0] == 0.0


def test_it_grows_with_k_and_with_c_and_stays_finite_for_many_samples():
    curve = np.array([pass_at_k(10_000, [1, 30], k) for k in (1, 10, 100, 1000, 10_000)])
    assert (np.diff(curve, axis=0) >= 0).all()
    assert (np.diff(curve, axis=1) >= 0).all()
    assert np.isfinite(curve).all()


def test_n_may_differ_between_problems():
    np.testing.assert_allclose(pass_at_k([2, 4], [1, 1], 2), [1.0, 0.5])


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, [1], 5, "`k` is 5; it must lie between 1 and the 4 samples"),
        (4, [1], 0, "`k` is 0"),
        ([8, 2], [1, 1], 4, "`k` is 4; it must lie between 1 and the 2 samples"),
        (4, [1, 5], 2, "`c` is 5 for a problem of 4 samples"),
        (4, [-1], 2, "`c` is -1"),
        (4, [0.5], 2, "whole numbers"),
        (4, np.array([], dtype=int), 1, "`c` is empty"),
    ],
)
def test_impossible_counts_are_refused(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


def test_interval_of_equal_values_is_that_value():
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)


def test_interval_has_the_width_of_the_standard_error_and_is_repeatable():
    values = np.arange(400) % 2  # mean 0.5, standard error 0.025
    lower, upper = bootstrap_interval(values, num_resamples=4000)
    assert lower == pytest.approx(0.5 - 1.96 * 0.025, abs=0.005)
    assert upper == pytest.approx(0.5 + 1.96 * 0.025, abs=0.005)
    assert bootstrap_interval(values, num_resamples=4000) == (lower, upper)


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [([], {}, "`values`"), ([1.0], {"level": 95}, "`level` is 95"), ([1.0], {"num_resamples": 0}, "`num_resamples`")],
)
def test_impossible_intervals_are_refused(values, settings, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(values, **settings)


@given(st.integers(1, 1000), st.data())
def test_it_agrees_with_human_eval_s_formula(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    # https://github.com/openai/human-eval, human_eval/evaluation.py: 1 - prod(1 - k / i) over i of n - c + 1 ... n
    expected = 1.0 if n - c < k else 1.0 - np.prod([1.0 - k / i for i in range(n - c + 1, n + 1)])
    assert pass_at_k(n, c, k)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("problems", [1, 4, 30, 500])
def test_where_none_or_all_are_solved_the_interval_is_exact(problems):
    low, high = rate_interval(np.zeros(problems))
    # So many problems are all unsolved with a chance of 2.5 % if that share of all problems is solved
    assert low == 0 and (1 - high) ** problems == pytest.approx(0.025)
    assert rate_interval(np.ones(problems)) == pytest.approx((1 - high, 1))


def test_elsewhere_it_is_the_bootstrap():
    values = np.arange(50) % 3 / 2
    assert rate_interval(values) == bootstrap_interval(values)
