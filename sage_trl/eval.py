"""Evaluates a model: pass@k and what goes with it, resumable, with intervals.

    sage-trl eval --model examples/countdown/model --benchmarks countdown --n 64 --output_dir outputs/eval/base

Whoever trains with this project or with anything else: a model is a Hub id or a folder, an adapter too.
"""

import dataclasses
import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .checks import check_model
from .data.prompts import load_prompt_format, resolve_prompt_format
from .evaluation.backends import Sampling, TransformersBackend
from .evaluation.benchmarks import Problems, load_benchmark
from .evaluation.curves import draw_panels, shown_ks
from .evaluation.records import Records
from .evaluation.results import RESULTS, Collected, collect, markdown_table, summarize, warnings_of, write_results
from .evaluation.runner import encode_prompts, rescore, run_benchmark
from .launch import mistakes_as_one_line, quiet_dependencies
from .loading import load_model, split_adapter
from .recipe import RecipeParser, parse_mapping, portable

SETTINGS = "settings.json"
ENDS = 2**20  # bytes of a file of weights that are looked at, at either end
# Keys of a training recipe that say how its model is prompted and sampled
OF_A_RECIPE = ("prompt_format", "temperature", "top_p", "top_k", "max_completion_length", "chat_template_kwargs")


@dataclass
class EvalArguments:
    """
    An evaluation.

    Args:
        model (`str`, *optional*):
            Model, by Hub id or folder.
        adapter (`str`, *optional*):
            LoRA adapter on it. A `model` that is an adapter is loaded with its own base.
        benchmarks (`str`, *optional*, defaults to `"math500"`):
            Benchmarks, separated by commas: names, files, or `name=file` for a local copy.
        n (`int`, *optional*, defaults to `64`):
            Completions of each problem.
        k (`str`, *optional*):
            Numbers of tries, separated by commas. Defaults to the powers of 2 up to `n`.
        num_problems (`int`, *optional*):
            How many of each benchmark's first problems to take.
        prompt_format (`str`, *optional*):
            How a problem is put to the model. Defaults to what the model's folder says it was trained with.
        temperature, top_p, top_k, max_completion_length:
            How completions are sampled. `--config` takes them from a training recipe.
        output_dir (`str`, *optional*, defaults to `"outputs/eval"`):
            Folder of the records and results. A run that is started again goes on where it stopped.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.
        batch_size (`int`, *optional*, defaults to `256`):
            Completions sampled at once.
        shard (`str`, *optional*):
            `i/n`: the i-th of n processes that share the work, counted from 0. Defaults to a launcher's processes.
        keep_text (`bool`, *optional*, defaults to `False`):
            Whether the completions' texts are kept, and not only a checksum.
        rescore (`bool`, *optional*, defaults to `False`):
            Whether to judge the texts that were kept again, without sampling anything.
    """

    model: str | None = field(default=None, metadata={"help": "Model, by Hub id or folder."})
    adapter: str | None = field(default=None, metadata={"help": "LoRA adapter on it."})
    benchmarks: str = field(
        default="math500",
        metadata={"help": "Benchmarks, separated by commas: names, files, or name=file for a local copy."},
    )
    n: int = field(default=64, metadata={"help": "Completions of each problem."})
    k: str | None = field(
        default=None, metadata={"help": "Numbers of tries, separated by commas. Default: powers of 2 up to n."}
    )
    num_problems: int | None = field(default=None, metadata={"help": "How many of each benchmark's first problems."})
    prompt_format: str | None = field(
        default=None, metadata={"help": "How a problem is put. Default: what the model's folder says."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Temperature of the samples."})
    top_p: float = field(default=1.0, metadata={"help": "Share of probability that is kept."})
    top_k: int = field(default=0, metadata={"help": "Likeliest tokens that are kept; 0 for all."})
    max_completion_length: int = field(default=3072, metadata={"help": "Tokens after which a completion is cut off."})
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of the chat template, as JSON."}
    )
    dtype: str = field(default="auto", metadata={"help": "Numbers of the weights: auto, float32, bfloat16, float16."})
    output_dir: str = field(default="outputs/eval", metadata={"help": "Folder of the records and results."})
    seed: int = field(default=0, metadata={"help": "Seed of the samples."})
    batch_size: int = field(default=256, metadata={"help": "Completions sampled at once."})
    shard: str | None = field(
        default=None,
        metadata={"help": "i/n: the i-th of n processes that share the work. Default: as a launcher says."},
    )
    keep_text: bool = field(default=False, metadata={"help": "Keep the completions' texts, not only a checksum."})
    rescore: bool = field(
        default=False, metadata={"help": "Judge the texts that were kept again, without sampling anything."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})

    def __post_init__(self):
        if self.model is None:
            raise ValueError("`model` is not set; give a Hub id or a folder.")
        for name in ("n", "num_problems", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}; it must be at least 1.")
        if self.prompt_format is not None:
            resolve_prompt_format(self.prompt_format)
        self.chat_template_kwargs = parse_mapping(self.chat_template_kwargs, "chat_template_kwargs")
        for k in self.ks:
            if not 1 <= k <= self.n:
                raise ValueError(f"`k` names {k}; it must lie between 1 and the {self.n} samples of `n`.")
        _ = self.sampling, self.shard_of  # which check themselves

    @property
    def ks(self) -> list[int]:
        if self.k is None:
            return sorted({2**power for power in range(20) if 2**power <= self.n} | {self.n})
        try:
            return sorted({int(part) for part in str(self.k).split(",")})
        except ValueError as error:
            raise ValueError(f"`k` is '{self.k}'; write numbers separated by commas, such as 1,4,16.") from error

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.max_completion_length)

    @property
    def shard_of(self) -> tuple[int, int]:
        if self.shard is None:  # a launcher's processes share the work
            return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        number, _, count = self.shard.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise ValueError(f"`shard` is '{self.shard}'; write i/n, such as 0/4, the first of four.")
        return int(number), int(count)


