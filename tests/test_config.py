"""Every refusal that needs no trainer, by its message."""

import pytest

from sage_trl import BranchGuide, SAGEGRPOConfig
from sage_trl.guides import resolve_guide

BASE = {"use_cpu": True, "bf16": False, "report_to": "none"}

OWN_GUIDE = """
import torch
from sage_trl import GuideFunction

class Mine(GuideFunction):
    requires = ("policy_logps",)

    def __init__(self, scale, offset=0.0):
        self.scale, self.offset = scale, offset

    def __call__(self, signals):
        return torch.ones_like(signals.policy_logps) + self.scale

class Needy(GuideFunction):
    requires = ("hidden_states",)

class Stringy(GuideFunction):
    requires = "entropies"

class Stranger:
    pass
"""


@pytest.fixture
def own_guide(tmp_path):
    path = tmp_path / "my_guides.py"
    path.write_text(OWN_GUIDE)
    return path


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"guide": "brnach"},
            ValueError,
            r"`guide` is 'brnach'.*Did you mean 'branch'\?.*none.*branch.*token.*random",
        ),
        ({"guide": "branch", "guide_kwargs": {"treshold": 1}}, ValueError, "'treshold'.*Did you mean 'threshold'"),
        ({"guide": "branch", "guide_kwargs": "ratio"}, ValueError, "`guide_kwargs` is 'ratio', which is no JSON"),
        ({"guide": "branch", "guide_kwargs": [1]}, ValueError, r"`guide_kwargs` is \[1\]; it must be a mapping"),
        ({"guide": "none", "guide_kwargs": {"ratio": 1}}, ValueError, "`guide` is 'none'. Name a guide"),
        ({"guide": "branch", "beta": 0.0}, ValueError, "'branch' but `beta` is 0.*Set `beta` above 0"),
        ({"guide": "branch", "use_bias_correction_kl": True}, ValueError, "zero expected effect.*docs/anchor.md"),
        ({"guide": None}, TypeError, "`guide` is None; it must be a name or an import path"),
        ({"q_min": float("nan")}, ValueError, "`q_min` is nan"),
        ({"q_max": float("inf")}, ValueError, "`q_max` is inf"),
        ({"q_min": 0.0}, ValueError, "`q_min` is 0.0; it must be above 0"),
        ({"q_min": 1.1}, ValueError, "`q_min` is 1.1;.*at most 1"),
        ({"q_max": 0.9}, ValueError, "`q_max` is 0.9;.*at least 1"),
        ({"anchor": "k4"}, ValueError, "`anchor` is 'k4'.*Did you mean 'k3'"),
        ({"beta": -0.1}, ValueError, "`beta` is -0.1"),
        ({"guide": "branch", "anchor": "token"}, ValueError, "`anchor` is 'token', under which a guide of the state"),
        ({"guide": "random", "anchor": "token"}, ValueError, "Set `anchor` to 'sequence' or 'k3'"),
        ({"anchor": "token", "importance_sampling_level": "sequence"}, ValueError, "cannot credit single tokens"),
        ({"anchor": "sequence", "importance_sampling_level": "sequence"}, ValueError, "cannot credit single tokens"),
        ({"anchor": "sequence", "use_bias_correction_kl": True}, ValueError, "no KL term in the loss to correct"),
        ({"anchor": "sequence", "loss_type": "vespo"}, ValueError, "`loss_type` is 'vespo', which weighs whole"),
        ({"guide": "no_such_module:X"}, ImportError, "`guide`: cannot import 'no_such_module': ModuleNotFoundError"),
        ({"guide": "no/such/file.py:X"}, ImportError, "there is no file 'no/such/file.py'"),
        ({"guide": "sage_trl.guides:BranchGide"}, ImportError, "has no 'BranchGide'. Did you mean 'BranchGuide'"),
        ({"guide": "sage_trl.imports:nearest"}, TypeError, "not a subclass of `sage_trl.GuideFunction`"),
    ],
)
def test_refusals(settings, error, message):
    with pytest.raises(error, match=message):
        SAGEGRPOConfig("unused", **BASE, **settings)


def test_a_plain_baseline_may_have_trl_s_importance_correction():
    assert SAGEGRPOConfig("unused", **BASE, use_bias_correction_kl=True).guide == "none"


def test_defaults_are_the_paper_s():
    args = SAGEGRPOConfig("unused", **BASE)
    settings = (args.anchor, args.beta, args.q_min, args.q_max, args.use_bias_correction_kl)
    assert settings == ("k3", 0.05, 0.6, 1.4, False)


def test_the_token_estimator_is_trl_s_correction():
    assert SAGEGRPOConfig("unused", **BASE, anchor="token", guide="token").use_bias_correction_kl


def test_the_default_beta_of_a_sequence_falls_with_its_length():
    betas = [SAGEGRPOConfig("unused", **BASE, anchor="sequence", max_completion_length=n).beta for n in (16, 1600)]
    assert betas == [0.1, 0.001]
    assert SAGEGRPOConfig("unused", **BASE, anchor="sequence", beta=0.3).beta == 0.3


def test_a_beta_that_was_carried_over_is_warned_of(caplog):
    SAGEGRPOConfig("unused", **BASE, anchor="sequence", max_completion_length=6144, beta=0.05)
    assert "6144 tokens make 123 nats, and the term 6.1 against rewards of about 1" in caplog.text
    assert "The default for this length is 0.00026" in caplog.text
    caplog.clear()
    SAGEGRPOConfig("unused", **BASE, anchor="sequence", max_completion_length=6144)
    SAGEGRPOConfig("unused", **BASE, anchor="sequence", max_completion_length=16, beta=0.05)
    assert caplog.text == ""


def test_guide_kwargs_as_json():
    args = SAGEGRPOConfig("unused", **BASE, guide="branch", guide_kwargs='{"ratio": 0.5, "source": "ref"}')
    guide = resolve_guide(args.guide, args.guide_kwargs)
    assert isinstance(guide, BranchGuide) and guide.ratio == 0.5 and guide.requires == ("ref_entropies",)


def test_a_guide_from_a_file_and_from_a_module(own_guide, monkeypatch):
    assert resolve_guide(f"{own_guide}:Mine", {"scale": 0.5}).scale == 0.5
    monkeypatch.syspath_prepend(own_guide.parent)
    assert resolve_guide("my_guides:Mine", {"scale": 0.25}).scale == 0.25


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("Mine", {}, ValueError, r"must set \['scale'\]"),
        ("Mine", {"scale": 1, "ofset": 2}, ValueError, r"'ofset'.*Did you mean 'offset'.*\['scale', 'offset'\]"),
        ("Needy", {}, ValueError, "Needy requires the signal 'hidden_states', which this run does not compute"),
        ("Stringy", {}, TypeError, "`requires` of guide Stringy is a string; make it a tuple"),
        ("Stranger", {}, TypeError, "not a subclass of `sage_trl.GuideFunction`"),
    ],
)
def test_refusals_of_own_guides(own_guide, name, kwargs, error, message):
    with pytest.raises(error, match=message):
        resolve_guide(f"{own_guide}:{name}", kwargs)


def test_an_error_inside_a_guide_s_file_is_shown(tmp_path):
    (tmp_path / "broken.py").write_text("import does_not_exist")
    with pytest.raises(ImportError, match="ModuleNotFoundError: No module named 'does_not_exist'"):
        resolve_guide(f"{tmp_path}/broken.py:Guide")
