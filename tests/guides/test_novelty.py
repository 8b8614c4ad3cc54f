import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_trl.anchor import prepared_extras
from sage_trl.guides import GuideFunction, GuideSignals, NoveltyGuide, Rollout
from sage_trl.guides.novelty import ngram_overlap


def rollout_of(rows: list[list[int]], correct: list[bool], group_size: int) -> Rollout:
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows])
    correct = torch.tensor(correct).bool()
    return Rollout(ids, mask, correct.float(), correct, group_size)


def jaccard(first: list[int], second: list[int], ngram: int) -> float:
    sets = [{tuple(row[i : i + ngram]) for i in range(len(row) - ngram + 1)} for row in (first, second)]
    return len(sets[0] & sets[1]) / max(1, len(sets[0] | sets[1]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=9), min_size=4, max_size=4),
    st.integers(1, 4),
    st.sampled_from([2, 4]),
)
def test_overlap_is_the_jaccard_index_of_sets_of_ngrams(rows, ngram, group_size):
    rollout = rollout_of(rows, [True] * 4, group_size)
    found = ngram_overlap(rollout.completion_ids, rollout.mask, group_size, ngram)
    assert found.shape == (4 // group_size, group_size, group_size)
    for group, (i, j) in itertools.product(range(4 // group_size), itertools.product(range(group_size), repeat=2)):
        expected = jaccard(rows[group * group_size + i], rows[group * group_size + j], ngram)
        assert found[group, i, j].item() == pytest.approx(expected, abs=1e-6)


def values(guide: NoveltyGuide, rollout: Rollout) -> torch.Tensor:
    mask = rollout.mask
    ones = torch.ones(mask.shape)
    return guide(GuideSignals(policy_logps=ones, ref_logps=ones, mask=mask, extra=guide.prepare(rollout)))


def test_what_is_new_or_rare_among_the_correct_is_raised_and_nothing_lowered():
    same, other, wrong = [1, 2, 3, 4, 5], [6, 7, 8, 9, 6], [1, 2, 3, 9, 9]
    rollout = rollout_of([same, same, other, wrong, same, wrong, wrong, wrong], [1, 1, 1, 0, 1, 0, 0, 0], 4)
    q = values(NoveltyGuide(scale=0.4, ngram=2), rollout)
    bonus = ((q - 1) / 0.4)[:, 0].tolist()
    # Group 1: three of four correct, two of them alike. Group 2: one of four, which is alone
    assert bonus == pytest.approx([0.125, 0.125, 0.625, 0, 0.875, 0, 0, 0], abs=1e-6)
    assert (q >= 1).all() and torch.equal(q, q[:, :1].expand_as(q))


def test_groups_do_not_look_at_each_other():
    same = [1, 2, 3, 4]
    alone = values(NoveltyGuide(ngram=2), rollout_of([same, [9]], [1, 0], 2))
    beside = values(NoveltyGuide(ngram=2), rollout_of([same, [9], same, [9]], [1, 0, 1, 0], 2))
    assert torch.equal(beside[:2], alone)


def test_min_pass_leaves_lucky_guesses_alone():
    rollout = rollout_of([[1, 2], [3, 4], [5, 6], [7, 8]], [1, 0, 0, 0], 4)
    assert (values(NoveltyGuide(min_pass=0.3), rollout) == 1).all()
    assert (values(NoveltyGuide(min_pass=0.25), rollout)[0] > 1).all()


@pytest.mark.parametrize("length", [1, 3])
def test_completions_shorter_than_an_ngram_overlap_with_nothing(length):
    rollout = rollout_of([[1] * length] * 2, [1, 1], 2)
    assert torch.isfinite(values(NoveltyGuide(ngram=4), rollout)).all()


@pytest.mark.parametrize(
    "kwargs", [{"scale": -1}, {"scale": float("nan")}, {"ngram": 0}, {"ngram": 1.5}, {"min_pass": 2}]
)
def test_settings_are_checked(kwargs):
    with pytest.raises(ValueError, match=f"`{next(iter(kwargs))}` is"):
        NoveltyGuide(**kwargs)


@pytest.mark.parametrize(
    "made, error, message",
    [
        (None, TypeError, "must return a dict of tensors at step 0"),
        ({"a": [1, 2]}, TypeError, "must return a dict of tensors"),
        ({"a": torch.ones(3)}, ValueError, r"returned 'a' of shape \(3,\).*must be \(N,\) = \(2,\)"),
    ],
)
def test_what_a_guide_prepares_is_checked(made, error, message):
    guide = type("Mine", (GuideFunction,), {"prepare": lambda self, rollout: made})()
    with pytest.raises(error, match=message):
        prepared_extras(guide, rollout_of([[1], [2]], [1, 0], 2))


def test_a_rollout_tells_groups_and_texts():
    class Words:
        def batch_decode(self, rows):
            return [" ".join(map(str, row)) for row in rows]

    rollout = rollout_of([[1, 2], [3], [4, 5], [6]], [1, 0, 0, 0], 2)
    rollout.tokenizer = Words()
    assert rollout.group.tolist() == [0, 0, 1, 1] and rollout.texts() == ["1 2", "3", "4 5", "6"]
