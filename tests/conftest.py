"""Fixtures that several test files share."""

import pytest
from safetensors.torch import load_file
from support import GOLDEN, build_trainer

from sage_trl import GuideSignals


@pytest.fixture
def make_trainer(tmp_path):
    return lambda **settings: build_trainer(tmp_path / "run", **settings)


@pytest.fixture
def golden_inputs():
    """Inputs of TRL's loss as the golden case has them."""
    case = load_file(GOLDEN / "case" / "inputs.safetensors")
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
    inputs = {name: case[name] for name in (*names, "old_per_token_logps", "ref_per_token_logps")}
    return inputs | {"num_items_in_batch": case["completion_mask"].sum()}


@pytest.fixture
def golden_signals():
    case = load_file(GOLDEN / "case" / "inputs.safetensors")
    return GuideSignals(
        policy_logps=case["policy_logps"],
        ref_logps=case["ref_per_token_logps"],
        mask=case["completion_mask"],
        entropies=case["entropies"],
    )
