"""Training with vLLM in the process that trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engines import engine
from ports import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train_watched.py")


def run(output_dir, kind):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "MASTER_PORT": free_port(),
    }
    command = [sys.executable, str(SCRIPT), str(output_dir), kind]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((output_dir / "rank0.json").read_text())


@engine
@pytest.mark.parametrize("kind", ["vllm", "vllm lora"])
def test_a_run_with_vllm_that_is_watched_ends_in_the_same_bits(kind, tmp_path):
    alone = run(tmp_path, kind)
    watched = run(tmp_path, f"{kind} watched")
    assert watched["checksum"] == alone["checksum"] and watched["drift"] == alone["drift"]
    assert max(alone["drift"]) < 2e-2  # the weights reach the engine
    measured = [entry["eval_pass@4"] for entry in watched["logs"]]
    assert len(measured) == 3 and 0 < measured[0] < 1
