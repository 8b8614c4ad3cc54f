"""What an estimator of the anchor and a guide cost: time of a training step as a ratio.

    python -m benchmarks.step_time

All variants train the same model on the same problems, some steps in turn, again and again, so that what else the
machine does meets all of them alike. Each round's time is compared with that round's time of `anchor: k3` with the
branch guide; printed are the median ratio over rounds, the smallest and the largest. `TRL` is TRL's own trainer with
the same KL term and no guide. A step generates, scores and updates.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from typing import Any

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from sage_trl import BranchGuide, NoveltyGuide, SAGEGRPOConfig, SAGEGRPOTrainer, TokenGuide
from sage_trl.data.countdown import make_countdown
from sage_trl.rewards.countdown import countdown_reward

BASELINE = "k3, branch"
# Name -> estimator, guide
VARIANTS = {
    "k3, no guide": ("k3", None),
    BASELINE: ("k3", BranchGuide(threshold=1.3)),
    "k3, token": ("k3", TokenGuide()),
    "k3, novelty": ("k3", NoveltyGuide()),
    "token, token": ("token", TokenGuide()),
    "sequence, branch": ("sequence", BranchGuide(threshold=1.3)),
    "sequence, novelty": ("sequence", NoveltyGuide()),
}


class Stopwatch(TrainerCallback):
    def __init__(self):
        self.times: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter() - self.began)


def build_trainer(name: str, model: str, settings: dict[str, Any], **given: Any) -> GRPOTrainer:
    """The trainer of one of the variants, or TRL's own."""
    if name == "TRL":
        return GRPOTrainer(model, args=GRPOConfig(**settings, use_bias_correction_kl=False), **given)
    anchor, guide = VARIANTS[name]
    return SAGEGRPOTrainer(model, args=SAGEGRPOConfig(**settings, anchor=anchor), guide=guide, **given)


def step_time(name: str, options: argparse.Namespace, folder: str) -> float:
    """Median time of a step, without the first two."""
    settings = {
        "output_dir": folder,
        "beta": 0.05,
        "num_generations": 16,
        "max_completion_length": 16,
        "per_device_train_batch_size": 256,
        "max_steps": options.steps + 2,
        "use_cpu": options.cpu,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": options.steps + 2,
        "report_to": "none",
        "disable_tqdm": True,
    }
    watch = Stopwatch()
    given = {"reward_funcs": countdown_reward, "train_dataset": make_countdown(2000), "callbacks": [watch]}
    trainer = build_trainer(name, options.model, settings, **given)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    # A step begins before its first micro-batch is generated, so generation is in it
    return statistics.median(watch.times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="examples/countdown/model")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each variant in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    names, ratios, seconds = ["TRL", *VARIANTS], {}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            # Every other round backwards, so that a machine that slows down is no variant's loss
            times = {name: step_time(name, options, folder) for name in names[:: -1 if number % 2 else 1]}
            seconds.append(times[BASELINE])
            for name in names:
                ratios.setdefault(name, []).append(times[name] / times[BASELINE])
    print(f"A step of '{BASELINE}': {statistics.median(seconds):.3f} s\n")
    print("| anchor, guide | step time, ratio |\n| --- | --- |")
    for name in names:
        middle, low, high = statistics.median(ratios[name]), min(ratios[name]), max(ratios[name])
        print(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) |")


if __name__ == "__main__":
    main()
