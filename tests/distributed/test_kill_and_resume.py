"""A run killed by SIGKILL and resumed ends in the weights and metrics of one never killed, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support import assert_same_bits

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "recipes" / "accelerate_configs"
SCRIPT = Path(__file__).parent / "train_resumable.py"
CLOCK = ("step_time", "runtime", "per_second", "train_loss")


def start(output_dir, processes, kind):
    output_dir.mkdir(exist_ok=True)
    config = CONFIG / ("cpu.yaml" if processes == 1 else "ddp.yaml")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["--main_process_port", "0", str(SCRIPT), str(output_dir), kind]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = (output_dir / "log.txt").open("a")
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def finish(output_dir, processes, kind):
    process = start(output_dir, processes, kind)
    assert process.wait(timeout=240) == 0, (output_dir / "log.txt").read_text()[-3000:]


def kill_in_mid_run(output_dir, processes, kind):
    process = start(output_dir, processes, kind)
    deadline = time.monotonic() + 240
    while not (output_dir / "run" / "checkpoint-9").exists():
        assert process.poll() is None and time.monotonic() < deadline, (output_dir / "log.txt").read_text()[-3000:]
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)  # the launcher and all its processes; checkpoint-9 is being written
    process.wait()
    assert not (output_dir / "final.safetensors").exists()


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_and_resumed_is_never_killed(processes, kind, tmp_path):
    finish(tmp_path / "whole", processes, kind)
    kill_in_mid_run(tmp_path / "killed", processes, kind)
    finish(tmp_path / "killed", processes, kind)
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
