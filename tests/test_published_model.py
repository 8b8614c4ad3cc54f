"""What a run leaves loads in a process that knows nothing of this package, and computes what the trained model did."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engines import engine

from sage_trl import merge
from sage_trl.train import COMMAND, build_trainer, make_parser

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "examples" / "countdown" / "model")
ARGUMENTS = [
    *("--config", str(ROOT / "recipes" / "countdown" / "sage_branch.yaml"), "--model_name_or_path", MODEL),
    *("--per_device_train_batch_size", "8", "--num_generations", "4", "--max_steps", "2", "--use_cpu", "true"),
    *("--task_kwargs", '{"num_rows": 20}', "--learning_rate", "1e-2", "--report_to", "none"),
    *("--use_peft", "--lora_r", "4", "--lora_target_modules", "all-linear"),
]
IDS = list(range(3, 19))
WAYS = {
    "PeftModel": "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)",
    "AutoPeftModelForCausalLM": "AutoPeftModelForCausalLM.from_pretrained(folder)",
    "merged": "AutoModelForCausalLM.from_pretrained(merged)",
}
LOAD = """
import json, sys, torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
base, folder, merged, ids = *sys.argv[1:4], json.loads(sys.argv[4])
with torch.no_grad():
    scores = {WAY}.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)
assert "sage_trl" not in sys.modules
print(json.dumps([scores[i, token].item() for i, token in enumerate(ids[1:])]))
"""
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
base, folder, merged, ids = *sys.argv[1:4], json.loads(sys.argv[4])
limits = {"dtype": "float32", "max_model_len": 40, "enforce_eager": True, "max_num_seqs": 2}
sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
(answer,) = {WAY}
scores = [each[token].logprob for each, token in zip(answer.prompt_logprobs[1:], ids[1:], strict=True)]
print(json.dumps(scores))
"""
PROMPT = '{"prompt_token_ids": ids}, sampling'
SERVED = {
    "adapter": "LLM(base, enable_lora=True, max_lora_rank=8, **limits).generate("
    f'{PROMPT}, lora_request=LoRARequest("sage", 1, folder))',
    "merged": f"LLM(merged, **limits).generate({PROMPT})",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The adapter's folder, the merged model's, and log-probabilities of the model as it was when training ended."""
    folder = tmp_path_factory.mktemp("published")
    parsed = make_parser().parse_run([*ARGUMENTS, "--output_dir", str(folder / "run")])
    trainer = build_trainer(*parsed)
    COMMAND.fit(trainer, parsed[0])
    merge.run([str(folder / "run"), "--output", str(folder / "merged")])
    model = trainer.model.eval()
    with torch.no_grad():
        scores = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
        with model.disable_adapter():
            before = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    assert (scores - before).abs().max() > 0.1  # an adapter that is left out would be seen
    return folder / "run", folder / "merged", [scores[i, token].item() for i, token in enumerate(IDS[1:])]


def scores_of(code, way, trained):
    arguments = [MODEL, str(trained[0]), str(trained[1]), json.dumps(IDS)]
    command = [sys.executable, "-c", code.replace("{WAY}", way), *arguments]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert loaded.returncode == 0, loaded.stderr[-3000:]
    return json.loads(loaded.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_loads_in_a_clean_process(trained, way):
    assert scores_of(LOAD, way, trained) == pytest.approx(trained[2], abs=1e-4)


@engine
@pytest.mark.parametrize("way", SERVED.values(), ids=SERVED)
def test_vllm_serves_it(trained, way):
    assert scores_of(SERVE, way, trained) == pytest.approx(trained[2], abs=1e-2)
