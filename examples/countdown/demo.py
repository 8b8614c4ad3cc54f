"""GRPO and SAGE, trained from the same model and compared by pass@k, in a few minutes on two CPU cores.

    python examples/countdown/demo.py

Trains two recipes by the ordinary launch command, evaluates the model before and after on held-out problems, and
compares the three. It prints what comes out: the two recipes differ in the guide alone, and no setting was chosen to
make a line win.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "examples" / "countdown" / "model"
ACCELERATE_CONFIG = "recipes/accelerate_configs/cpu.yaml"
RECIPES = {"grpo": "recipes/countdown/grpo.yaml", "sage": "recipes/countdown/sage_branch.yaml"}
MAX_COMPLETION_TOKENS = 16  # the longest answer over five numbers, its end token included


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


def evaluate(label: str, model: Path, output_dir: Path, problems: int, samples: int) -> str:
    """Runs `sage-trl eval` in this process; returns what `sage-trl compare` takes."""
    from sage_trl.eval import run

    folder = output_dir / "eval" / label
    shutil.rmtree(folder, ignore_errors=True)  # of a model that was trained before
    arguments = [
        "--model",
        str(model),
        "--benchmarks",
        "countdown",
        "--num_problems",
        str(problems),
        "--n",
        str(samples),
    ]
    arguments += ["--max_completion_length", str(MAX_COMPLETION_TOKENS), "--batch_size", "1024"]
    print(f"\n$ sage-trl eval {shlex.join(arguments)} --output_dir {folder}", flush=True)
    run([*arguments, "--output_dir", str(folder)])
    return f"{label}={folder}"


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
    models = {"base": BASE}
    for label, recipe in RECIPES.items():
        models[label] = ROOT / shown / Path(recipe).stem
        train(recipe, shown / Path(recipe).stem, args.steps)

    from sage_trl.compare import run as compare

    os.chdir(ROOT)
    evaluations = [evaluate(label, path, shown, args.problems, args.samples) for label, path in models.items()]
    print(f"\n$ sage-trl compare {shlex.join(evaluations)} --output {shown / 'report'}\n", flush=True)
    compare([*evaluations, "--output", str(shown / "report")])
    print("The intervals cover the choice of problems; another training seed moves the figures on top of that.")
    print(f"\nPicture: {shown / 'report' / 'pass_at_k.png'}   Time: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
