"""A run killed by SIGKILL and resumed ends in the weights and metrics of one never killed, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from engines import ALL_ENGINES
from safetensors.torch import load_file
from support import assert_same_bits

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "recipes" / "accelerate_configs"
SCRIPT = Path(__file__).parent / "train_resumable.py"
ENGINES = {"DS_ACCELERATOR": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
CLOCK = ("step_time", "runtime", "per_second", "train_loss")


def start(output_dir, config, kind):
    output_dir.mkdir(exist_ok=True)
    settings = yaml.safe_load((CONFIG / f"{config}.yaml").read_text()) | {"use_cpu": True}
    (output_dir / "accelerate.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(output_dir / "accelerate.yaml")]
    command += ["--main_process_port", "0", str(SCRIPT), str(output_dir), kind]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | ENGINES
    log = (output_dir / "log.txt").open("a")
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def finish(output_dir, config, kind):
    process = start(output_dir, config, kind)
    assert process.wait(timeout=240) == 0, (output_dir / "log.txt").read_text()[-3000:]


def kill_in_mid_run(output_dir, config, kind):
    process = start(output_dir, config, kind)
    deadline = time.monotonic() + 240
    while not (output_dir / "run" / "checkpoint-9").exists():
        assert process.poll() is None and time.monotonic() < deadline, (output_dir / "log.txt").read_text()[-3000:]
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)  # the launcher and all its processes; checkpoint-9 is being written
    process.wait()
    assert not (output_dir / "final.safetensors").exists()


KINDS = [(config, kind) for config in ("cpu", "ddp") for kind in ("full", "lora")]


@pytest.mark.parametrize(("config", "kind"), [*KINDS, pytest.param("zero3", "lora vllm", marks=ALL_ENGINES)])
def test_killed_and_resumed_is_never_killed(config, kind, tmp_path):
    finish(tmp_path / "whole", config, kind)
    kill_in_mid_run(tmp_path / "killed", config, kind)
    finish(tmp_path / "killed", config, kind)
    assert_same_bits(*(load_file(tmp_path / name / "final.safetensors") for name in ("whole", "killed")))
    histories = [
        [
            {name: value for name, value in entry.items() if not any(clock in name for clock in CLOCK)}
            for entry in json.loads((tmp_path / name / "history.json").read_text())
        ]
        for name in ("whole", "killed")
    ]
    assert histories[0] == histories[1] and len(histories[0]) == 25
    assert "completions are generated anew" not in (tmp_path / "killed" / "log.txt").read_text()
