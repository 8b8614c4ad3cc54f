"""SAGE with LoRA on a base quantized to 4 bits. Needs bitsandbytes: pip install "sage-trl[quantization]"."""

from pathlib import Path

import pytest
import torch
from support import assert_same_bits, weights
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from sage_trl import BranchGuide
from sage_trl.fingerprint import fingerprint, load_base_record
from sage_trl.train import build_trainer, make_parser

bitsandbytes = pytest.importorskip("bitsandbytes")

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "countdown" / "model"
ARGUMENTS = [
    *("--config", str(ROOT / "recipes" / "countdown" / "sage_branch.yaml"), "--model_name_or_path", str(MODEL)),
    *("--load_in_4bit", "true", "--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj"),
    *("--per_device_train_batch_size", "16", "--task_kwargs", '{"num_rows": 20}', "--use_cpu", "true"),
    *("--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1", "--learning_rate", "0.01"),
    *("--warmup_steps", "0"),
]


def seeing(trainer) -> list:
    """What the run's guide sees of each micro-batch."""
    seen, guide = [], trainer.guide

    class Seeing(BranchGuide):
        def __call__(self, signals):
            seen.append(signals)
            return guide(signals)

    trainer.guide = Seeing()
    return seen


def test_a_quantized_base_is_the_reference_and_its_run_resumes(tmp_path):
    trainer = build_trainer(*make_parser().parse_run([*ARGUMENTS, "--output_dir", str(tmp_path)]))
    layers = [each for each in trainer.model.modules() if isinstance(each, bitsandbytes.nn.Linear4bit)]
    assert layers and all(each.weight.quant_type == "nf4" for each in layers)
    before, seen = weights(trainer.model), seeing(trainer)
    trainer.train()
    after = weights(trainer.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("lora_" in name for name in moved)

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=trainer.model.dtype
    )
    # As TRL runs them, in training mode: in the other, bitsandbytes computes in bfloat16 on some CPUs
    fresh = AutoModelForCausalLM.from_pretrained(
        MODEL, quantization_config=settings, dtype=trainer.model.dtype
    ).train()
    whole = AutoModelForCausalLM.from_pretrained(MODEL).train()
    for signals in seen:  # the base without quantization is another model
        ids = torch.cat([signals.prompt_ids, signals.completion_ids], dim=1)
        real = torch.cat([signals.prompt_ids != trainer.processing_class.pad_token_id, signals.mask], dim=1)
        quantized, unquantized = (
            completion_logps(model, ids, real.long(), signals.completion_ids) for model in (fresh, whole)
        )
        assert torch.allclose(signals.ref_logps[signals.mask], quantized[signals.mask], atol=2e-5)
        assert (quantized - unquantized)[signals.mask].abs().max() > 0.01
    assert (seen[1].policy_logps - seen[1].ref_logps)[seen[1].mask].abs().max() > 1e-3

    # What is merged in the end is the base before it was quantized
    assert load_base_record(tmp_path / "checkpoint-1")["fingerprint"] == fingerprint(str(MODEL))

    arguments = [*ARGUMENTS, "--output_dir", str(tmp_path / "resumed")]
    resumed = build_trainer(*make_parser().parse_run(arguments))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert resumed.state.global_step == 2
    assert_same_bits(after, weights(resumed.model))


def completion_logps(model, ids: torch.Tensor, attention: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of completions by a model's own logits, shape `(B, T)`."""
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -completions.size(1) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
