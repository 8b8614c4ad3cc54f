"""Whether a run is the same on every engine: each case trained on each for a few steps, and compared in numbers.

    python -m benchmarks.parity

Prints differences as tables. Everything runs on the CPU, and needs vLLM and DeepSpeed. The runs are those of
tests/distributed/train_parity.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "recipes" / "accelerate_configs"
SCRIPT = ROOT / "tests" / "distributed" / "train_parity.py"
# Name -> accelerate configuration, and what of DeepSpeed's settings differs from it
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "1 process": ("cpu", {}),
    "DDP": ("ddp", {}),
    "DDP again": ("ddp", {}),
    "ZeRO-2": ("zero2", {}),
    "ZeRO-3": ("zero3", {}),
    "ZeRO-3, no zero3_init": ("zero3", {"zero3_init_flag": False}),
}
BASELINE = "DDP"
# Completions and noise are drawn by each process; one process has other ones than two, unless a case draws none
LAYOUT_CASES = [
    *(f"{what} branch {anchor} scripted" for what in ("full", "lora") for anchor in ("k3", "sequence")),
    "full branch k3 scripted synced",
]
CASES = [*LAYOUT_CASES, *(f"{what} token {anchor}" for what in ("full", "lora") for anchor in ("k3", "sequence"))]
VLLM_CASES = [
    ("1 process", "full token k3 vllm"),
    ("1 process", "lora token k3 vllm"),
    ("ZeRO-3", "lora token sequence vllm"),
]
DRIFT = "sampling/sampling_logp_difference/mean"


@dataclass
class Outcome:
    """
    What one case left on one engine.

    Args:
        weights (`dict[str, torch.Tensor]`):
            Final weights, whole.
        logs (`list[dict[str, float]]`):
            Metrics of each step, without the clock's.
        seeds (`list[list[int]]`):
            Of each process, the seed of each micro-batch's noise.
    """

    weights: dict[str, Any] = field(repr=False)
    logs: list[dict[str, float]]
    seeds: list[list[int]]


def launch(engine: str, cases: list[str], folder: Path, timeout: int = 600) -> dict[str, Outcome]:
    """
    Trains cases on an engine, one after another in one launch.

    Args:
        engine (`str`):
            One of `ENGINES`.
        cases (`list[str]`):
            The cases, as tests/distributed/train_parity.py reads them.
        folder (`Path`):
            Where the runs are kept.
        timeout (`int`, *optional*, defaults to `600`):
            Seconds after which the launch is given up: a process that waits for another forever ends here.

    Returns:
        `dict[str, Outcome]`: by case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, changes = ENGINES[engine]
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    if "deepspeed_config" in config:  # the runs ask for the CPU themselves, and DeepSpeed has to be told
        config["use_cpu"] = True
        config["deepspeed_config"] |= changes
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(folder / "accelerate.yaml")]
    command += ["--main_process_port", "0", str(SCRIPT), str(folder), *cases]
    more = {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    more |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=timeout, env=os.environ | more)
    if done.returncode:
        raise RuntimeError(f"{engine} ended with {done.returncode}:\n{(folder / 'log.txt').read_text()[-3000:]}")
    return {case: _read(folder, case) for case in cases}


def _read(folder: Path, case: str) -> Outcome:
    name = case.replace(" ", "_")
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}.*.json"))]
    logs = [{key: value for key, value in entry.items() if key != "step_time"} for entry in reports[0]["logs"]]
    return Outcome(load_file(folder / f"{name}.safetensors"), logs, [report["seeds"] for report in reports])


def weight_difference(left: Outcome, right: Outcome) -> float:
    """The largest difference of any weight."""
    if left.weights.keys() != right.weights.keys():
        raise ValueError(f"other weights: {sorted(left.weights.keys() ^ right.weights.keys())[:3]}")
    return max((left.weights[name] - right.weights[name]).abs().max().item() for name in left.weights)


def metric_difference(left: Outcome, right: Outcome) -> float:
    """The largest difference of any metric of any step, relative to values above 1."""
    if [entry.keys() for entry in left.logs] != [entry.keys() for entry in right.logs]:
        raise ValueError("other metrics, or another number of steps")
    return max(
        abs(entry[name] - value) / max(1.0, abs(value))
        for entry, other in zip(left.logs, right.logs, strict=True)
        for name, value in other.items()
    )


def run_matrix(folder: Path) -> dict[str, dict[str, Outcome]]:
    """Every case on every engine that it can be compared on."""
    found = {}
    for engine in ENGINES:
        print(f"training on {engine}", file=sys.stderr)
        cases = LAYOUT_CASES if engine == "1 process" else CASES
        found[engine] = launch(engine, cases, folder / engine.replace(" ", "_"))
    return found


def matrix_table(found: dict[str, dict[str, Outcome]]) -> list[str]:
    """Differences from `BASELINE`, as a markdown table."""
    others = [engine for engine in ENGINES if engine != BASELINE]
    lines = [f"| case | {' | '.join(others)} |", "| --- " * (len(others) + 1) + "|"]
    for case in CASES:
        cells = []
        for engine in others:
            if case not in found[engine]:
                cells.append("")
                continue
            pair = found[engine][case], found[BASELINE][case]
            cells.append(f"{weight_difference(*pair):.0e}, {metric_difference(*pair):.0e}")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def vllm_table(folder: Path) -> list[str]:
    """Difference of vLLM's log-probabilities from the model's at each step, as a markdown table."""
    lines = ["| case | engine | difference at each step, nats |", "| --- | --- | --- |"]
    for engine, case in VLLM_CASES:  # a launch each: a process can hold one engine of vLLM
        print(f"training {case} on {engine}", file=sys.stderr)
        outcome = launch(engine, [case], folder / case.replace(" ", "_"))[case]
        lines.append(f"| {case} | {engine} | {', '.join(f'{entry[DRIFT]:.4f}' for entry in outcome.logs)} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.splitlines()[0])
    parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(matrix_table(run_matrix(Path(folder)))))
        print()
        print("\n".join(vllm_table(Path(folder))))


if __name__ == "__main__":
    main()
