"""The Kubernetes job: its form, and its command, run by two processes that stand for two pods. No cluster is here."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from ports import free_port

from sage_trl.checkpoints import newest_checkpoint

ROOT = Path(__file__).parents[2]
SERVICE, JOB = yaml.safe_load_all((ROOT / "examples/kubernetes/train.yaml").read_text())
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VARIABLES = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}


def test_pods_find_the_first_and_are_as_many_as_the_launcher_waits_for():
    job, service = JOB["metadata"]["name"], SERVICE["metadata"]["name"]
    assert (JOB["kind"], JOB["spec"]["completionMode"], SERVICE["spec"]["clusterIP"]) == ("Job", "Indexed", "None")
    assert SERVICE["spec"]["selector"] == {"job-name": job} and POD["subdomain"] == service
    assert VARIABLES["FIRST"] == f"{job}-0.{service}"  # an indexed job's pod 0 has this host name
    assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"] == int(VARIABLES["PODS"])
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == int(VARIABLES["GPUS"])


def test_the_files_that_it_names_are_here_and_its_volumes_are_mounted():
    for name in ("RECIPE", "CONFIG", "STOPPABLE"):
        assert (ROOT / VARIABLES[name]).is_file()
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}
    assert POD["restartPolicy"] == "Never" and POD["terminationGracePeriodSeconds"] >= 300


def test_shellcheck_finds_nothing(tmp_path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    script = tmp_path / "command.sh"
    assert CONTAINER["command"][:2] == ["bash", "-c"]
    script.write_text("#!/bin/bash\n" + CONTAINER["command"][2])
    result = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_two_pods_train_one_model_and_save_when_one_is_to_go(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    settings = yaml.safe_load((ROOT / "recipes/countdown/sage_branch.yaml").read_text())
    settings |= {"model_name_or_path": str(ROOT / "examples/countdown/model"), "use_cpu": True, "bf16": False}
    settings |= {"max_steps": 60, "save_steps": 10, "save_strategy": "steps", "num_generations": 2}
    settings |= {"per_device_train_batch_size": 4, "output_dir": str(tmp_path / "run"), "report_to": "none"}
    recipe.write_text(yaml.safe_dump(settings))
    environment = os.environ | {name: value for name, value in VARIABLES.items() if value is not None}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"FIRST": "127.0.0.1", "PORT": free_port(), "GPUS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"RECIPE": str(recipe), "CONFIG": str(ROOT / "recipes/accelerate_configs/ddp.yaml")}
    environment["HF_HOME"] = str(tmp_path / "huggingface")
    with (tmp_path / "log.txt").open("w") as log:
        pods = [
            subprocess.Popen(
                CONTAINER["command"],
                env=environment | {"JOB_COMPLETION_INDEX": number},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
            for number in "01"
        ]
    deadline = time.monotonic() + 240
    while not (tmp_path / "run/checkpoint-10/trainer_state.json").exists():
        codes = [pod.poll() for pod in pods]
        assert codes == [None, None] and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()[-3000:]
        time.sleep(0.02)
    pods[1].send_signal(signal.SIGTERM)  # what Kubernetes sends to a pod's first process
    assert [pod.wait(timeout=100) for pod in pods] == [0, 0], (tmp_path / "log.txt").read_text()[-3000:]
    saved = newest_checkpoint(tmp_path / "run")
    assert 10 < int(saved.name[11:]) < 60 and len(list(saved.glob("sage_state_*"))) == 2
