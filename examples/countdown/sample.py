"""Samples countdown completions from a model and counts the right ones: the (n, c) that pass@k is computed from.

python examples/countdown/sample.py examples/countdown/model
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from sage_trl.data.countdown import make_countdown
from sage_trl.evaluation.pass_at_k import bootstrap_interval, pass_at_k
from sage_trl.rewards.countdown import countdown_reward

MAX_COMPLETION_TOKENS = 16  # the longest answer over five numbers, its end token included
PROBLEMS_SEED = 1  # the model was chosen with the test problems of seed 0 in view
BATCH = 1024  # completions generated together


@torch.inference_mode()
def count_correct(
    model_path: str | Path, num_problems: int, num_samples: int, label: str, seed: int = 0
) -> np.ndarray:
    """
    Samples at temperature 1, without top-k or top-p, and verifies.

    Args:
        model_path (`str` or `Path`):
            Folder of the model and its tokenizer.
        num_problems (`int`):
            Held-out problems.
        num_samples (`int`):
            Completions for each of them.
        label (`str`):
            What the progress bar calls the model.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.

    Returns:
        `np.ndarray` of shape (num_problems,): how many completions of each problem are right.
    """
    disable_progress_bar()  # of loading 24 tensors
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    problems = make_countdown(num_problems, seed=PROBLEMS_SEED, split="test")
    prompts = tokenizer.apply_chat_template(list(problems["prompt"]), add_generation_prompt=True, tokenize=False)
    rows = np.repeat(np.arange(num_problems), num_samples)
    correct = np.zeros(num_problems, dtype=int)
    torch.manual_seed(seed)  # `generate` draws from torch's global generator
    with tqdm(total=len(rows), desc=f"sampling {label}", unit="completion", unit_scale=True) as bar:
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH].tolist()
            inputs = tokenizer([prompts[row] for row in batch], return_tensors="pt", padding=True)
            generated = model.generate(
                **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_COMPLETION_TOKENS
            )
            texts = tokenizer.batch_decode(generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            chosen = problems.select(batch)
            rewards = countdown_reward(texts, numbers=list(chosen["numbers"]), target=list(chosen["target"]))
            np.add.at(correct, batch, np.array(rewards, dtype=int))
            bar.update(len(batch))
    return correct


def main() -> None:
    parser = argparse.ArgumentParser(description="Sample a countdown model and print its pass@k.")
    parser.add_argument("model", type=Path, help="folder of the model and its tokenizer")
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--samples", type=int, default=256, help="samples per problem, the largest k of pass@k")
    args = parser.parse_args()
    correct = count_correct(args.model, args.problems, args.samples, label=args.model.name)
    for k in sorted({1, args.samples}):
        values = pass_at_k(args.samples, correct, k)
        lower, upper = bootstrap_interval(values)
        print(f"pass@{k}: {values.mean():.3f}  (95 % interval {lower:.3f} to {upper:.3f})")


if __name__ == "__main__":
    main()
