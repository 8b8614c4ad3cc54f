"""A guide as a table, and what guides have to say of a model."""

import dataclasses
import math

import pytest
import torch

from sage_trl.anchor import evaluate_guide
from sage_trl.guides import (
    BranchGuide,
    GuideSignals,
    NoveltyGuide,
    ProductGuide,
    RandomGuide,
    TokenGuide,
    inspect,
)
from sage_trl.guides.schedule import schedules_of


class Letters:
    """Decodes 0 to a, 1 to b and so on."""

    def decode(self, ids):
        return "".join(chr(ord("a") + number) for number in ids)


@pytest.fixture
def signals():
    return GuideSignals(
        policy_logps=torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -9.0, -9.0]]),
        ref_logps=torch.tensor([[-1.5, -2.5, -9.0], [-0.25, -9.0, -9.0]]),
        mask=torch.tensor([[1, 1, 0], [1, 0, 0]]),
        entropies=torch.tensor([[0.5, 2.0, 7.0], [9.0, 7.0, 7.0]]),
    )


def test_a_row_for_each_valid_token(signals):
    signals.completion_ids, signals.tokenizer = torch.tensor([[0, 1, 9], [1, 9, 9]]), Letters()
    table = inspect(BranchGuide(ratio=0.1, threshold=1.0), signals, q_max=1.4)
    assert table["completion"].tolist() == [0, 0, 1] and table["position"].tolist() == [0, 1, 0]
    assert table["token"].tolist() == ["a", "b", "b"] and table["token_id"].tolist() == [0, 1, 1]
    assert table["surprisal"].tolist() == [1.0, 2.0, 0.5] and table["ref_surprisal"].tolist() == [1.5, 2.5, 0.25]
    assert table["entropy"].tolist() == [0.5, 2.0, 9.0] and "ref_entropy" not in table
    assert table["value"].tolist() == pytest.approx([1.0, 1.1, 1.8]) and table["q"].tolist() == pytest.approx(
        [1.0, 1.1, 1.4]
    )
    assert table["log_q"].tolist() == pytest.approx([0.0, math.log(1.1), math.log(1.4)])


def test_signals_alone_are_enough(signals):
    table = inspect(BranchGuide(), signals)
    assert "token" not in table and len(table) == 3


@pytest.mark.parametrize("guide", [BranchGuide(threshold=0.1), TokenGuide(sigma=0.0)], ids=repr)
def test_it_is_what_the_trainer_computes(signals, guide):
    expected = evaluate_guide(guide, signals, 0.9, 1.1)[signals.mask != 0]
    assert inspect(guide, signals, 0.9, 1.1)["q"].tolist() == expected.tolist()


def test_a_threshold_out_of_reach_is_said_with_what_is_in_reach(signals):
    entropies = torch.arange(1000).view(1, -1) / 1000
    ones = torch.ones_like(entropies)
    signals = GuideSignals(policy_logps=-ones, ref_logps=-ones, mask=ones, entropies=entropies).prepared()
    (remark,) = BranchGuide(threshold=2.0).remarks(signals)
    assert "`threshold` 2 is above all of this model's entropies: this guide will do nothing" in remark
    assert "Half of them are below 0.50, 90 % below 0.90 and 99 % below 0.99 nats" in remark
    (remark,) = BranchGuide(threshold=0.9975).remarks(signals)
    assert "above 99.8 % of" in remark and "next to nothing" in remark
    assert BranchGuide(threshold=0.9).remarks(signals) == []
    by_ref = dataclasses.replace(signals, entropies=None, ref_entropies=entropies)
    assert len(BranchGuide(threshold=2.0, source="ref").remarks(by_ref)) == 1
    (remark,) = ProductGuide([RandomGuide(), BranchGuide(threshold=2.0)]).remarks(signals)
    assert "`threshold` 2" in remark


def test_novelty_says_when_nothing_is_new(signals):
    signals.extra = {"novelty": torch.zeros(2)}
    (remark,) = NoveltyGuide().remarks(signals.prepared())
    assert "No completion is correct and new" in remark
    signals.extra = {"novelty": torch.tensor([0.0, 0.5])}
    assert NoveltyGuide().remarks(signals.prepared()) == []


def test_schedules_of_a_product_are_named_by_part():
    assert set(schedules_of(TokenGuide())) == {"alpha", "sigma"}
    product = ProductGuide([BranchGuide(), TokenGuide()])
    assert set(schedules_of(product)) == {"TokenGuide.alpha", "TokenGuide.sigma"}
    assert schedules_of(BranchGuide()) == {}