def recipe_flags(path: str) -> list[str]:
    """What a training recipe says about prompting and sampling, as it would stand on the command line."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"`--config` is '{path}', and there is no such file.")
    recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must be a list of `setting: value` lines.")
    flags = [("--model", recipe["model_name_or_path"])] if "model_name_or_path" in recipe else []
    flags += [(f"--{name}", recipe[name]) for name in OF_A_RECIPE if recipe.get(name) is not None]
    return [
        part for name, value in flags for part in (name, json.dumps(value) if isinstance(value, dict) else str(value))
    ]


def parse(argv: list[str], prog: str) -> EvalArguments:
    """The command line. `--config` names a training recipe whose way of prompting and sampling is taken over."""
    argv = [part for arg in argv for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    if "--config" in argv:
        position = argv.index("--config")
        if position + 1 == len(argv):
            raise ValueError("`--config` needs the path of a recipe.")
        argv = [*recipe_flags(argv[position + 1]), *argv[:position], *argv[position + 2 :]]
    if not argv:
        raise ValueError("`model` is not set; give a Hub id or a folder. `--help` lists the settings.")
    parser = RecipeParser(
        (EvalArguments,),
        prog=prog,
        usage="%(prog)s --model MODEL --benchmarks NAME,NAME [--config recipe.yaml] [--setting value ...]",
        description="Evaluates a model by pass@k. `--config` names a training recipe whose prompt format and sampling "
        "are taken over.",
    )
    return parser.parse_run(argv)[0]


def settle_prompt_format(arguments: EvalArguments) -> tuple[str, list[str]]:
    """The prompt format and what there is to say about it."""
    folder = arguments.adapter or arguments.model
    trained_with = load_prompt_format(folder) if Path(folder).is_dir() else None
    chosen = arguments.prompt_format or trained_with or "plain"
    if trained_with not in (None, chosen):
        return chosen, [f"The model was trained with `prompt_format` '{trained_with}' and is asked with '{chosen}'."]
    if arguments.prompt_format is None and trained_with is None:
        return chosen, [
            "`prompt_format` is not set, and the model's folder records none: problems are put as they are."
        ]
    return chosen, []


def settle_settings(arguments: EvalArguments, prompt_format: str, checksums: dict[str, str]) -> dict[str, Any]:
    """
    Writes down what the samples depend on, or compares it with what the folder's samples were made with.

    Args:
        arguments ([`EvalArguments`]):
            The evaluation.
        prompt_format (`str`):
            The prompt format.
        checksums (`dict[str, str]`):
            Checksum of each benchmark.

    Returns:
        `dict`: the settings.

    Raises:
        [`ValueError`]: the folder has samples that were made otherwise; the message names the differences.
    """
    names = ("model", "adapter", "n", "num_problems", "seed", "batch_size", "chat_template_kwargs", "dtype")
    settings = {name: getattr(arguments, name) for name in names}
    settings |= {"weights": fingerprint(arguments.model), "adapter_weights": fingerprint(arguments.adapter)}
    settings |= {"prompt_format": prompt_format} | dataclasses.asdict(arguments.sampling) | {"backend": "transformers"}
    shown = portable(settings)
    path = Path(arguments.output_dir) / SETTINGS
    if path.is_file() and any(path.parent.glob("records/*/*.jsonl.gz")):
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = {name: (before["settings"].get(name), value) for name, value in shown.items()}
        changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
        changed |= {
            f"problems of {name}": (before["checksums"][name], value)
            for name, value in checksums.items()
            if before["checksums"].get(name, value) != value
        }
        if changed:
            difference = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in changed.items())
            raise ValueError(
                f"'{arguments.output_dir}' holds samples that were made otherwise: {difference}. Set `output_dir` to "
                "another folder, or the settings back."
            )
        checksums = before["checksums"] | checksums
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": shown, "checksums": checksums}, indent=2)
    # At once, since other processes may read it
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(text + "\n", encoding="utf-8")
    own.replace(path)
    return shown


def fingerprint(model: str | None) -> str | None:
    """
    What tells the weights in a folder from those that another training left there: a checksum over the size and the
    ends of each file. `None` for a model of the Hub.
    """
    if model is None or not Path(model).is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted(Path(model).glob("*.safetensors")) + sorted(Path(model).glob("*model*.bin")):
        size = path.stat().st_size
        with path.open("rb") as file:
            found.update(f"{path.name} {size}".encode() + file.read(ENDS))
            file.seek(max(0, size - ENDS))
            found.update(file.read(ENDS))
    return found.hexdigest()[:16]


def load_backend(arguments: EvalArguments) -> tuple[TransformersBackend, Any]:
    """The engine and the tokenizer."""
    import torch
    from peft import PeftModel
    from transformers import AutoTokenizer

    base, adapter = (arguments.model, arguments.adapter) if arguments.adapter else split_adapter(arguments.model)
    options = {"trust_remote_code": True} if arguments.trust_remote_code else {}
    model = load_model(base, "model", dtype=arguments.dtype, **options)
    tokenizer = AutoTokenizer.from_pretrained(base, **options)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    device = "cpu"
    if torch.accelerator.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device(torch.accelerator.current_accelerator().type, local)
    return TransformersBackend(model.to(device).eval(), tokenizer, arguments.sampling), tokenizer


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
    benchmarks = [load_benchmark(name.strip(), arguments.num_problems) for name in arguments.benchmarks.split(",")]
    prompt_format, said = settle_prompt_format(arguments)
    if all("prompt" in row for problems in benchmarks for row in problems.rows):
        said = []  # the task's own prompts are used
    checksums = {problems.name: problems.checksum for problems in benchmarks}
    settings = settle_settings(arguments, prompt_format, checksums)
    for line in said:
        print(f"Note: {line}")
    folder = Path(arguments.output_dir)
    places = [folder / "records" / problems.name for problems in benchmarks]

    def read() -> list[Collected]:
        return [collect(*each, arguments.n) for each in zip(benchmarks, places, strict=True)]

    found = [] if arguments.rescore else read()
    if arguments.rescore:
        for problems, place in zip(benchmarks, places, strict=True):
            rescore(problems, place)
        found = read()
    elif any(each.missing for each in found):
        sample_missing(arguments, benchmarks, places, prompt_format)
        found = read()
    if any(each.missing for each in found):
        print("This shard is done. The last one to end writes the results.")
        return None
    summaries = [summarize(each, arguments.ks) for each in found]
    results = write_results(folder, settings | {"notes": said}, summaries)
    draw_panels({"pass@k": {each["benchmark"]: each["pass_at_k"] for each in summaries}}, folder / "pass_at_k.png")
    table = markdown_table(results, shown_ks(arguments.ks))
    (folder / "results.md").write_text(table + "\n", encoding="utf-8")
    print(f"\n{table}\n\nIn percent, with 95 % intervals over problems.")
    for line in (line for found in summaries for line in warnings_of(found)):
        print(f"Note: {line}")
    print(f"Results: {folder / RESULTS}   Picture: {folder / 'pass_at_k.png'}")
    return results


def sample_missing(
    arguments: EvalArguments, benchmarks: list[Problems], places: list[Path], prompt_format: str
) -> None:
    """Loads the model and samples what the records of this shard lack."""
    backend, tokenizer = load_backend(arguments)
    for problems, place in zip(benchmarks, places, strict=True):
        run_benchmark(
            problems,
            encode_prompts(problems, tokenizer, prompt_format, arguments.chat_template_kwargs),
            backend,
            tokenizer,
            Records(place, arguments.shard_of),
            arguments.sampling,
            arguments.n,
            seed=arguments.seed,
            batch_size=arguments.batch_size,
            shard=arguments.shard_of,
            keep_text=arguments.keep_text,
        )


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Evaluates as the command line says. A mistake in the settings is one line and exit code 2."""
    quiet_dependencies()
    with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
        evaluate(parse(sys.argv[1:] if argv is None else argv, prog or "python -m sage_trl.eval"))


if __name__ == "__main__":
    run()
