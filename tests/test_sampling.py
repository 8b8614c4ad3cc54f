import pytest
import torch
from support import GOLDEN, build_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl import sampling
from sage_trl.sampling import pad_rows, sample, score


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(GOLDEN / "model", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(GOLDEN / "model")


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer("problem 3")["input_ids"]


def test_the_same_seed_gives_the_same_completions_and_touches_no_global_generator(model, tokenizer, prompt):
    before = torch.get_rng_state()
    first, again, other = (sample(model, tokenizer, prompt, 5, seed, 8) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert first == again != other
    assert len(first) == 5 and all(0 < len(row) <= 8 for row in first)


def test_a_completion_ends_with_its_end_token(model, tokenizer, prompt):
    end = tokenizer.eos_token_id
    rows = sample(model, tokenizer, prompt, 64, 0, 40, temperature=3.0)
    ended = [row for row in rows if end in row]
    assert ended and all(row.index(end) == len(row) - 1 for row in ended)
    assert all(len(row) == 40 for row in rows if end not in row)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_scores_are_those_of_the_trainer(tmp_path, model, tokenizer, prompt, temperature):
    rows = sample(model, tokenizer, prompt, 6, 0, 9, temperature)
    rows[0] = rows[0][:3]
    ids, mask = pad_rows(rows, tokenizer.pad_token_id or 0, model.device)
    logps, entropies = score(model, prompt, ids, mask, temperature)
    trainer = build_trainer(tmp_path, temperature=temperature)
    prompts = torch.tensor([prompt]).expand(len(rows), -1)
    expected_logps, expected_entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([prompts, ids], dim=1),
        torch.cat([torch.ones_like(prompts), mask.long()], dim=1),
        ids.size(1),
        compute_entropy=True,
    )
    assert torch.allclose(logps[mask], expected_logps[mask], atol=1e-5)
    assert torch.allclose(entropies[mask], expected_entropies[mask], atol=1e-5)


def test_scores_do_not_depend_on_how_they_are_split(monkeypatch, model, tokenizer, prompt):
    ids, mask = pad_rows(sample(model, tokenizer, prompt, 7, 0, 9), 0, model.device)
    whole = score(model, prompt, ids, mask)
    monkeypatch.setattr(sampling, "MAX_LOGITS", 1)
    monkeypatch.setattr(sampling, "POSITIONS", 2)
    for left, right in zip(whole, score(model, prompt, ids, mask), strict=True):
        assert left.shape == right.shape and torch.allclose(left[mask], right[mask], atol=1e-5)


def test_padding():
    ids, mask = pad_rows([[5, 6, 7], [8]], 0, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]] and mask.tolist() == [[True] * 3, [True, False, False]]
