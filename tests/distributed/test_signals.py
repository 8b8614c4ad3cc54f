"""A run of two processes that is told to stop, or loses one of them: what is saved, how it ends, how it goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from engines import ZERO_ENGINE
from safetensors.torch import load_file
from support import assert_same_bits

from sage_trl.checkpoints import newest_checkpoint, why_torn

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "model_name_or_path": str(ROOT / "examples/countdown/model"),
    "bf16": False,
    "use_cpu": True,
    "task": "countdown",
    "reward_funcs": ["countdown"],
    "guide": "token",
    "num_generations": 4,
    "max_completion_length": 12,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-4,
    "max_steps": 60,
    "save_steps": 10,
    "save_on_signal": True,
    "resume_from_checkpoint": "auto",
    "report_to": "none",
    "disable_tqdm": True,
}


def start(folder, config="ddp"):
    folder.mkdir(exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(SETTINGS | {"output_dir": str(folder / "run")}))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    settings = yaml.safe_load((ROOT / f"recipes/accelerate_configs/{config}.yaml").read_text()) | {"use_cpu": True}
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(settings))
    command += ["--config_file", str(folder / "accelerate.yaml")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    log = (folder / "log.txt").open("a")
    command += ["-m", "sage_trl.train", "--config", str(recipe)]
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def read_log(folder):
    return (folder / "log.txt").read_text()


def wait_for_checkpoint(process, folder):
    deadline = time.monotonic() + 240
    while not (folder / "run/checkpoint-10/trainer_state.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, read_log(folder)[-3000:]
        time.sleep(0.02)


def workers_of(process):
    """The training processes of a launcher, by their number among all."""
    found = {}
    for pid in map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()):
        pairs = (entry.partition("=") for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        rank = {name: value for name, _, value in pairs}.get("RANK")
        if rank is not None:
            found[int(rank)] = pid
    assert sorted(found) == [0, 1]
    return found


def finish(folder, config="ddp"):
    process = start(folder, config)
    assert process.wait(timeout=240) == 0, read_log(folder)[-3000:]
    return load_file(folder / "run/model.safetensors")


@pytest.fixture(scope="module", params=["ddp", pytest.param("zero3", marks=ZERO_ENGINE)])
def config(request):
    return request.param


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """Weights of a run that nothing happened to."""
    return finish(tmp_path_factory.mktemp("whole"), config)


def test_sigterm_to_one_process_saves_once_and_exits_0(config, whole, tmp_path):
    process = start(tmp_path, config)
    wait_for_checkpoint(process, tmp_path)
    os.kill(workers_of(process)[1], signal.SIGTERM)
    assert process.wait(timeout=60) == 0, read_log(tmp_path)[-3000:]
    saved = newest_checkpoint(tmp_path / "run")
    assert 10 < int(saved.name[11:]) < SETTINGS["max_steps"]
    assert f"SIGTERM: saved {saved} and stopped" in read_log(tmp_path)
    assert not (tmp_path / "run/model.safetensors").exists()  # no end of a run
    assert_same_bits(finish(tmp_path, config), whole)
    assert f"Resuming from {saved}" in read_log(tmp_path)


def test_sigterm_to_the_launcher_saves_before_it_ends(tmp_path):
    process = start(tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM  # the launcher's own way
    saved = newest_checkpoint(tmp_path / "run")
    assert int(saved.name[11:]) > 10 and f"SIGTERM: saved {saved} and stopped" in read_log(tmp_path)


def test_a_dead_process_ends_the_job_within_a_minute(config, whole, tmp_path):
    process = start(tmp_path, config)
    wait_for_checkpoint(process, tmp_path)
    killed = workers_of(process)[1]
    os.kill(killed, signal.SIGKILL)
    assert process.wait(timeout=60) == 1
    assert f"Signal 9 (SIGKILL) received by PID {killed}" in read_log(tmp_path)
    assert why_torn(tmp_path / "run/checkpoint-10") is None
    assert_same_bits(finish(tmp_path, config), whole)


def test_an_error_of_one_process_is_seen_and_ends_the_job(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(
        "import os\n\n\ndef failing(completions, **kwargs):\n"
        "    if os.environ['RANK'] == '1':\n        raise RuntimeError('the second process has no sandbox')\n"
        "    return [0.0] * len(completions)\n"
    )
    monkeypatch.setitem(SETTINGS, "reward_funcs", [f"{tmp_path / 'failing.py'}:failing"])
    process = start(tmp_path)
    assert process.wait(timeout=120) == 1
    assert "the second process has no sandbox" in read_log(tmp_path)


def test_what_could_not_be_gone_on_from_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, "save_only_model", True)
    process = start(tmp_path)
    assert process.wait(timeout=120) == 1
    assert "`save_on_signal` is true and `save_only_model` is true" in read_log(tmp_path)
