"""What each built-in guide costs on long completions: time and memory, on a CPU under Linux.

    python -m benchmarks.guides

From a generation batch to its anchor: `prepare` where the guide has one, its values, the clamp, and `ref + log q`.
All completions have full length and are correct, and their tokens are drawn from a large vocabulary, so that next to
no two n-grams are alike, which takes the novelty guide most memory. Time is the median over repetitions. Memory is how
far the process's resident memory rises at most, as the kernel counts it, with what operations take inside.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sage_trl.anchor import evaluate_guide, prepared_extras, shape_anchor
from sage_trl.guides import GUIDES, GuideFunction, GuideSignals, Rollout, TokenGuide

VOCABULARY = 150_000
MIB = 2**20


def built_in() -> dict[str, GuideFunction]:
    """Every built-in guide with its defaults, and the token guide with its other norms."""
    guides = {name: build() for name, build in GUIDES.items()}
    return guides | {f"token, norm {norm}": TokenGuide(norm=norm) for norm in ("rank", "zscore")}


def anchor_of(guide: GuideFunction, rollout: Rollout, surprisal: torch.Tensor) -> torch.Tensor:
    """The anchor's log-probabilities, shape `(B, T)`, as the trainer comes to them."""
    signals = GuideSignals(
        policy_logps=surprisal,
        ref_logps=surprisal,
        mask=rollout.mask,
        entropies=surprisal,
        generator=torch.Generator().manual_seed(0),
        extra=prepared_extras(guide, rollout),
    )
    return shape_anchor(surprisal, evaluate_guide(guide, signals, q_min=0.6, q_max=1.4))


def resident(field: str) -> int:
    """Bytes of a field of the process's status: `VmRSS` now, `VmHWM` at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes that resident memory rises by at most while `work` runs."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system, else it would be taken from there unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(guide: GuideFunction, rows: int, tokens: int, group_size: int, repeats: int) -> tuple[float, float]:
    """Median seconds and median peak of bytes."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (rows, tokens), generator=generator)
    correct = torch.ones(rows, dtype=torch.bool)
    rollout = Rollout(ids, torch.ones_like(ids, dtype=torch.bool), correct.float(), correct, group_size)
    surprisal = 3 * torch.rand(rows, tokens, generator=generator)

    def work():
        return anchor_of(guide, rollout, surprisal)

    work()  # what is loaded or set up once is no cost of the guide
    times = [seconds(work) for _ in range(repeats)]
    peaks = [peak_memory(work) for _ in range(repeats)]
    return statistics.median(times), statistics.median(peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32, help="completions")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of each")
    parser.add_argument("--group_size", type=int, default=16, help="completions of a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    shape = (options.rows, options.tokens)
    print(f"A tensor of shape {shape} in float32: {options.rows * options.tokens * 4 / MIB:.1f} MiB\n")
    print("| guide | time, ms | peak extra memory, MiB |\n| --- | --- | --- |")
    for name, guide in built_in().items():
        took, peak = measure(guide, *shape, options.group_size, options.repeats)
        print(f"| {name} | {1000 * took:.1f} | {peak / MIB:.1f} |")


if __name__ == "__main__":
    main()
