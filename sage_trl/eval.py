"""Evaluates a model: pass@k and what goes with it, resumable, with intervals.

    sage-trl eval --model examples/countdown/model --benchmarks countdown --n 64 --output_dir outputs/eval/base

Whoever trains with this project or with anything else: a model is a Hub id or a folder, an adapter too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from .checks import check_model
from .evaluation.backends import Backend, check_positions
from .evaluation.benchmarks import Problems, load_benchmarks
from .evaluation.curves import draw_panels, shown_ks
from .evaluation.records import Records
from .evaluation.results import RESULTS, Collected, collect, markdown_table, summarize, warnings_of, write_results
from .evaluation.runner import encode_prompts, rescore, run_benchmark
from .evaluation.settings import (
    EvalArguments,
    bind_folder,
    check_folder,
    described,
    parse,
    settings_of,
    settle_prompt_format,
)
from .launch import mistakes_as_one_line, quiet_dependencies
from .loading import check_adapter, load_tokenizer, split_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_backend(
    arguments: EvalArguments, base: str, adapter: str | None, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> Backend:
    """The engine. `max_length` are the tokens of the longest prompt and completion together."""
    options = {"dtype": arguments.dtype, "trust_remote_code": arguments.trust_remote_code}
    if arguments.backend == "vllm":
        from .evaluation.vllm_backend import VLLMBackend

        return VLLMBackend.load(
            base,
            adapter,
            tokenizer,
            arguments.sampling,
            max_length,
            tensor_parallel_size=arguments.vllm_tensor_parallel_size,
            gpu_memory_utilization=arguments.vllm_gpu_memory_utilization,
            **options,
        )
    from .evaluation.transformers_backend import TransformersBackend

    return TransformersBackend.load(base, adapter, tokenizer, arguments.sampling, **options)


def evaluate(arguments: EvalArguments) -> dict[str, Any] | None:
    """
    Samples, judges, and writes `results.json`, a picture and a table.

    Args:
        arguments ([`EvalArguments`]):
            The evaluation.

    Returns:
        `dict` or `None`: the results; `None` where other shards have work left.
    """
    check_model(arguments.model, setting="model")
    if arguments.adapter is not None:
        check_model(arguments.adapter, setting="adapter")
        check_adapter(arguments.adapter)
    benchmarks = load_benchmarks(arguments.benchmarks, arguments.num_problems)
    prompt_format, said = settle_prompt_format(arguments)
    if all("prompt" in row for problems in benchmarks for row in problems.rows):
        said = []  # the task's own prompts are used
    base, adapter = (arguments.model, arguments.adapter) if arguments.adapter else split_adapter(arguments.model)
    settings = settings_of(arguments, prompt_format, base, adapter)
    check_folder(arguments, settings, benchmarks)
    for line in said:
        print(f"Note: {line}")
    folder = Path(arguments.output_dir)
    places = [folder / "records" / problems.name for problems in benchmarks]

    def read() -> list[Collected]:
        return [collect(*each, arguments.n) for each in zip(benchmarks, places, strict=True)]

    found = read()
    missing = sum(each.missing for each in found)
    if arguments.rescore and missing:
        raise ValueError(
            f"`rescore` judges what was sampled, and {missing:,} completions of `n` {arguments.n} were not. Set `n` "
            "as it was, or sample the rest first."
        )
    if arguments.keep_text and any("text" not in row for each in found for row in each.table.values()):
        raise ValueError(
            f"`keep_text` is set, but '{folder}' holds completions whose texts were not kept. Set `output_dir` to "
            "another folder, or `keep_text` to false."
        )
    if arguments.rescore:
        for problems, place in zip(benchmarks, places, strict=True):
            rescore(problems, place)
        bind_folder(arguments, settings, benchmarks)
        found = read()
    elif missing:
        with only_process(arguments):
            sample_missing(arguments, settings, base, adapter, benchmarks, places)
        found = read()
    if any(each.missing for each in found):
        print("This shard is done. The last one to end writes the results.")
        return None
    summaries = [summarize(each, arguments.ks) for each in found]
    results = write_results(folder, settings | {"notes": said}, summaries)
    draw_panels(
        {"pass@k": {name: each["pass_at_k"] for name, each in results["benchmarks"].items()}}, folder / "pass_at_k.png"
    )
    table = markdown_table(results, shown_ks(arguments.ks) if arguments.k is None else arguments.ks)
    (folder / "results.md").write_text(f"{table}\n\n{described(settings)}\n", encoding="utf-8")
    print(f"\n{table}\n\nIn percent, with 95 % intervals over problems.")
    for line in (line for found in summaries for line in warnings_of(found)):
        print(f"Note: {line}")
    print(f"Results: {folder / RESULTS}   Picture: {folder / 'pass_at_k.png'}")
    return results


@contextmanager
def only_process(arguments: EvalArguments) -> Iterator[None]:
    """Raises [`ValueError`] where another process is at work on the same shard of the same folder."""
    number, count = arguments.shard_of
    path = Path(arguments.output_dir) / f".shard-{number}-of-{count}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout as error:
        raise ValueError(
            f"another process is at work on shard {number}/{count} of '{arguments.output_dir}'. To share the work, "
            "give each process a `shard` of its own."
        ) from error


def sample_missing(
    arguments: EvalArguments,
    settings: dict[str, Any],
    base: str,
    adapter: str | None,
    benchmarks: list[Problems],
    places: list[Path],
) -> None:
    """Loads the model and samples what the records of this shard lack."""
    from transformers import AutoConfig

    tokenizer = load_tokenizer(base, adapter, arguments.trust_remote_code)
    prompts = [
        encode_prompts(problems, tokenizer, settings["prompt_format"], arguments.chat_template_kwargs)
        for problems in benchmarks
    ]
    longest = max(len(ids) for each in prompts for ids in each)
    config = AutoConfig.from_pretrained(base, trust_remote_code=arguments.trust_remote_code)
    check_positions(config, longest, arguments.max_completion_length)
    backend = load_backend(arguments, base, adapter, tokenizer, longest + arguments.max_completion_length)
    bind_folder(arguments, settings, benchmarks)
    for problems, place, prompt_ids in zip(benchmarks, places, prompts, strict=True):
        run_benchmark(
            problems,
            prompt_ids,
            backend,
            tokenizer,
            Records(place, arguments.shard_of),
            arguments.sampling,
            arguments.n,
            seed=arguments.seed,
            batch_size=arguments.batch_size,
            shard=arguments.shard_of,
            planned_for=settings["planned_for"],
            keep_text=arguments.keep_text,
        )


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Evaluates as the command line says. A mistake in the settings is one line and exit code 2."""
    quiet_dependencies()
    with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
        try:
            evaluate(parse(sys.argv[1:] if argv is None else argv, prog or "python -m sage_trl.eval"))
        except KeyboardInterrupt:
            print("\nStopped. The same command goes on where it was.", file=sys.stderr)
            sys.exit(130)


if __name__ == "__main__":
    run()
