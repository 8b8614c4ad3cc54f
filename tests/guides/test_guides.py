"""Each guide by hand, in the corners: rows of 0 and 1 tokens, equal rows, ties, and the strength of the noise."""

import dataclasses

import pytest
import torch

from sage_trl import BranchGuide, GuideSignals, RandomGuide, TokenGuide, evaluate_guide
from sage_trl.guides.schedule import CosineCycles
from sage_trl.guides.token import minmax_weights, rank_weights, zscore_weights


def signals_of(surprisal, mask=None, **others):
    surprisal = torch.tensor(surprisal)
    mask = torch.ones_like(surprisal) if mask is None else torch.tensor(mask)
    return GuideSignals(policy_logps=-surprisal, ref_logps=-surprisal, mask=mask, entropies=surprisal, **others)


def test_branch_by_hand():
    q = evaluate_guide(BranchGuide(ratio=0.5, threshold=1.0), signals_of([[0.5, 1.0, 1.5, 9.0]]), 0.6, 1.4)
    assert q.tolist() == [pytest.approx([1.0, 1.0, 1.25, 1.4])]


def test_branch_from_the_reference_reads_its_entropies():
    signals = signals_of([[9.0, 9.0]], ref_entropies=torch.tensor([[0.0, 2.0]]))
    q = evaluate_guide(BranchGuide(ratio=0.1, threshold=1.0, source="ref"), signals, 0.6, 1.4)
    assert q.tolist() == [pytest.approx([1.0, 1.1])]


@pytest.mark.parametrize(
    ("weights", "single"),
    [(minmax_weights, 0.0), (rank_weights, 0.0), (zscore_weights, 0.5)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_rows_of_none_one_and_equal_values(weights, single):
    values = torch.tensor([[3.3, 1.0, 2.0], [3.3, 9.0, 9.0], [3.3, 3.3, 3.3]])
    mask = torch.tensor([[False] * 3, [True, False, False], [True] * 3])
    result = weights(values, mask)
    assert result[0].tolist() == [0.0, 0.0, 0.0]
    assert result[1].tolist() == [single, 0.0, 0.0]
    if weights is not rank_weights:
        assert result[2].tolist() == [single] * 3


def test_rank_by_hand_with_ties_and_a_gap():
    values = torch.tensor([[2.0, 1.0, 99.0, 2.0, 5.0]])
    mask = torch.tensor([[True, True, False, True, True]])
    assert rank_weights(values, mask).tolist() == [pytest.approx([1 / 3, 0.0, 0.0, 2 / 3, 1.0])]


def test_minmax_agrees_with_torch_quantile():
    values = torch.rand(1, 41, generator=torch.Generator().manual_seed(0))
    low, high = torch.quantile(values, 0.05), torch.quantile(values, 0.95)
    expected = (values.clamp(low, high) - low) / (high - low)
    torch.testing.assert_close(minmax_weights(values, torch.ones_like(values).bool()), expected)


def test_zscore_by_hand():
    result = zscore_weights(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]]))
    torch.testing.assert_close(result, torch.sigmoid(torch.tensor([[-1.0, 1.0]])))


def test_token_strength_follows_the_schedule():
    guide = TokenGuide(alpha=(0.3, 0.1), sigma=0.0, num_cycles=2, norm="rank")
    for step in (0, 3, 5, 9):
        q = evaluate_guide(guide, signals_of([[0.0, 1.0]], step=step, max_steps=10), 0.1, 2.0)
        strength = CosineCycles(0.3, 0.1, 2, 0.9).value(step, 10)
        assert q.tolist() == [pytest.approx([1.0, 1.0 + strength])]


def test_token_noise_has_the_schedule_s_spread_and_scales_with_the_weight():
    generator = torch.Generator().manual_seed(0)
    signals = signals_of([[float(i % 2) for i in range(20_000)]], generator=generator)
    q = evaluate_guide(TokenGuide(alpha=0.0, sigma=0.05, norm="minmax"), signals, 0.1, 2.0)[0]
    assert (q[::2] == 1).all()
    assert q[1::2].mean() == pytest.approx(1.0, abs=0.003) and q[1::2].std() == pytest.approx(0.05, rel=0.05)


def test_random_touches_its_share_with_its_spread():
    signals = signals_of([[0.0] * 50_000], generator=torch.Generator().manual_seed(0))
    q = evaluate_guide(RandomGuide(probability=0.2, sigma=0.05), signals, 0.1, 2.0)[0]
    touched = q[q != 1]
    assert len(touched) / len(q) == pytest.approx(0.2, rel=0.05)
    assert touched.mean() == pytest.approx(1.0, abs=0.003) and touched.std() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("guide", [TokenGuide(), RandomGuide(probability=0.5)], ids=repr)
def test_the_same_generator_state_gives_the_same_values(guide):
    def values(seed):
        signals = signals_of([[0.1, 0.5, 0.9, 2.0]], generator=torch.Generator().manual_seed(seed))
        return evaluate_guide(guide, dataclasses.replace(signals, max_steps=10), 0.1, 2.0)

    assert torch.equal(values(3), values(3)) and not torch.equal(values(3), values(4))


def test_invariant_4_a_schedule_holds_no_state():
    schedule = CosineCycles(0.3, 0.1, 4, 0.8)
    forward = [schedule.value(step, 97) for step in range(97)]
    backward = [schedule.value(step, 97) for step in reversed(range(97))]
    assert forward == backward[::-1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BranchGuide(ratio=-1), "`ratio` is -1"),
        (lambda: BranchGuide(threshold=float("nan")), "`threshold` is nan"),
        (lambda: BranchGuide(source="policies"), "`source` is 'policies'.*'policy' or 'ref'"),
        (lambda: TokenGuide(norm="max"), "`norm` is 'max'.*minmax.*rank.*zscore"),
        (lambda: TokenGuide(alpha=(1, 2, 3)), r"`alpha` is \(1, 2, 3\).*pair"),
        (lambda: TokenGuide(num_cycles=0), "`num_cycles` is 0"),
        (lambda: RandomGuide(probability=(1.5, 0)), r"`probability` is \(1.5, 0\)"),
        (lambda: RandomGuide(sigma=("a", 0)), "of a schedule is 'a'"),
    ],
)
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
