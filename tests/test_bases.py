"""SAGE trains models of many kinds, and against their true log-probabilities."""

import math
import re

import pytest
import torch
import trl
from bases import BASES, RECURRENT, SHAPE, make_base, make_tokenizer
from datasets import Dataset
from packaging.version import Version
from peft import LoraConfig
from support import FAST, odd_sum, weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import sage_trl.bases
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


def test_a_completion_s_end_counts_where_it_is_the_padding_too(tmp_path):
    """TRL pads with the end token where the tokenizer has no other. Only its first one is part of a completion."""
    model, tokenizer, guide = make_base("gpt_neox"), make_tokenizer(), Noting()
    tokenizer.pad_token = None
    with torch.no_grad():  # ends are frequent: their logit gets the bias of the last norm, along their embedding
        end = model.get_output_embeddings().weight[tokenizer.eos_token_id]
        model.gpt_neox.final_layer_norm.bias += 4.5 * end / end.square().sum()
    model.save_pretrained(tmp_path / "base")
    trainer = SAGEGRPOTrainer(
        model=str(tmp_path / "base"),
        reward_funcs=odd_sum,
        args=SAGEGRPOConfig(str(tmp_path / "run"), **(FAST | {"max_steps": 1, "per_device_train_batch_size": 16})),
        train_dataset=Dataset.from_dict({"prompt": [f"problem {'and more ' * (i % 3)}{i}" for i in range(16)]}),
        processing_class=tokenizer,
        guide=guide,
    )
    trainer.train()
    signals, end = guide.seen[0], tokenizer.eos_token_id
    assert tokenizer.pad_token_id == end
    ended = 0
    for i, (ids, mask) in enumerate(zip(signals.completion_ids.tolist(), signals.mask.tolist(), strict=True)):
        length = ids.index(end) + 1 if end in ids else len(ids)
        assert mask == [j < length for j in range(len(ids))]
        assert set(ids[length:]) <= {end}
        ended += length < len(ids)
        # Each row alone and without padding: what stands around it has no part in its log-probabilities
        prompt = signals.prompt_ids[i]
        row = torch.cat([prompt[prompt != end], signals.completion_ids[i, :length]])
        logps = model.eval()(row[None]).logits[0, -length - 1 : -1].log_softmax(-1)
        expected = logps.gather(-1, row[-length:, None]).squeeze(-1)
        assert torch.allclose(signals.ref_logps[i, :length], expected, atol=2e-5)
    assert (signals.prompt_ids == end).any() and 2 <= ended <= 14
    q = guide.guide(signals).clamp(0.6, 1.4)
    assert trainer.state.log_history[0]["sage/q_mean"] == pytest.approx(q[signals.mask].mean().item(), rel=1e-5)


def refusal(model, tmp_path, prompt="problem", processing_class=None, **settings) -> str:
    with pytest.raises(ValueError) as error:
        SAGEGRPOTrainer(
            model=model,
            reward_funcs=odd_sum,
            args=SAGEGRPOConfig(str(tmp_path / "run"), **(FAST | settings)),
            train_dataset=Dataset.from_dict({"prompt": [prompt] * 4}),
            processing_class=processing_class,
        )
    assert "\n" not in str(error.value)
    return str(error.value)


def test_refuses_a_tokenizer_without_an_end_before_weights_are_loaded(tmp_path):
    make_base("llama").config.save_pretrained(tmp_path / "base")  # no weights there
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "base")
    assert refusal(str(tmp_path / "base"), tmp_path) == (
        f"`eos_token` of the tokenizer of '{tmp_path}/base' is None, so no completion could end. Set it in the "
        "model's tokenizer_config.json, or on the tokenizer that you give as `processing_class`."
    )


def test_refuses_messages_without_a_chat_template(tmp_path):
    make_base("llama").config.save_pretrained(tmp_path / "base")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    found = refusal(str(tmp_path / "base"), tmp_path, prompt=[{"role": "user", "content": "1 + 1"}])
    assert found.startswith(
        f"the tokenizer of '{tmp_path}/base' has no chat template, and a prompt is messages. Put a"
    )
    sage_trl.bases.check_tokenizer(tokenizer, Dataset.from_dict({"prompt": ["a text as it is"]}))


def test_refuses_a_full_reference_of_a_model_that_comes_from_nowhere(tmp_path):
    found = refusal(make_base("llama"), tmp_path, processing_class=make_tokenizer())
    assert found.startswith(
        "`model` is a LlamaForCausalLM whose `config._name_or_path` is empty, and `beta` is 0.5: the reference is"
    )
    settings = SAGEGRPOConfig(str(tmp_path / "run"), **(FAST | {"beta": 0.0}))
    sage_trl.bases.check_reference_source(make_base("llama"), settings, peft_config=None)  # needs no reference


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("recurrent_gemma", RECURRENT, '`logits_soft_cap` of .* Add "final_logit_softcapping": 1 to its config.json.'),
        ("recurrent_gemma", RECURRENT | {"final_logit_softcapping": 2.0}, "log-probabilities would be wrong"),
        (
            "modernbert-decoder",
            {"vocab_size": SHAPE["vocab_size"]},
            "is '.*base', a modernbert-decoder, whose head",
        ),
    ],
)
def test_refuses_a_head_that_trl_would_not_compute_with(model_type, settings, message, tmp_path):
    CONFIG_MAPPING[model_type](**settings).save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    assert re.search(message, refusal(str(tmp_path / "base"), tmp_path))


@pytest.mark.skipif(Version(trl.__version__) < Version("1.15"), reason="computes with the model's own logits")
def test_the_refused_cap_would_be_left_out(tmp_path, monkeypatch):
    """Why it is refused: should TRL come to know it, this fails, and the refusal can go."""
    monkeypatch.setattr(sage_trl.bases, "OTHER_CAPS", ())
    monkeypatch.setitem(BASES, "uncapped", ("recurrent_gemma", RECURRENT))
    make_base("uncapped").save_pretrained(tmp_path / "base")
    _, guide = train(str(tmp_path / "base"), tmp_path / "run", True, "uncapped")
    expected, _ = own_logps(make_base("uncapped").eval(), guide.seen[0])
    assert (guide.seen[0].ref_logps - expected)[guide.seen[0].mask].abs().max() > 0.01
