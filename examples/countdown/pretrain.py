"""Pre-trains the tiny countdown model that the examples and tests start from.

Reinforcement learning needs a model that is already right now and then. This one learns from (problem, one random
solution) pairs of the train split, next token by next token, and stops while it is still a guesser: it solves about
one test problem in six at the first try, and most of them within 256. The gap between the two is what the
experiments study. It is a Qwen3 of about 0.4 M parameters whose vocabulary is the numbers 0 to 99, the operators and
the few words of the prompt, small enough to be committed.

    python examples/countdown/pretrain.py --output_dir examples/countdown/model
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tqdm import trange
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, get_linear_schedule_with_warmup

from sage_trl.data.countdown import make_countdown
from sage_trl.evaluation.pass_at_k import pass_at_k
from sage_trl.rewards.countdown import is_correct

PAD, END, ASSISTANT, UNKNOWN = "<|pad|>", "<|end|>", "<|assistant|>", "<|unk|>"
WORDS = ["Numbers", "Target", ":", "+", "-", "*", "/", "(", ")", "="]
CHAT_TEMPLATE = Path(__file__).parent / "model" / "chat_template.jinja"
MAX_COMPLETION_TOKENS = 16  # the longest answer over five numbers, its end token included
IGNORED = -100  # label that the loss skips


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per number, operator and word. Text outside the vocabulary becomes the unknown token."""
    specials = [PAD, END, ASSISTANT, UNKNOWN]
    vocabulary = {token: i for i, token in enumerate([*specials, *WORDS, *map(str, range(100))])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    # Keeps what the pattern matches and drops the rest, that is, the spaces.
    tokenizer.pre_tokenizer = Split(Regex(r"[0-9]+|[A-Za-z]+|[^\sA-Za-z0-9]"), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[ASSISTANT],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
        chat_template=CHAT_TEMPLATE.read_text(),
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)  # initial weights are drawn from torch's global generator
    # Qwen3, because `AutoTokenizer` replaces the tokenizer of any Qwen2 model by Qwen2's own.
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def encode_pairs(tokenizer: PreTrainedTokenizerFast, num_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns input ids and labels, each (num_rows, T) and padded on the right; only completion tokens have labels."""
    problems = make_countdown(num_rows, seed=seed, split="train")
    texts = tokenizer.apply_chat_template(list(problems["prompt"]), add_generation_prompt=True, tokenize=False)
    input_ids, labels = [], []
    # Tokenized in one batch: row by row would take longer than the training.
    for prompt, answer in zip(
        tokenizer(texts)["input_ids"], tokenizer(list(problems["answer"]))["input_ids"], strict=True
    ):
        completion = [*answer, tokenizer.eos_token_id]
        input_ids.append(torch.tensor(prompt + completion))
        labels.append(torch.tensor([IGNORED] * len(prompt) + completion))
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(input_ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(labels, batch_first=True, padding_value=IGNORED),
    )


def train(model: Qwen3ForCausalLM, input_ids: torch.Tensor, labels: torch.Tensor, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, args.steps // 20, args.steps)
    generator = torch.Generator().manual_seed(args.seed)
    model.train()
    progress = trange(args.steps, desc="pre-training", mininterval=5)
    order = torch.empty(0, dtype=torch.long)
    for _ in progress:
        if len(order) < args.batch_size:
            order = torch.randperm(len(input_ids), generator=generator)
        batch, order = order[: args.batch_size], order[args.batch_size :]
        # Padding sits on the right, so causal attention needs no mask.
        loss = model(input_ids=input_ids[batch], labels=labels[batch], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


@torch.no_grad()
def count_correct(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> list[int]:
    """Samples `args.eval_samples` completions at temperature 1 for each test problem and counts the right ones."""
    torch.manual_seed(args.seed)  # `generate` draws from torch's global generator
    model.eval()
    counts = []
    problems = make_countdown(args.eval_problems, seed=args.seed, split="test")
    for i in trange(args.eval_problems, desc="evaluating", mininterval=5):
        row = problems[i]
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")
        generated = model.generate(
            **prompt,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            num_return_sequences=args.eval_samples,
            max_new_tokens=MAX_COMPLETION_TOKENS,
        )
        completions = tokenizer.batch_decode(generated[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        counts.append(sum(is_correct(text, row["numbers"], row["target"]) for text in completions))
    return counts


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pre-train the tiny countdown model on one CPU core.")
    parser.add_argument("--output_dir", type=Path, required=True, help="where the model and its tokenizer are saved")
    parser.add_argument("--num_rows", type=int, default=120_000, help="train problems, one solution each")
    parser.add_argument("--steps", type=int, default=700, help="more steps give a higher pass@1")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval_problems", type=int, default=200)
    parser.add_argument("--eval_samples", type=int, default=256, help="samples per problem, the largest k of pass@k")
    return parser


def main() -> None:
    args = make_parser().parse_args()
    torch.set_num_threads(1)  # results then do not depend on the number of cores
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, args.seed)
    input_ids, labels = encode_pairs(tokenizer, args.num_rows, args.seed)
    train(model, input_ids, labels, args)

    model.generation_config.update(do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{model.num_parameters():,} parameters saved to {args.output_dir}")

    counts = count_correct(model, tokenizer, args)
    for k in (1, args.eval_samples):
        print(f"pass@{k}: {pass_at_k(args.eval_samples, counts, k).mean():.3f}")


if __name__ == "__main__":
    main()
