"""How fast `sage-trl eval` samples and judges, against the loop that evaluation scripts have: a ratio.

    python -m benchmarks.evaluation
    python -m benchmarks.evaluation --backend vllm --model MODEL --benchmark amc23=amc23.jsonl --tokens 128
    python -m benchmarks.evaluation --records 500 256

The loop makes one `generate` call for each problem, with all of its samples in it, and judges them before it goes on.
Both sample the same problems, in turn, several times; printed are problems per second and the median ratio over
rounds, the smallest and the largest. `--records` samples nothing: so many problems and samples of each from a stand-in
are judged, written and summarized, and printed are the time of each part and the peak of memory.
"""

import argparse
import random
import resource
import statistics
import tempfile
import time

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from sage_trl.evaluation.backends import BACKENDS, Backend, Request, Sampling
from sage_trl.evaluation.benchmarks import Problems, load_benchmark
from sage_trl.evaluation.records import Records
from sage_trl.evaluation.results import collect, summarize
from sage_trl.evaluation.runner import Judge, encode_prompts, run_benchmark
from sage_trl.evaluation.transformers_backend import TransformersBackend
from sage_trl.evaluation.vllm_backend import VLLMBackend


def loop(problems: Problems, prompts: list[tuple[int, ...]], model, tokenizer, options: argparse.Namespace) -> int:
    """What people use: returns how many are right."""
    correct = 0
    for row, ids in zip(problems.rows, prompts, strict=True):
        inputs = torch.tensor([ids]).expand(options.samples, -1)
        with torch.inference_mode():
            generated = model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=options.tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
        texts = tokenizer.batch_decode(generated[:, len(ids) :], skip_special_tokens=True)
        correct += sum(verdict == "right" for _, verdict in Judge(problems.task)([row] * len(texts), texts))
    return correct


def ours(
    problems: Problems, prompts: list[tuple[int, ...]], backend: Backend, tokenizer, options: argparse.Namespace
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        records = Records(folder)
        run_benchmark(
            problems,
            prompts,
            backend,
            tokenizer,
            records,
            Sampling(max_tokens=options.tokens),
            options.samples,
            batch_size=options.batch_size,
            progress=lambda **settings: tqdm(**settings, disable=True),
        )
        return sum(row["verdict"] == "right" for row in records)


class StandIn:
    """Answers at once, and at random."""

    def __init__(self, tokenizer):
        numbers = [
            [*tokenizer(str(n), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for n in range(50)
        ]
        self.ends = [tokenizer.eos_token_id]
        self.answers, self.source = numbers, random.Random(0)

    def generate(self, requests: list[Request], ended=None) -> list[list[int]]:
        return [self.source.choice(self.answers) for _ in requests]


def time_records(num_problems: int, num_samples: int, tokenizer) -> None:
    problems = Problems("stand-in", [{"id": str(i), "answer": str(i % 50)} for i in range(num_problems)], "")
    prompts = [(0,)] * num_problems
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_benchmark(problems, prompts, StandIn(tokenizer), tokenizer, Records(folder), Sampling(), num_samples)
        written = time.perf_counter()
        ks = [2**power for power in range(20) if 2**power <= num_samples]
        summarize(collect(problems, folder, num_samples), ks)
        done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{num_problems} problems x {num_samples}: judged and written in {written - began:.1f} s, summarized in "
        f"{done - written:.1f} s; peak memory {peak / 2**20:.2f} GiB, {(peak - before) / 2**10:.0f} MiB of it for this"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="examples/countdown/model")
    parser.add_argument("--benchmark", default="countdown", help="as of sage-trl eval: a name, or name=file")
    parser.add_argument("--backend", choices=BACKENDS, default="transformers")
    parser.add_argument("--prompt_format", default="plain")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16, help="completions of each problem")
    parser.add_argument("--tokens", type=int, default=16, help="longest completion")
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, nargs=2, metavar=("PROBLEMS", "SAMPLES"), help="time the records alone")
    options = parser.parse_args()
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if options.records:
        time_records(*options.records, tokenizer)
        return
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    problems = load_benchmark(options.benchmark, options.problems)
    prompts = encode_prompts(problems, tokenizer, options.prompt_format)
    sampling = Sampling(max_tokens=options.tokens)
    if options.backend == "vllm":
        longest = max(map(len, prompts)) + options.tokens
        backend = VLLMBackend.load(options.model, None, tokenizer, sampling, longest)
    else:
        backend = TransformersBackend(model, tokenizer, sampling)
    times: dict[str, list[float]] = {"loop": [], "eval": []}
    for number in range(options.rounds):
        ways = (("loop", loop, model), ("eval", ours, backend))
        for name, way, engine in ways[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            way(problems, prompts, engine, tokenizer, options)
            times[name].append(time.perf_counter() - began)
    for name, seconds in times.items():
        print(f"{name}: {len(problems.rows) / statistics.median(seconds):.1f} problems/s")
    ratios = [slow / fast for slow, fast in zip(times["loop"], times["eval"], strict=True)]
    print(f"ratio: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
