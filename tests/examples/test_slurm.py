"""The job scripts, run by bash on this machine. Of SLURM itself there are only stand-ins for its two commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from ports import free_port

from sage_trl.checkpoints import newest_checkpoint

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "slurm").glob("*.sh"))
SRUN = """#!/bin/bash
# One process on each of two machines; the job fails with the first of them
shift
for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" & pids="$pids $!"; done
for pid in $pids; do wait "$pid" || exit 1; done
"""


@pytest.fixture
def cluster(tmp_path):
    """A folder as a user has it, and the environment of a job in it."""
    commands, recipe = tmp_path / "bin", tmp_path / "recipe.yaml"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\nsleep 0.2\necho elsewhere\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    settings = yaml.safe_load((ROOT / "recipes/countdown/sage_branch.yaml").read_text())
    settings |= {"model_name_or_path": str(ROOT / "examples/countdown/model"), "use_cpu": True, "bf16": False}
    settings |= {"max_steps": 2, "save_steps": 1, "save_strategy": "steps", "num_generations": 2, "report_to": "none"}
    settings |= {"per_device_train_batch_size": 4, "output_dir": str(tmp_path / "run")}
    recipe.write_text(yaml.safe_dump(settings))
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PORT": free_port(),
    }
    environment["STOPPABLE"] = str(ROOT / "examples/slurm/stoppable.sh")
    environment |= {"RECIPE": str(recipe), "CONFIG": str(ROOT / "recipes/accelerate_configs/ddp.yaml")}
    environment |= {"SLURM_GPUS_ON_NODE": "1", "SLURM_SUBMIT_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    return tmp_path, environment


def descendants(pid):
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        found += [child, *descendants(child)]
    return found


def stop(name, folder, environment, number, whom):
    """Starts a job that is told to stop while it trains; returns the checkpoint that it left."""
    recipe = folder / "recipe.yaml"
    settings = yaml.safe_load(recipe.read_text()) | {"max_steps": 60, "save_steps": 10}
    recipe.write_text(yaml.safe_dump(settings))
    with (folder / "log.txt").open("w") as log:
        command = ["bash", str(ROOT / "examples/slurm" / name)]
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    deadline = time.monotonic() + 240
    while not (folder / "run/checkpoint-10/trainer_state.json").exists():
        assert job.poll() is None and time.monotonic() < deadline, (folder / "log.txt").read_text()[-3000:]
        time.sleep(0.02)
    for pid in whom(job.pid):
        os.kill(pid, number)
    assert job.wait(timeout=100) == 0, (folder / "log.txt").read_text()[-3000:]
    saved = newest_checkpoint(folder / "run")
    assert 10 < int(saved.name[11:]) < 60
    assert f"SIGTERM: saved {saved} and stopped" in (folder / "log.txt").read_text()
    return saved


def submit(name, environment):
    command = ["bash", str(ROOT / "examples/slurm" / name)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-6000:]
    return result.stdout


def test_one_node_trains_and_a_requeued_job_goes_on(cluster):
    folder, environment = cluster
    submit("one_node.sh", environment)
    assert json.loads((folder / "run/trainer_state.json").read_text())["global_step"] == 2
    shutil.rmtree(folder / "run/checkpoint-2")
    assert f"Resuming from {folder}/run/checkpoint-1" in submit("one_node.sh", environment)


def test_one_node_saves_when_its_shell_is_told_to_stop(cluster):
    folder, environment = cluster
    environment["SLURM_GPUS_ON_NODE"] = "2"
    saved = stop("one_node.sh", folder, environment, signal.SIGUSR1, lambda job: [job])
    assert f"Resuming from {saved}" in submit("one_node.sh", environment)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda number: number.name)
def test_several_nodes_save_when_every_process_is_told_to_stop(number, cluster):
    folder, environment = cluster
    environment |= {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    # Whatever SLURM's step has in it, the launchers and what trains; `srun` itself is outside
    saved = stop("several_nodes.sh", folder, environment, number, lambda job: descendants(descendants(job)[0]))
    assert len(list(saved.glob("sage_state_*"))) == 2


def test_several_nodes_train_one_model(cluster):
    folder, environment = cluster
    environment |= {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    submit("several_nodes.sh", environment)
    assert json.loads((folder / "run/trainer_state.json").read_text())["global_step"] == 2
    assert {path.name for path in (folder / "run/checkpoint-2").glob("sage_state_*")} == {
        "sage_state_0.pt",
        "sage_state_1.pt",
    }


@pytest.mark.slow  # DeepSpeed compiles when its launcher is used for the first time
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_several_nodes_train_by_deepspeed_s_own_launcher(cluster):
    folder, environment = cluster
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "DS_ACCELERATOR": "cpu"}
    environment["DEEPSPEED"] = str(ROOT / "recipes/deepspeed_configs/zero2.json")
    said = submit("several_nodes_deepspeed.sh", environment)
    assert "dist_world_size=2" in said and not list(folder.glob("hosts-*"))
    assert json.loads((folder / "run/trainer_state.json").read_text())["global_step"] == 2
    assert len(list((folder / "run/checkpoint-2").rglob("*_optim_states.pt"))) == 2  # ZeRO's, a part on each


def test_an_array_of_jobs_evaluates_one_model(cluster):
    folder, environment = cluster
    environment |= {"MODEL": str(ROOT / "examples/countdown/model"), "OUTPUT": str(folder / "eval"), "SAMPLES": "2"}
    # The last job is submitted again on its own: the array has one job then, and there are still two shards
    environment |= {"BENCHMARKS": "countdown", "SHARDS": "2", "SLURM_ARRAY_TASK_COUNT": "1"}
    recipe = folder / "eval.yaml"
    recipe.write_text("max_completion_length: 12\n")
    for number in ("0", "1"):
        said = submit("evaluate.sh", environment | {"SLURM_ARRAY_TASK_ID": number, "RECIPE": str(recipe)})
    assert "200 problems x 2" in said and len(list(folder.glob("eval/records/countdown/*.gz"))) == 2


@pytest.mark.parametrize("code", [0, 5])
def test_what_can_be_stopped_ends_as_its_launcher(code):
    command = [str(ROOT / "examples/slurm/stoppable.sh"), "bash", "-c", f"exit {code}"]
    assert subprocess.run(command, timeout=20).returncode == code


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    result = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
