"""SAGE trains models of many kinds, and against their true log-probabilities."""

import math

import pytest
import torch
from bases import BASES, make_base, make_tokenizer
from datasets import Dataset
from peft import LoraConfig
from support import FAST, odd_sum, weights

from sage_trl import BranchGuide, GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer

TEMPERATURE = 0.7
LORA = {"gpt2": ["c_attn", "c_proj"], "phi3": ["qkv_proj"], "gpt_neox": ["query_key_value"]}


class Noting(GuideFunction):
    """The branch guide, keeping what it saw of each micro-batch."""

    requires, looks_ahead = ("entropies",), False

    def __init__(self):
        self.guide, self.seen = BranchGuide(threshold=0.5), []

    def __call__(self, signals):
        self.seen.append(signals)
        return self.guide(signals)


def own_logps(model: torch.nn.Module, signals) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the completion's tokens by the model's own logits. Shapes `(B, T)`."""
    ids = torch.cat([signals.prompt_ids, signals.completion_ids], dim=1)
    length = signals.completion_ids.size(1)
    attention = torch.cat([signals.prompt_ids != 0, signals.mask], dim=1).long()
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1].float()
    logps = (logits / TEMPERATURE).log_softmax(-1)
    return logps.gather(-1, signals.completion_ids.unsqueeze(-1)).squeeze(-1), -(logps.exp() * logps).sum(-1)


def train(model, folder, lora: bool, kind: str) -> tuple[SAGEGRPOTrainer, Noting]:
    guide = Noting()
    targets = LORA.get(kind, ["q_proj", "k_proj", "v_proj", "o_proj"])
    trainer = SAGEGRPOTrainer(
        model=model,
        reward_funcs=odd_sum,
        args=SAGEGRPOConfig(str(folder), **(FAST | {"temperature": TEMPERATURE})),
        train_dataset=Dataset.from_dict({"prompt": [f"problem {'and more ' * (i % 3)}{i}" for i in range(16)]}),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM") if lora else None,
        guide=guide,
    )
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(("lora_" in name) == lora for name in moved)
    logged = [entry for entry in trainer.state.log_history if "sage/q_mean" in entry]
    assert len(logged) == 2
    for entry in logged:
        assert all(math.isfinite(value) for name, value in entry.items() if name.startswith("sage/"))
        assert entry["sage/active_frac"] > 0
    return trainer, guide


def assert_true(reference, signals, policy=None):
    mask = signals.mask
    assert mask.sum() >= 4
    expected, _ = own_logps(reference, signals)
    assert torch.allclose(signals.ref_logps[mask], expected[mask], atol=2e-5), (
        (signals.ref_logps - expected)[mask].abs().max()
    )
    if policy is not None:
        expected, entropies = own_logps(policy, signals)
        assert torch.allclose(signals.policy_logps[mask], expected[mask], atol=2e-5)
        assert torch.allclose(signals.entropies[mask], entropies[mask], atol=1e-4)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", BASES)
def test_two_steps_against_the_true_reference(kind, lora, tmp_path):
    make_base(kind).save_pretrained(tmp_path / "base")  # a full reference is loaded from where the model was
    trainer, guide = train(str(tmp_path / "base"), tmp_path / "run", lora, kind)
    fresh = make_base(kind).eval()  # what the reference has to be
    for i, signals in enumerate(guide.seen):
        assert_true(fresh, signals, policy=fresh if i == 0 else None)
    assert (guide.seen[-1].policy_logps - guide.seen[-1].ref_logps).abs().max() > 1e-4
    assert ("aux_loss" in trainer.state.log_history[0]) == kind.endswith(" aux")
