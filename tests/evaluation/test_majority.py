import itertools

import pytest

from sage_trl.evaluation.majority import majority_at_k


def enumerated(counts, correct, k) -> float:
    """Over all sets of k samples."""
    answers = [answer for answer, count in enumerate(counts) for _ in range(count)]
    total, sets = 0.0, list(itertools.combinations(answers, k))
    for chosen in sets:
        most = max(chosen.count(answer) for answer in set(chosen))
        winners = [answer for answer in set(chosen) if chosen.count(answer) == most]
        total += sum(correct[answer] for answer in winners) / len(winners)
    return total / len(sets)


@pytest.mark.parametrize("counts", [[3, 2, 1], [4, 4], [1, 1, 1, 3], [6]])
def test_it_is_what_enumeration_gives(counts):
    correct, ks = [index == 0 for index in range(len(counts))], [5, 1, 2, 3]
    found = majority_at_k(counts, correct, ks, num_draws=4000)
    assert found == pytest.approx([enumerated(counts, correct, k) for k in ks], abs=0.03)


def test_all_samples_vote_exactly_and_ties_share():
    assert majority_at_k([5, 3], [True, False], [8]) == [1.0]
    assert majority_at_k([5, 3], [False, True], [8]) == [0.0]
    assert majority_at_k([3, 3, 1], [False, True, True], [7]) == [0.5]


def test_one_vote_is_pass_at_1():
    assert majority_at_k([6, 2], [True, False], [1]) == [0.75]


def test_more_votes_than_samples_are_refused():
    with pytest.raises(ValueError, match="`k` is 9; it must lie between 1 and the 8 samples"):
        majority_at_k([5, 3], [True, False], [9])
