"""The vLLM backend. Tests marked engine run the real one, on the CPU where there is no GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from engines import HAS_VLLM, engine
from peft import LoraConfig, PeftModel, get_peft_model
from support import assert_distribution
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.evaluation.backends import Request, Sampling
from sage_trl.evaluation.records import read_records
from sage_trl.evaluation.transformers_backend import TransformersBackend
from sage_trl.evaluation.vllm_backend import VLLMBackend, check_adapter, share_of

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "countdown" / "model"
PROBLEMS = ("Numbers: 5 47 12 6 Target: 70", "Numbers: 3 4 9 20 Target: 7", "Numbers: 8 9 2 1 Target: 34")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def environment():
    return os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def backend(tokenizer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        return VLLMBackend.load(str(MODEL), None, tokenizer, Sampling(max_tokens=12), 40)


def requests_of(tokenizer, count, problems=PROBLEMS):
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in problems]
    return [Request(tuple(ids[i % len(ids)]), (0, i)) for i in range(count)]


def make_adapter(folder, **settings):
    """A LoRA adapter that changes what the model says."""
    base = AutoModelForCausalLM.from_pretrained(MODEL)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], **settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(folder)
    return str(folder)


@engine
def test_samples_follow_the_model_s_distribution(backend, tokenizer, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    requests = requests_of(tokenizer, 3000, PROBLEMS[:1])
    for sampling in (Sampling(max_tokens=1, temperature=0.5), Sampling(max_tokens=1, top_k=2)):
        monkeypatch.setattr(backend, "sampling", sampling)
        first = [row[0] for row in backend.generate(requests)]
        assert_distribution(model, requests[0].prompt_ids, sampling, first)


@engine
def test_the_same_seeds_give_the_same_samples_whatever_was_sampled_before(backend, tokenizer):
    requests, told = requests_of(tokenizer, 60), []
    before = torch.get_rng_state()
    found = backend.generate(requests, told.append)
    assert torch.equal(before, torch.get_rng_state())
    assert sum(told) == 60
    assert len({tuple(row) for row in found[::3]}) > 10  # of one problem
    assert all(row[-1] == tokenizer.eos_token_id or len(row) == 12 for row in found)
    backend.generate(requests[7:30])
    assert backend.generate(requests) == found


@engine
def test_prompts_of_more_tokens_than_are_read_at_once(backend):
    # No two begin alike, so that nothing is shared
    source = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 20, (600, 27), generator=source).tolist()
    requests = [Request(tuple(ids), (0, number)) for number, ids in enumerate(prompts)]
    together = backend.generate(requests)
    assert len(together) == 600 and together == backend.generate(requests)


@engine
def test_an_adapter_is_put_on_the_model(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    adapter, sampling = make_adapter(tmp_path), Sampling(max_tokens=12, top_k=1)
    requests = requests_of(tokenizer, 3)
    base = AutoModelForCausalLM.from_pretrained(MODEL)
    plain = TransformersBackend(base, tokenizer, sampling).generate(requests)
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    expected = TransformersBackend(merged, tokenizer, sampling).generate(requests)
    assert expected != plain
    assert VLLMBackend.load(str(MODEL), adapter, tokenizer, sampling, 40).generate(requests) == expected


def rows_of(folder):
    return sorted(read_records(folder / "records" / "countdown"), key=lambda row: (int(row["problem"]), row["sample"]))


@engine
def test_killed_or_shared_out_it_ends_as_if_it_had_not_been(tmp_path, environment):
    small = ["--model", str(MODEL), "--benchmarks", "countdown", "--max_completion_length", "16"]
    small += ["--num_problems", "20", "--n", "16", "--batch_size", "40", "--keep_text", "true", "--backend", "vllm"]
    command = [sys.executable, "-m", "sage_trl.eval", *small, "--output_dir"]
    whole, killed, shared = (tmp_path / name for name in ("whole", "killed", "shared"))
    subprocess.run([*command, str(whole)], env=environment, check=True, capture_output=True, timeout=300)

    process = subprocess.Popen(
        [*command, str(killed)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if any(path.stat().st_size for path in killed.glob("records/countdown/*.gz")):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < len(rows_of(killed)) < 320
    subprocess.run([*command, str(killed)], env=environment, check=True, capture_output=True, timeout=300)

    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    launch += [str(ROOT / "recipes" / "accelerate_configs" / "ddp.yaml"), "-m", "sage_trl.eval", *small]
    result = subprocess.run(
        [*launch, "--output_dir", str(shared)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert len(list(shared.glob("records/countdown/*.gz"))) == 2

    assert rows_of(killed) == rows_of(shared) == rows_of(whole)
    figures = [json.loads((each / "results.json").read_text())["benchmarks"] for each in (whole, killed, shared)]
    assert figures[0] == figures[1] == figures[2]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_dora": True}, "use_dora True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save ['lm_head']"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern {'q_proj': 2}"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern {'q_proj': 2}"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
    ],
)
def test_an_adapter_that_vllm_would_load_wrongly_is_refused(tmp_path, settings, named):
    adapter = make_adapter(tmp_path, **settings)
    with pytest.raises(ValueError, match="Set `backend` to 'transformers'") as error:
        check_adapter(adapter)
    assert named in str(error.value)


def test_room_is_made_for_the_adapter_s_rank(tmp_path):
    assert check_adapter(make_adapter(tmp_path)) == 8


def test_each_process_has_devices_of_its_own():
    devices = ["4", "5", "6", "7"]
    assert [share_of(devices, process, 2) for process in range(2)] == ["4,5", "6,7"]
    assert [share_of(devices, process, 1) for process in range(4)] == devices
    with pytest.raises(ValueError, match="Launch at most 1 processes"):
        share_of(devices, 1, 3)


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_without_vllm_it_says_how_to_get_it(tokenizer):
    with pytest.raises(ImportError, match=r"pip install 'sage-trl\[vllm\]'"):
        VLLMBackend.load(str(MODEL), None, tokenizer, Sampling(), 40)
