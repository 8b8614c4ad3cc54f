import itertools
from dataclasses import fields

import numpy as np
import pytest

from sage_trl.evaluation.backends import Sampling
from sage_trl.evaluation.comparison import (
    BANDS,
    OF_THE_WAY,
    Evaluated,
    band_of,
    compare,
    crossing,
    difference,
    flow,
    holm,
    support,
)
from sage_trl.evaluation.pass_at_k import pass_at_k


def evaluated(correct, n=8, name="x"):
    return Evaluated(name, [str(i) for i in range(len(correct))], n, np.array(correct))


def results(correct, n=8, checksum="abc", benchmark="b"):
    each = {str(i): int(c) for i, c in enumerate(correct)}
    figures = {str(k): {"value": float(pass_at_k(n, np.array(correct), k).mean())} for k in (1, 2, 4, 8)}
    found = {
        "benchmark": benchmark,
        "samples": n,
        "checksum": checksum,
        "questions": f"{checksum} {len(each)}",
        "golds": "x",
        "correct": each,
        "pass_at_k": figures,
    }
    return {"settings": {}, "benchmarks": {benchmark: found}}


def test_a_difference_by_hand():
    found = difference(evaluated([8, 4, 0, 2]), evaluated([4, 4, 2, 0]), k=1)
    assert found["value"] == pytest.approx((0.5 + 0 - 0.25 + 0.25) / 4)
    assert (found["won"], found["lost"]) == (2, 1)
    assert found["interval"][0] < found["value"] < found["interval"][1]
    assert found["problems_to_settle"] > 4 and found["p"] > 0.05


def test_a_paired_difference_is_surer_than_two_apart():
    source = np.random.default_rng(0)
    theirs = source.integers(0, 7, size=100)
    found = difference(evaluated(theirs + 1), evaluated(theirs), k=1)
    assert found["interval"] == [0.125, 0.125] and found["problems_to_settle"] is None and found["p"] < 0.01


def test_p_values_are_uniform_where_there_is_no_difference():
    source, small = np.random.default_rng(1), 0
    for _ in range(200):
        rates = source.beta(1, 2, size=60)
        small += difference(*(evaluated(source.binomial(8, rates)) for _ in range(2)), k=1)["p"] < 0.1
    assert 0.03 < small / 200 < 0.18


def test_problems_to_settle_settle():
    source = np.random.default_rng(2)
    rates = source.beta(1, 2, size=40)
    better = np.clip(rates + 0.03, 0, 1)
    found = difference(evaluated(source.binomial(8, better)), evaluated(source.binomial(8, rates)), k=1)
    needed = found["problems_to_settle"]
    if needed is None:
        pytest.fail("this draw should not settle it")
    many = np.resize(rates, needed * 4)
    again = difference(
        evaluated(source.binomial(8, np.clip(many + 0.03, 0, 1))), evaluated(source.binomial(8, many)), k=1
    )
    assert again["interval"][0] > 0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.2]) == [0.2]


def test_curves_that_cross_do_so_where_they_do():
    # Half of the problems always against all of them sometimes
    sure, broad = evaluated([8, 8, 0, 0] * 10), evaluated([2, 2, 2, 2] * 10)
    found = crossing(broad, sure)
    by_hand = next(k for k in range(1, 9) if pass_at_k(8, 2, k)[0] > 0.5)
    assert found["k"] == by_hand and found["share"] > 0.95
    assert found["interval"][0] <= by_hand <= found["interval"][1]
    same = crossing(evaluated([4, 4, 5]), evaluated([1, 1, 2]))
    assert same == {"k": None, "interval": None, "share": 0.0}


def test_support_by_enumeration():
    ours, theirs, base = evaluated([2, 0, 3, 0], n=4), evaluated([0, 1, 1, 0], n=4), evaluated([0, 0, 4, 1], n=4)
    found = support(ours, theirs, base)
    assert found["expanded"]["count"] == 1 and found["shrunk"]["count"] == 1
    assert found["expanded"]["bands"] == {"never": 1, "rarely": 0, "often": 0, "nearly always": 0}
    expected = 0.0
    for mine, other in zip([2, 0, 3, 0], [0, 1, 1, 0], strict=True):
        draws = list(itertools.combinations(range(8), mine + other))  # which of the 8 samples are correct
        expected += sum(len(draw) > 0 and all(i < 4 for i in draw) for draw in draws) / len(draws)
    assert found["expanded"]["by_noise"] == pytest.approx(expected)


def test_models_that_are_the_same_expand_by_noise_alone():
    source, seen, noise = np.random.default_rng(3), 0, 0.0
    for _ in range(50):
        rates = source.beta(0.3, 3, size=100)
        models = [evaluated(source.binomial(8, rates)) for _ in range(2)]
        found = support(*models, models[0])["expanded"]
        seen, noise = seen + found["count"], noise + found["by_noise"]
    assert seen == pytest.approx(noise, rel=0.1)


def test_bands_and_their_flow():
    assert [band_of(rate) for rate in (0, 0.01, 0.1, 0.11, 0.9, 0.91, 1)] == [
        "never",
        "rarely",
        "rarely",
        "often",
        "often",
        "nearly always",
        "nearly always",
    ]
    table = flow(evaluated([8, 0, 4]), evaluated([0, 0, 8]))
    assert len(table) == len(BANDS) and np.sum(table) == 3
    assert table[0][3] == 1 and table[0][0] == 1 and table[3][2] == 1


def test_three_models_are_compared_in_pairs():
    found = compare({"base": results([1, 2, 0]), "grpo": results([4, 0, 0]), "sage": results([4, 2, 1])}, [1, 2, 16])
    pairs = found["benchmarks"]["b"]["pairs"]
    assert [(pair["ours"], pair["theirs"]) for pair in pairs] == [
        ("grpo", "base"),
        ("sage", "base"),
        ("sage", "grpo"),
    ]
    assert pairs[0]["difference"].keys() == {"1", "2"}  # there are 8 samples
    assert all("p_holm" in each for pair in pairs for each in pair["difference"].values())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"a": results([1])}, "two evaluations or more"),
        ({"a": results([1]), "b": results([1], checksum="other")}, "'a' and 'b' were evaluated on different problems"),
        ({"a": results([1]), "b": results([1, 2])}, "different problems of 'b'"),
        ({"a": results([1]), "b": results([1], benchmark="c")}, "No benchmark is in all"),
    ],
)
def test_what_cannot_be_compared_is_refused(found, message):
    with pytest.raises(ValueError, match=message):
        compare(found, [1])


def test_evaluations_without_a_common_k_are_refused():
    with pytest.raises(ValueError, match="some evaluation has 8 samples"):
        compare({"a": results([1]), "b": results([1])}, [9])


def test_equal_means_are_no_difference_and_no_crossing():
    """Both are exactly 45 %, and differ by what rounding leaves."""
    ours, theirs = evaluated([0, 5, 8, 5], n=10), evaluated([7, 8, 2, 1], n=10)
    for pair in ((ours, theirs), (theirs, ours)):
        found = difference(*pair, k=1)
        assert found["value"] == 0 and found["problems_to_settle"] is None
        assert crossing(*pair)["k"] is None


def test_every_way_of_sampling_is_compared():
    assert {each.name for each in fields(Sampling)} <= OF_THE_WAY.keys()
