"""Two processes through accelerate: groups span both, noise differs between them, and no data can hang one."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from enumeration import save_model
from ports import free_port

ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).parent / "train_two.py"
WATCHED = SCRIPT.with_name("train_watched.py")

CONFIG = ROOT / "recipes" / "accelerate_configs" / "ddp.yaml"  # the run itself asks for the CPU
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launch(output_dir, *arguments, script=SCRIPT):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIG)]
    run([*command, "--main_process_port", "0", str(script), str(output_dir), *arguments])
    return [json.loads((output_dir / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def run_alone(script, output_dir, *arguments):
    run([sys.executable, str(script), str(output_dir), *arguments])
    return json.loads((output_dir / "rank0.json").read_text())


def run(command):
    # A rank that waits for another forever is what this would show: hence the limit
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT)
    assert result.returncode == 0, result.stderr[-3000:]


def test_two_steps_with_groups_that_span_both(tmp_path):
    first, second = launch(tmp_path, "ordinary")
    assert first["checksum"] == second["checksum"]  # the ranks hold one model
    assert len(first["seeds"]) == 4 and not set(first["seeds"]) & set(second["seeds"])
    assert len(first["logs"]) == 2
    for entry in first["logs"]:
        assert (
            0 < entry["sage/active_frac"] <= 1 and entry["sage/q_min"] <= entry["sage/q_mean"] <= entry["sage/q_max"]
        )
        assert entry["sage/group_pass"] in (0.0, 0.5, 1.0)  # two prompts a step


@pytest.mark.parametrize(
    "anchor, kind",
    [("sequence", "both"), ("sequence", "state"), ("sequence", "ahead"), ("k3", "both"), ("token", "both")],
)
def test_a_group_that_spans_both_gives_the_exact_gradient(tmp_path, anchor, kind):
    save_model(tmp_path / "model")
    for report in launch(tmp_path, anchor, kind, script=SCRIPT.with_name("enumerate_two.py")):
        assert report["error"] < 1e-5
        assert 0.05 < report["share"]


def test_a_sequence_s_credit_is_the_same_model_on_both(tmp_path):
    first, second = launch(tmp_path, "sequence novelty")
    assert first["checksum"] == second["checksum"]
    assert all("sage/kl_sequence" in entry and "kl" not in entry for entry in first["logs"])


@pytest.mark.parametrize("kind", ["empty", "empty sequence novelty"])
def test_a_rank_with_nothing_valid_hangs_nobody(tmp_path, kind):
    first, second = launch(tmp_path, kind)
    assert first["checksum"] == second["checksum"]
    assert all(math.isfinite(entry["sage/q_mean"]) for entry in first["logs"])


def test_pass_at_k_is_measured_by_both_as_by_one(tmp_path):
    kinds = {"alone": None, "watched": None}
    for kind in kinds:
        (tmp_path / kind).mkdir()
        first, second = launch(tmp_path / kind, kind, script=WATCHED)
        assert first["checksum"] == second["checksum"]
        kinds[kind] = first
    assert kinds["alone"]["checksum"] == kinds["watched"]["checksum"]
    alone = run_alone(WATCHED, tmp_path, "watched")
    # Before training it is one model, and the same samples of it
    shared, own = kinds["watched"]["logs"][0], alone["logs"][0]
    assert 0 < own["eval_pass@1"] < own["eval_pass@4"] < 1
    assert {key: shared[key] for key in own} == own


def test_two_machines_train_one_model(tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIG), "--num_machines", "2"]
    command += ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", free_port()]
    machines = [
        subprocess.Popen(
            [*command, "--machine_rank", str(rank), str(WATCHED), str(tmp_path), "watched"], env=ENVIRONMENT
        )
        for rank in (0, 1)
    ]
    assert [machine.wait(timeout=240) for machine in machines] == [0, 0]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["checksum"] == second["checksum"] and len(first["logs"]) == 3
