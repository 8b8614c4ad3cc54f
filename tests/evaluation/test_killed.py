"""A base model and two trained adapters, each evaluated by a process that is killed ten times."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from peft import LoraConfig
from support import FAST

from sage_trl import SAGEGRPOConfig, SAGEGRPOTrainer
from sage_trl.data.countdown import make_countdown
from sage_trl.evaluation.records import read_records
from sage_trl.rewards.countdown import countdown_reward

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "countdown" / "model"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
KILLS = 10


@pytest.fixture(scope="module", params=["base", "grpo", "sage"])
def model(request, tmp_path_factory):
    if request.param == "base":
        return MODEL
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"guide": "branch"} if request.param == "sage" else {}
    length = {"max_completion_length": 12, "max_steps": 5, "per_device_train_batch_size": 16, "num_generations": 8}
    args = SAGEGRPOConfig(str(folder), **(FAST | length | settings))
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    dataset = make_countdown(128)
    trainer = SAGEGRPOTrainer(str(MODEL), countdown_reward, args, train_dataset=dataset, peft_config=lora)
    trainer.train()
    trainer.save_model()
    return folder


def rows_of(folder):
    return sorted(read_records(folder / "records" / "countdown"), key=lambda row: (row["problem"], row["sample"]))


def written(folder):
    return sum(path.stat().st_size for path in folder.glob("records/countdown/*.gz"))


def kill_at_random(command, folder, source) -> bool:
    """Whether the process was still at work when its moment came: while it loads, or after it has written more."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before, deadline = written(folder), time.monotonic() + 120
    if source.random() < 0.2:
        time.sleep(source.uniform(0, 6))
    else:
        while process.poll() is None and written(folder) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(source.uniform(0, 0.8))
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return running


@pytest.mark.slow
def test_ten_kills_change_nothing(model, tmp_path):
    command = [sys.executable, "-m", "sage_trl.eval", "--model", str(model), "--benchmarks", "countdown"]
    command += ["--num_problems", "200", "--n", "256", "--max_completion_length", "16", "--batch_size", "256"]
    command += ["--backend", "transformers", "--keep_text", "true", "--output_dir"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, str(whole)], env=ENVIRONMENT, check=True, capture_output=True, timeout=600)
    source, kills, places = random.Random(str(model)), 0, []
    while kills < KILLS:
        assert kill_at_random([*command, str(killed)], killed, source), "it came to its end before ten kills"
        kills += 1
        places.append(len(rows_of(killed)))
    assert places == sorted(places) and 0 < places[-1] < 200 * 256
    subprocess.run([*command, str(killed)], env=ENVIRONMENT, check=True, capture_output=True, timeout=600)
    assert rows_of(killed) == rows_of(whole)
    results = [json.loads((folder / "results.json").read_text()) for folder in (whole, killed)]
    assert results[0]["benchmarks"] == results[1]["benchmarks"] and results[0]["settings"] == results[1]["settings"]
    print(f"killed at {places} of {200 * 256} completions")
