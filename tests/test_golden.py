"""Values of the paper's published implementation, kept as data: guides, schedules, and the loss they lead to."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from support import GOLDEN

from sage_trl import BranchGuide, TokenGuide, evaluate_guide
from sage_trl.guides.schedule import CosineCycles

EXPECTED = json.loads((GOLDEN / "case" / "expected.json").read_text())
EXPECTED_Q = load_file(GOLDEN / "case" / "expected_q.safetensors")


def settings_of(key: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=([a-z_]+(?=\.|$)|[\d.]+(?:->[\d.]+)?(?=\.[a-z]|$))", key))


@pytest.mark.parametrize("key", EXPECTED_Q)
def test_guide_values(key, golden_signals):
    settings = settings_of(key)
    if key.startswith("branch"):
        guide = BranchGuide(ratio=float(settings["ratio"]), threshold=float(settings["threshold"]))
    else:
        alpha, sigma = float(settings["alpha"]), float(settings["sigma"])
        guide = TokenGuide((alpha, alpha), (sigma, sigma), norm=settings["norm"], source=settings["source"])
    q = evaluate_guide(guide, golden_signals, float(settings["q_min"]), float(settings["q_max"]))
    torch.testing.assert_close(q, EXPECTED_Q[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("key", EXPECTED["schedule"])
def test_schedules(key):
    settings = settings_of(key)
    cycles = {"num_cycles": int(settings["num_cycles"]), "decay": float(settings["decay"])}
    schedules = [
        CosineCycles(*map(float, settings[name].split("->")), **cycles) for name in ("level", "sigma")
    ]  # (upper, lower)
    for step, *values in EXPECTED["schedule"][key]:
        for schedule, value in zip(schedules, values, strict=True):
            assert schedule.value(step, int(settings["max_steps"])) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("key", EXPECTED["loss"])
def test_loss(key, make_trainer, golden_inputs):
    trainer = make_trainer(
        guide="branch",
        guide_kwargs={"ratio": 0.3, "threshold": 4.9},
        beta=0.05,
        max_completion_length=24,
        **settings_of(key),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    before = {name: value.clone() for name, value in golden_inputs.items()}
    loss = trainer._compute_loss(trainer.model, golden_inputs)
    loss.backward()
    metrics = trainer._metrics["train"]
    norm = torch.stack([p.grad.square().sum() for p in trainer.model.parameters() if p.grad is not None]).sum().sqrt()
    measured = {"loss": loss.item(), "grad_norm": norm.item()}
    measured |= {name: metrics[name][0] for name in ("kl", "entropy")}
    measured |= {name: metrics[f"sage/{name}"][0] for name in ("q_mean", "q_min", "q_max")}
    assert measured == pytest.approx(EXPECTED["loss"][key], rel=1e-4)
    assert all(torch.equal(before[name], golden_inputs[name]) for name in before)
