"""GRPO and SAGE, trained from the same model and compared by pass@k, in a few minutes on two CPU cores.

    python examples/countdown/demo.py

Trains two recipes by the ordinary launch command, samples the model before and after on held-out problems, prints one
table and draws one picture. It prints what comes out: the two recipes differ in the guide alone, and no setting was
chosen to make a line win.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "examples" / "countdown" / "model"
ACCELERATE_CONFIG = "recipes/accelerate_configs/cpu.yaml"
RECIPES = {"GRPO": "recipes/countdown/grpo.yaml", "SAGE (branch)": "recipes/countdown/sage_branch.yaml"}
# Colour-blind safe (Okabe and Ito); marker and dash tell the lines apart in grey too
LOOKS = {
    "base model": {"color": "#555555", "marker": "s", "linestyle": ":"},
    "GRPO": {"color": "#0072B2", "marker": "o", "linestyle": "--"},
    "SAGE (branch)": {"color": "#D55E00", "marker": "^", "linestyle": "-"},
}


def train(recipe: str, output_dir: Path, steps: int | None) -> None:
    """Runs `accelerate launch` on one recipe, in the root of the repository."""
    arguments = ["--config_file", ACCELERATE_CONFIG, "-m", "sage_trl.train", "--config", recipe]
    arguments += ["--output_dir", str(output_dir)]
    if steps is not None:
        arguments += ["--max_steps", str(steps)]
    print(f"\n$ accelerate launch {shlex.join(arguments)}", flush=True)
    # The launcher of this very Python, wherever the shell's `accelerate` may lead. `PYTHONPATH` makes the demo work
    # in a clone that is not installed.
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": search_path}, check=True)


def table(curves: dict, ks: list[int]) -> str:
    """Pass@k in percent, each with its 95 % interval over problems on the line below."""
    from sage_trl.evaluation.pass_at_k import bootstrap_interval

    lines = ["".join([f"{'':<16}", *(f"{f'pass@{k}':>14}" for k in ks)])]
    for label, curve in curves.items():
        intervals = [bootstrap_interval(curve[k]) for k in ks]
        lines.append("".join([f"{label:<16}", *(f"{100 * curve[k].mean():>12.1f} %" for k in ks)]))
        ranges = (f"{100 * low:.1f} to {100 * high:.1f}" for low, high in intervals)
        lines.append("".join([f"{'':<16}", *(f"{text:>14}" for text in ranges)]))
    return "\n".join(lines)


def noise(curves: dict, ks: list[int]) -> str:
    """How far SAGE is from GRPO at the smallest and the largest k, and how large the noise of that is."""
    from sage_trl.evaluation.pass_at_k import bootstrap_interval

    parts = []
    for k in sorted({ks[0], ks[-1]}):
        difference = curves["SAGE (branch)"][k] - curves["GRPO"][k]
        low, high = bootstrap_interval(difference)
        inside = "within the noise" if low <= 0 <= high else "outside this noise"
        parts.append(
            f"{100 * difference.mean():+.1f} points at pass@{k} (95 % interval {100 * low:+.1f} to {100 * high:+.1f}, "
            f"{inside})"
        )
    return (
        f"SAGE minus GRPO on the same {len(difference)} problems: {' and '.join(parts)}. The intervals cover the "
        "choice of problems; another training seed moves the figures on top of that."
    )


def draw(curves: dict, marked: list[int], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sage_trl.evaluation.pass_at_k import bootstrap_interval

    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for label, curve in curves.items():
        ks, look = list(curve), LOOKS[label]
        low, high = zip(*(bootstrap_interval(curve[k]) for k in ks), strict=True)
        axes.fill_between(ks, low, high, color=look["color"], alpha=0.13, linewidth=0)
        axes.plot(ks, [curve[k].mean() for k in ks], label=label, markevery=[ks.index(k) for k in marked], **look)
    axes.set_xscale("log", base=2)
    axes.set_xticks(marked, [str(k) for k in marked])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("k, samples per problem")
    axes.set_ylabel("pass@k")
    num_problems = len(next(iter(curves["GRPO"].values())))
    axes.set_title(f"Countdown, {num_problems} held-out problems; bands: 95 % interval over problems", fontsize=10.5)
    axes.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train GRPO and SAGE on countdown and compare them by pass@k.")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/demo"), help="for the models and the picture")
    parser.add_argument("--steps", type=int, help="training steps of each recipe, if not the recipe's own")
    parser.add_argument("--problems", type=int, default=150, help="held-out problems")
    parser.add_argument("--samples", type=int, default=256, help="samples per problem, the largest k of pass@k")
    args = parser.parse_args()
    started = time.monotonic()

    # Before torch loads, here and in the launched runs. Accelerate counts physical cores, and a small cloud machine
    # often has one for two CPUs; beyond four threads a model this small gains nothing.
    os.environ.setdefault("OMP_NUM_THREADS", str(min(4, len(os.sched_getaffinity(0)))))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the repository
    os.environ.setdefault(
        "PYTHONWARNINGS", "ignore"
    )  # of libraries to each other; the bars and the table are the news
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.path.insert(0, str(ROOT))

    output_dir = args.output_dir.resolve()
    shown = output_dir.relative_to(ROOT) if output_dir.is_relative_to(ROOT) else output_dir
    models = {"base model": BASE}
    for label, recipe in RECIPES.items():
        models[label] = ROOT / shown / Path(recipe).stem
        train(recipe, shown / Path(recipe).stem, args.steps)

    from sample import count_correct

    from sage_trl.evaluation.pass_at_k import pass_at_k

    print(flush=True)
    marked = [k for k in (1, 4, 16, 64, 256) if k <= args.samples]
    ks = [k for k in range(1, args.samples + 1) if k <= 16 or k in marked or k % 8 == 0]
    curves = {}
    for label, path in models.items():
        correct = count_correct(path, args.problems, args.samples, label)
        curves[label] = {k: pass_at_k(args.samples, correct, k) for k in ks}

    picture = output_dir / "pass_at_k.png"
    draw(curves, marked, picture)
    print(f"\n{args.problems} held-out problems, {args.samples} samples each; 95 % intervals over problems\n")
    print(table(curves, marked))
    print(f"\n{noise(curves, marked)}")
    print(f"\nPicture: {shown / picture.name}   Time: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
