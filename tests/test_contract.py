"""The seam to TRL: holds on the installed version, and a TRL that moves it is named before anything trains wrong."""

import configparser
from pathlib import Path

import pytest
import torch
import trl
from packaging.requirements import Requirement
from support import build_trainer
from trl import GRPOTrainer

from sage_trl import SAGEGRPOTrainer
from sage_trl.publishing import PublishingMixin
from sage_trl.trainer import TESTED_TRL, TRLContractError, check_trl_contract

BRANCH = {"guide": "branch", "guide_kwargs": {"threshold": 4.0}}


class Honest:
    def _compute_loss(self, model, inputs):
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(model)
        return logps - inputs["ref_per_token_logps"]

    def _get_per_token_logps_and_entropies(self, model):
        return model, None, None


class OtherOrder(Honest):
    def _compute_loss(self, model, inputs):
        ref = inputs["ref_per_token_logps"]
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(model)
        return logps - ref


class OtherKey(Honest):
    def _compute_loss(self, model, inputs):
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(model)
        return logps - inputs["anchor_logps"]


class OtherTuple(Honest):
    def _compute_loss(self, model, inputs):
        logps, entropies = self._get_per_token_logps_and_entropies(model)
        return logps - inputs["ref_per_token_logps"]


class TwoForwards(Honest):
    def _compute_loss(self, model, inputs):
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(model)
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(model)
        return logps - inputs["ref_per_token_logps"]


class OtherName:
    def _compute_loss(self, model, inputs):
        return self._score(model) - inputs["ref_per_token_logps"]


MOVED = [
    (OtherOrder, "reads `inputs\\['ref_per_token_logps'\\]` before it calls `_get_per_token_logps_and_entropies`"),
    (OtherKey, "does not read `inputs\\['ref_per_token_logps'\\]`"),
    (OtherTuple, "does not unpack 3 values \\(logps, entropies, aux_loss\\)"),
    (TwoForwards, "calls `_get_per_token_logps_and_entropies` 2 times, not once"),
    (OtherName, "has no method \\['_get_per_token_logps_and_entropies'\\]"),
]


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, Honest])
def test_the_contract_holds(trainer_class):
    check_trl_contract(trainer_class)


@pytest.mark.parametrize(("trainer_class", "message"), MOVED)
def test_what_moved_is_named(trainer_class, message):
    with pytest.raises(TRLContractError, match=f"TRL .* has moved what SAGE builds on: .*{message}.*Install 'trl.*>="):
        check_trl_contract(trainer_class)


def test_an_untested_version_is_refused_only_if_the_contract_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "99.0.0")
    build_trainer(tmp_path, **BRANCH)
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", OtherOrder._compute_loss)
    with pytest.raises(TRLContractError, match="TRL 99.0.0 has moved"):
        build_trainer(tmp_path, **BRANCH)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (OtherOrder._compute_loss, "reads .* before it calls"),
        (OtherKey._compute_loss, "does not read"),
        (TwoForwards._compute_loss, "more than once"),
        (lambda self, model, inputs: inputs["advantages"].sum(), "does not call"),
    ],
)
def test_a_loss_that_moved_is_caught_while_it_runs(loss, message, make_trainer, golden_inputs, monkeypatch):
    trainer = make_trainer(**BRANCH, max_completion_length=24)
    forward = GRPOTrainer._get_per_token_logps_and_entropies
    zeros = torch.zeros_like(golden_inputs["ref_per_token_logps"])
    monkeypatch.setattr(GRPOTrainer, forward.__name__, lambda self, *args, **kwargs: (zeros, zeros, None))
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", loss)
    golden_inputs["anchor_logps"] = zeros
    with pytest.raises(TRLContractError, match=message):
        trainer._compute_loss(trainer.model, golden_inputs)


def test_a_batch_without_the_reference_is_caught(make_trainer, golden_inputs):
    trainer = make_trainer(**BRANCH, max_completion_length=24)
    del golden_inputs["ref_per_token_logps"]
    with pytest.raises(TRLContractError, match="no longer has the key 'ref_per_token_logps'"):
        trainer._compute_loss(trainer.model, golden_inputs)


def test_a_forward_with_another_tuple_is_caught(make_trainer, golden_inputs, monkeypatch):
    trainer = make_trainer(**BRANCH, max_completion_length=24)
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda self, *args, **kwargs: (None, None))
    with pytest.raises(TRLContractError, match="returned 2 values"):
        trainer._compute_loss(trainer.model, golden_inputs)


def test_the_tested_range_is_the_one_that_is_installed():
    config = configparser.ConfigParser()
    config.read(Path(__file__).parent.parent / "setup.cfg")
    requirements = [Requirement(line) for line in config["options"]["install_requires"].split("\n") if line]
    assert [line.specifier for line in requirements if line.name == "trl"] == [TESTED_TRL]


def test_no_line_of_the_loss_is_overridden_but_the_seam():
    methods = {name for name in dir(GRPOTrainer) if callable(getattr(GRPOTrainer, name))} - set(dir(object))
    assert methods & set(vars(PublishingMixin)) == {
        "_finish_current_push",
        "_push_from_checkpoint",
        "_save",
        "create_model_card",
        "init_hf_repo",
        "push_to_hub",
    }
    overridden = methods & set(vars(SAGEGRPOTrainer))
    assert overridden == {
        "_calculate_rewards",
        "_compute_loss",
        "_generate_and_score_completions",
        "_get_per_token_logps_and_entropies",
        "_load_from_checkpoint",
        "_load_rng_state",
        "_save_rng_state",
        "create_model_card",
        "end",
        "evaluate",
    }
