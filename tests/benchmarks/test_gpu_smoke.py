"""The GPU check, small and on the CPU: everything of it but CUDA."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engines import HAS_VLLM, engine, keep_plain_weights

from benchmarks.gpu_smoke import BASELINE, GIB, VARIANTS, main, table, what_is_missing

ROOT = Path(__file__).parents[2]
SMALL = "--rounds 2 --steps 2 --completions 8 --tokens 8 --layers 2 --hidden 128 --vocabulary 256".split()


def test_ratios_are_taken_round_by_round():
    shared = {"held": 2 * GIB, "used": 3 * GIB, "first": 0.01, "last": 0.02, "active": 0.5}
    found = {name: [shared | {"seconds": 1.0}, shared | {"seconds": 2.0}] for name in VARIANTS}
    found["k3, token"] = [shared | {"seconds": 1.1}, shared | {"seconds": 2.6}]
    assert table(found)[2].startswith("| TRL | 1.500 | 1.00 (1.00 to 1.00) ")
    assert table(found)[4] == "| k3, token | 1.850 | 1.20 (1.10 to 1.30) | 2.0 | 3.0 | 0.0100, 0.0200 | 50% |"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_in_one_line_that_there_is_no_gpu(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    command, environment = [str(ROOT / "benchmarks/gpu_smoke.sh")], os.environ | {"VENV": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    said = f"gpu_smoke: torch {torch.__version__} finds no CUDA GPU here: run it on a machine that has one\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", said)


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_it_says_in_one_line_that_there_is_no_vllm():
    assert what_is_missing("cpu") == 'vLLM is not installed: pip install "sage-trl[vllm]"'


@engine
def test_it_trains_variants_with_vllm_while_there_is_time(capfd, monkeypatch):
    trained = [BASELINE, "k3, token"]
    monkeypatch.setattr("benchmarks.gpu_smoke.SECONDS", 20)
    monkeypatch.setattr("benchmarks.gpu_smoke.VARIANTS", trained)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    main(SMALL, device="cpu", initializer=keep_plain_weights)
    printed = capfd.readouterr()
    assert "no time for a round 2" in printed.err and ", 1 round of 2 steps." in printed.out
    rows = [line.strip("| ").split(" | ") for line in printed.out.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == trained
    for name, seconds, _, held, _, drift, touched in rows:
        assert float(seconds) > 0 and float(held) > 0.1
        assert all(0 < float(each) < 0.02 for each in drift.split(", "))
        assert (touched == "0%") == (name == "TRL")


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    result = subprocess.run(["shellcheck", str(ROOT / "benchmarks/gpu_smoke.sh")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
