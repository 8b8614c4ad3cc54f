"""Invariant 2: q is detached, positive, finite, clamped, 1 where masked, and float32; bad guides are refused."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_trl import BranchGuide, GuideFunction, GuideSignals, RandomGuide, TokenGuide, evaluate_guide
from sage_trl.anchor import anchor_statistics, k3_kl, sequence_credit, shape_anchor, summarize_statistics


class Constant(GuideFunction):
    requires = ()
    looks_ahead = False

    def __init__(self, value):
        self.value = value

    def __call__(self, signals):
        return torch.full(signals.mask.shape, float(self.value))


class Returns(GuideFunction):
    requires = ()

    def __init__(self, result):
        self.result = result

    def __call__(self, signals):
        return self.result


GUIDES = [
    BranchGuide(),
    BranchGuide(ratio=50.0, threshold=0.0),
    *(TokenGuide(norm=norm, source=source) for norm in ("minmax", "rank", "zscore") for source in ("policy", "ref")),
    TokenGuide(sigma=(100.0, 100.0)),
    RandomGuide(probability=(1.0, 1.0), sigma=(100.0, 100.0)),
    Constant(0.01),
]


def signals_of(mask, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    policy, ref = (-3 * torch.rand(mask.shape, generator=generator).to(dtype) for _ in range(2))
    return GuideSignals(
        policy_logps=policy.requires_grad_(),
        ref_logps=ref,
        mask=mask,
        entropies=4 * torch.rand(mask.shape, generator=generator).to(dtype),
        generator=generator,
    )


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_values_are_safe_for_every_guide_mask_and_dtype(shape, dtype, seed):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6  # rows of 0 and 1 among them
    for guide in GUIDES:
        q = evaluate_guide(guide, signals_of(mask, seed, dtype), q_min=0.6, q_max=1.4)
        assert q.dtype == torch.float32 and not q.requires_grad and q.shape == mask.shape
        assert torch.isfinite(q).all() and (q >= 0.6).all() and (q <= 1.4).all()
        assert (q[~mask] == 1).all()


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("guide", GUIDES, ids=repr)
def test_what_lies_under_the_mask_does_not_matter(guide, garbage):
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0]])
    clean, dirty = signals_of(mask), signals_of(mask)
    for name in ("policy_logps", "ref_logps", "entropies"):
        setattr(dirty, name, torch.where(mask != 0, getattr(dirty, name), garbage))
    assert torch.equal(evaluate_guide(guide, clean, 0.6, 1.4), evaluate_guide(guide, dirty, 0.6, 1.4))


@pytest.mark.parametrize("guide", GUIDES, ids=repr)
def test_a_guide_never_touches_a_global_generator(guide):
    before = torch.get_rng_state()
    evaluate_guide(guide, signals_of(torch.ones(2, 5)), 0.6, 1.4)
    assert torch.equal(before, torch.get_rng_state())


def test_low_precision_signals_are_evaluated_in_float32():
    signals = signals_of(torch.ones(2, 5), dtype=torch.bfloat16)
    seen = []

    class Spy(Constant):
        def __call__(self, signals):
            seen.extend([signals.policy_logps.dtype, signals.entropies.dtype, signals.policy_logps.requires_grad])
            return super().__call__(signals)

    evaluate_guide(Spy(1.0), signals, 0.6, 1.4)
    assert seen == [torch.float32, torch.float32, False]
    assert signals.policy_logps.dtype == torch.bfloat16 and signals.policy_logps.requires_grad


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (torch.ones(2), ValueError, r"Returns returned shape \(2,\) at step 7.*\(2, 3\)"),
        (1.0, TypeError, "Returns returned float at step 7"),
        (
            torch.tensor([[1.0, torch.nan, 1.0], [1.0, 1.0, 1.0]]),
            ValueError,
            "Returns returned 1 values .* 5 .*step 7",
        ),
        (torch.tensor([[1.0, 0.0, 1.0], [-1.0, torch.inf, 1.0]]), ValueError, "Returns returned 3 values"),
    ],
)
def test_bad_values_are_refused_with_guide_step_and_count(result, error, message):
    signals = dataclasses.replace(signals_of(torch.tensor([[1, 1, 1], [1, 1, 0]])), step=7)
    with pytest.raises(error, match=message):
        evaluate_guide(Returns(result), signals, 0.6, 1.4)


def test_a_bad_value_on_a_masked_token_is_no_error():
    q = evaluate_guide(Returns(torch.tensor([[2.0, torch.nan]])), signals_of(torch.tensor([[1, 0]])), 0.6, 1.4)
    assert q.tolist() == [[pytest.approx(1.4), 1.0]]


@pytest.mark.parametrize("signal", ["policy_logps", "ref_logps", "entropies", "mask"])
def test_a_guide_that_changes_its_signals_is_refused(signal):
    class Vandal(Constant):
        def __call__(self, signals):
            getattr(signals, signal).zero_()
            return super().__call__(signals)

    with pytest.raises(ValueError, match=rf"Vandal changed the signals \['{signal}'\] in place at step 0"):
        evaluate_guide(Vandal(1.0), signals_of(torch.ones(2, 3)), 0.6, 1.4)


def test_noise_without_a_generator_is_refused():
    signals = dataclasses.replace(signals_of(torch.ones(1, 2)), generator=None)
    with pytest.raises(ValueError, match="`generator` of its signals is None"):
        evaluate_guide(TokenGuide(), signals, 0.6, 1.4)


def test_a_missing_signal_is_named():
    with pytest.raises(ValueError, match="BranchGuide requires the signals .*'ref_entropies'"):
        evaluate_guide(BranchGuide(source="ref"), signals_of(torch.ones(1, 2)), 0.6, 1.4)


def test_anchor_of_q_1_is_the_reference_to_the_bit():
    ref = -3 * torch.rand(3, 5)
    assert torch.equal(shape_anchor(ref, torch.ones(3, 5)), ref)


def test_shaped_anchor_and_kl_by_hand():
    ref, policy = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])
    anchor = shape_anchor(ref, torch.tensor([[1.4]]))
    assert anchor.item() == pytest.approx(-1.0 + math.log(1.4))
    difference = -1.0 + math.log(1.4) + 2.0
    assert k3_kl(policy, anchor).item() == pytest.approx(math.exp(difference) - difference - 1)


def test_statistics_by_hand_over_two_processes():
    mask = torch.tensor([[1, 1, 0]])
    logps = torch.tensor([[-1.0, -2.0, torch.nan]])
    first = anchor_statistics(logps, logps - 1, mask, torch.tensor([[1.0, 5.0, 1.0]]), torch.tensor([[1.0, 1.4, 1.0]]))
    second = anchor_statistics(logps, logps, mask * 0, torch.ones(1, 3), torch.ones(1, 3))  # nothing valid here
    metrics = summarize_statistics(torch.cat([first, second]))
    assert metrics == pytest.approx(
        {
            "q_mean": 1.2,
            "q_min": 1.0,
            "q_max": 1.4,
            "active_frac": 0.5,
            "clamped_frac": 0.5,
            "log_q_sum": math.log(1.4) / 2,
            "kl_ref": math.exp(-1),
        }
    )
    assert all(math.isnan(value) for name, value in summarize_statistics(second).items() if name != "log_q_sum")


def test_credit_by_hand():
    policy, ref = torch.tensor([[-1.0, -2.0, -4.0, 9.0]]), torch.tensor([[-2.0, -2.0, -1.0, 5.0]])
    q, mask = torch.tensor([[2.0, 0.5, 4.0, 1.0]]), torch.tensor([[1, 1, 1, 0]])
    two = math.log(2)
    to_go = [2 + 2 * two, 3 + two, 3 + 2 * two, 0]
    ahead = [2 + 2 * two, 3 + 2 * two, 3 + 2 * two, 0]  # and log q of the tokens before: 1, then 1 - 1
    for looks_ahead, expected in ((False, to_go), (True, ahead)):
        assert sequence_credit(policy, ref, q, mask, looks_ahead).tolist() == [pytest.approx(expected)]
    padded = [torch.nn.functional.pad(x, (0, 2), value=y) for x, y in ((policy, 7.0), (ref, 3.0), (q, 1.0), (mask, 0))]
    assert sequence_credit(*padded, looks_ahead=True)[:, :4].tolist() == [pytest.approx(ahead)]


@pytest.mark.parametrize("guide", GUIDES, ids=repr)
def test_a_guide_looks_ahead_only_if_it_says_so(guide):
    signals = signals_of(torch.ones(3, 6))
    changed = signals_of(torch.ones(3, 6))
    for name in ("policy_logps", "ref_logps", "entropies"):
        getattr(changed, name).data[:, 4:] = getattr(signals, name)[:, 4:] * 3
    first, second = (evaluate_guide(guide, each, 0.6, 1.4)[:, :4] for each in (signals, changed))
    assert torch.equal(first, second) != guide.looks_ahead
