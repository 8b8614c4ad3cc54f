"""One GPU, ten minutes: does SAGE train on CUDA with vLLM in the same process, and what does a step cost?

    benchmarks/gpu_smoke.sh

A Qwen3 of 185 M parameters with random weights is trained for a few steps by TRL's GRPO and by SAGE with two guides
in turns, each run in a process of its own, as vLLM wants it. The table says, of each:

- the time of a step, and as a ratio to TRL's in the same round;
- the most memory that torch held, with vLLM's part (30 %, TRL's default), and all that the GPU held at the end;
- how far vLLM's log-probabilities are from the model's, at the first step and the last: a difference that grows says
  that the new weights do not reach vLLM;
- the share of tokens that the guide touched.

A loss that is not a number ends it with an error. Nothing is downloaded.
"""

import argparse
import contextlib
import math
import multiprocessing
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

GIB = 2**30
SECONDS = 570  # of the ten minutes after which the script is ended
TOKENIZER = Path(__file__).parents[1] / "examples" / "countdown" / "model"
BASELINE = "TRL"
VARIANTS = [BASELINE, "k3, branch", "k3, token"]
DRIFT = "sampling/sampling_logp_difference/mean"


def odd_sum(completion_ids, **kwargs):
    """1.0 where the token ids add up to an odd number: varies within the groups of a model that knows nothing."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def make_model(folder: Path, options: argparse.Namespace, device: str) -> None:
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    config = Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 128,
        head_dim=64,
        max_position_embeddings=options.tokens + 64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).to(dtype_of(device)).save_pretrained(folder)  # vLLM takes the file's
    tokenizer.save_pretrained(folder)


def dtype_of(device: str):
    import torch

    return torch.bfloat16 if device == "cuda" else torch.float32


def measure(name: str, model: str, options: argparse.Namespace, device: str) -> dict[str, float]:
    """One run of one variant, and what it took."""
    from benchmarks.step_time import Stopwatch, build_trainer
    from sage_trl.data.countdown import make_countdown

    settings = {
        "output_dir": f"{model}-run",
        "beta": 0.05,
        "learning_rate": 1e-4,
        "num_generations": 8,
        "max_completion_length": options.tokens,
        "per_device_train_batch_size": options.completions,
        "max_steps": options.steps + 2,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": options.tokens + 64,
        "use_cpu": device == "cpu",
        "bf16": device == "cuda",
        "model_init_kwargs": {"dtype": dtype_of(device)},
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }
    watch = Stopwatch()
    given = {"reward_funcs": odd_sum, "train_dataset": make_countdown(2000), "callbacks": [watch]}
    trainer = build_trainer(name, model, settings, **given)
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    if not all(math.isfinite(entry["loss"]) for entry in logs):
        raise ValueError(f"{name}: a loss is not a number: {[entry['loss'] for entry in logs]}")
    held, used = memory(device)
    return {
        "seconds": statistics.median(watch.times[2:]),
        "held": held,
        "used": used,
        "first": logs[0][DRIFT],
        "last": logs[-1][DRIFT],
        "active": logs[-1].get("sage/active_frac", 0.0),
        "parameters": sum(p.numel() for p in trainer.accelerator.unwrap_model(trainer.model).parameters()),
    }


def memory(device: str) -> tuple[int, int]:
    """Bytes that torch held at most, and that the device holds now, other processes' too. On a CPU the process's."""
    import torch

    if device == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return peak, peak
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), total - free


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Markdown, of each variant its rounds."""
    lines = [
        "| variant | step, s | ratio to TRL | torch's peak, GiB | in use, GiB | vLLM differs, nats: first, last step "
        "| tokens touched |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, rounds in found.items():
        pairs = zip(rounds, found[BASELINE], strict=True)
        ratios = [one["seconds"] / other["seconds"] for one, other in pairs]
        most = {key: max(each[key] for each in rounds) for key in rounds[0]}
        lines.append(
            f"| {name} | {statistics.median(each['seconds'] for each in rounds):.3f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {most['held'] / GIB:.1f} | {most['used'] / GIB:.1f} "
            f"| {most['first']:.4f}, {most['last']:.4f} | {most['active']:.0%} |"
        )
    return lines


def what_is_missing(device: str) -> str | None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA GPU here: run it on a machine that has one"
    if find_spec("vllm") is None:
        return 'vLLM is not installed: pip install "sage-trl[vllm]"'
    return None


def main(argv: list[str] | None = None, device: str = "cuda", initializer: Callable | None = None) -> None:
    """`device="cpu"` is for tests: there `initializer` lets vLLM take weights, in each process."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_smoke.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="at most; fewer where ten minutes are not enough")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each run; two more come before them")
    parser.add_argument("--completions", type=int, default=32, help="of a step, in groups of 8")
    parser.add_argument("--tokens", type=int, default=512, help="of a completion")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--vocabulary", type=int, default=32768)
    options = parser.parse_args(argv)
    missing = what_is_missing(device)
    if missing is not None:
        raise SystemExit(f"gpu_smoke: {missing}")
    began, found = time.perf_counter(), {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", options, device)
        for number in range(options.rounds):
            spent = time.perf_counter() - began
            if number and spent * (number + 1) / number > SECONDS:
                print(f"no time for a round {number + 1}: {spent:.0f} s are spent", file=sys.stderr)
                break
            # Every other round backwards, so that a machine that slows down is no variant's loss
            for name in VARIANTS[:: -1 if number % 2 else 1]:
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                spawn = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(1, mp_context=spawn, initializer=initializer) as process:
                    task = process.submit(measure, name, str(Path(folder) / "model"), options, device)
                    found[name].append(task.result())
                print(f"{name}: {found[name][-1]}", file=sys.stderr)
    print(describe(device, found[BASELINE][0]["parameters"], len(found[BASELINE]), options))
    print(f"Took {time.perf_counter() - began:.0f} s.\n")
    print("\n".join(table(found)))


def describe(device: str, parameters: float, rounds: int, options: argparse.Namespace) -> str:
    import torch
    import vllm

    machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "trl", "transformers"))
    return (
        f"{machine}, CUDA {torch.version.cuda}, {versions}, vllm {vllm.__version__}. "
        f"Qwen3 of {parameters / 1e6:.0f} M parameters, steps of {options.completions} completions "
        f"of {options.tokens} tokens, {rounds} round{'s' if rounds > 1 else ''} of {options.steps} steps."
    )


if __name__ == "__main__":
    main()
