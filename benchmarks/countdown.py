"""How much of a guide's log q each estimator of the anchor puts into a trained model, measured by sampling.

    python -m benchmarks.countdown

Trains the countdown model with each estimator, without a guide and with each of two guides that look at the reference
alone, so that q is a fixed function of prompt and completion. The slope is that of log(pi with guide / pi without) on
log q of whole completions, within problems, over completions that the model without a guide gives to held-out
problems: 1 is what the objective says, 0 is nothing. Intervals are bootstrapped over problems (95 %); they do not
cover another training seed. Trained models are kept in `--output_dir`; a second run measures those it finds there.
"""

import argparse
import contextlib
import io
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from sage_trl import BranchGuide, GuideFunction, GuideSignals, SAGEGRPOConfig, SAGEGRPOTrainer, TokenGuide
from sage_trl.anchor import evaluate_guide
from sage_trl.data.countdown import make_countdown
from sage_trl.rewards.countdown import countdown_reward
from sage_trl.sampling import pad_rows, sample, score

MODEL = "examples/countdown/model"
LENGTH, Q_MIN, Q_MAX = 16, 0.5, 2.0
GUIDES: dict[str, GuideFunction] = {
    "token": TokenGuide(alpha=0.5, sigma=0.0, source="ref"),
    "state": BranchGuide(ratio=0.3, threshold=0.5, source="ref"),
}


def train(anchor: str, guide: GuideFunction | None, output_dir: Path, options: argparse.Namespace) -> None:
    args = SAGEGRPOConfig(
        str(output_dir),
        anchor=anchor,
        beta=options.beta,
        q_min=Q_MIN,
        q_max=Q_MAX,
        loss_type="dr_grpo",  # a constant normaliser: the objective as it is stated
        scale_rewards="none",
        num_generations=16,
        max_completion_length=LENGTH,
        per_device_train_batch_size=256,
        learning_rate=3e-4,
        lr_scheduler_type="linear",
        max_steps=options.steps,
        seed=options.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=options.steps,
        report_to="none",
    )
    trainer = SAGEGRPOTrainer(MODEL, countdown_reward, args, train_dataset=make_countdown(5000), guide=guide)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    trainer.save_model(output_dir)


def log_ratios(
    with_guide: Path, without: Path, guide: GuideFunction, problems: int, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log q and log(pi with guide / pi without) of completions, shapes `(problems, samples)`."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    guided, plain, ref = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (with_guide, without, MODEL))
    prompts = make_countdown(problems, seed=1, split="test")["prompt"]
    log_q, ratio = [], []
    for index, prompt in enumerate(prompts):
        prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        rows = sample(plain, tokenizer, prompt_ids, samples, seed=index, max_completion_length=LENGTH)
        ids, mask = pad_rows(rows, tokenizer.pad_token_id, plain.device)
        (policy, _), (other, _), (ref_logps, ref_entropies) = (
            score(model, prompt_ids, ids, mask) for model in (guided, plain, ref)
        )
        signals = GuideSignals(policy_logps=other, ref_logps=ref_logps, ref_entropies=ref_entropies, mask=mask)
        log_q.append(evaluate_guide(guide, signals, Q_MIN, Q_MAX).log().sum(-1).numpy())
        ratio.append(torch.where(mask, policy - other, 0.0).sum(-1).numpy())
    return np.stack(log_q), np.stack(ratio)


def slope(log_q: np.ndarray, ratio: np.ndarray, resamples: int = 2000) -> tuple[float, float, float]:
    """Slope within problems, and its 95 % interval over problems."""
    x, y = (values - values.mean(1, keepdims=True) for values in (log_q, ratio))
    products, squares = (x * y).sum(1), (x * x).sum(1)
    picks = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
    low, high = np.quantile(products[picks].sum(1) / squares[picks].sum(1), [0.025, 0.975])
    return products.sum() / squares.sum(), low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/benchmarks/countdown"), help="for the models")
    parser.add_argument(
        "--beta", type=float, default=0.5, help="KL coefficient, large enough for the anchor to matter"
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps of each run")
    parser.add_argument("--seed", type=int, default=0, help="training seed")
    parser.add_argument("--problems", type=int, default=200, help="held-out problems")
    parser.add_argument("--samples", type=int, default=64, help="completions of each problem")
    options = parser.parse_args()
    disable_progress_bar()
    print("| estimator | slope, guide of the token | slope, guide of the state |\n| --- | --- | --- |")
    for anchor in ("k3", "token", "sequence"):
        folders = {name: options.output_dir / f"{anchor}_{name}_{options.seed}" for name in (None, *GUIDES)}
        cells = []
        for name, folder in folders.items():
            guide = GUIDES.get(name)
            if guide is not None and anchor == "token" and not guide.depends_on_token:
                cells.append("refused")
                continue
            if not (folder / "model.safetensors").is_file():
                train(anchor, guide, folder, options)
            if guide is not None:
                found = slope(*log_ratios(folder, folders[None], guide, options.problems, options.samples))
                cells.append("{:+.2f} ({:+.2f} to {:+.2f})".format(*found))
        print(f"| {anchor} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
