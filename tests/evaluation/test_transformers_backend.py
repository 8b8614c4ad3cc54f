"""The transformers backend, against plain forward passes."""

from pathlib import Path

import pytest
import torch
from support import assert_distribution
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.evaluation.backends import Request, Sampling
from sage_trl.evaluation.transformers_backend import TransformersBackend
from sage_trl.seeds import derive_generator

MODEL = Path(__file__).parents[2] / "examples" / "countdown" / "model"


@pytest.fixture(scope="module")
def engine():
    model = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    return model, AutoTokenizer.from_pretrained(MODEL)


def requests_of(tokenizer, count):
    ids = tokenizer("Numbers: 5 47 12 6 Target: 70", add_special_tokens=False)["input_ids"]
    return [Request(tuple(ids), (0, 1, sample)) for sample in range(count)]


def test_a_sample_does_not_depend_on_its_neighbours(engine):
    backend = TransformersBackend(*engine, Sampling(max_tokens=12))
    before = torch.get_rng_state()
    together = backend.generate(requests_of(engine[1], 8))
    assert torch.equal(before, torch.get_rng_state())
    assert len(set(map(tuple, together))) > 1
    assert [backend.generate([request])[0] for request in requests_of(engine[1], 8)] == together


def test_samples_follow_the_model_s_distribution(engine):
    model, tokenizer = engine
    requests = requests_of(tokenizer, 4000)
    for sampling in (Sampling(max_tokens=1), Sampling(max_tokens=1, temperature=0.5), Sampling(max_tokens=1, top_k=2)):
        first = [row[0] for row in TransformersBackend(model, tokenizer, sampling).generate(requests)]
        assert_distribution(model, requests[0].prompt_ids, sampling, first)


def test_a_batch_too_large_for_memory_is_halved(engine, monkeypatch):
    backend = TransformersBackend(*engine, Sampling(max_tokens=4))
    expected, original, sizes = backend.generate(requests_of(engine[1], 9)), TransformersBackend._generate, []

    def small(self, requests, ended):
        sizes.append(len(requests))
        if len(requests) > 3:
            raise torch.OutOfMemoryError
        return original(self, requests, ended)

    monkeypatch.setattr(TransformersBackend, "_generate", small)
    assert backend.generate(requests_of(engine[1], 9)) == expected
    assert sizes == [9, 5, 3, 3, 3]
    sizes.clear()
    backend.generate(requests_of(engine[1], 9))
    assert sizes == [3, 3, 3]


def test_a_sample_is_what_reading_it_alone_gives(engine):
    """Prompts of different lengths in one batch, each read once, against the plain forward pass of each text."""
    model, tokenizer = engine
    texts = ("Numbers: 5 47 12 6 Target: 70", "Numbers: 3 4 Target: 7")
    prompts = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert len(prompts[0]) != len(prompts[1])
    requests = [Request(prompts[i % 2], (7, i)) for i in range(30)]
    sampling = Sampling(max_tokens=14, temperature=1.5)
    found = TransformersBackend(model, tokenizer, sampling).generate(requests)
    assert len({len(row) for row in found}) > 2  # some left early
    for request, row in zip(requests, found, strict=True):
        uniforms = torch.rand(14, generator=derive_generator(torch.device("cpu"), *request.place), dtype=torch.float64)
        with torch.no_grad():
            logits = model(torch.tensor([[*request.prompt_ids, *row]])).logits[0, len(request.prompt_ids) - 1 : -1]
        summed = (logits / 1.5).double().softmax(-1).cumsum(-1)
        expected = torch.searchsorted(summed, uniforms[: len(row), None], right=True).squeeze(1)
        assert expected.tolist() == row
        assert tokenizer.eos_token_id not in row[:-1]
        assert row[-1] == tokenizer.eos_token_id or len(row) == 14
