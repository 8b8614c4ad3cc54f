"""What an evaluation is asked for, and what its samples depend on."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from ..data.prompts import load_prompt_format, resolve_prompt_format
from ..recipe import RecipeParser, parse_mapping, portable
from .backends import BACKENDS, Sampling, default_backend
from .benchmarks import Problems

SETTINGS = "settings.json"
DTYPES = ("auto", "float32", "bfloat16", "float16")
BATCH_SIZES = {"transformers": 256, "vllm": 4096}
# Bytes of a file of weights up to which all of it is looked at; beyond that, so many of every so many
WHOLE, READ, STRIDE = 2**26, 2**12, 2**20
OF_A_MODEL = ("*.safetensors", "*.bin", "config.json", "generation_config.json", "adapter_config.json", "tokenizer*")
OF_A_MODEL += ("*token*.json", "chat_template*", "vocab*", "merges.txt", "*.model")
OF_THE_SAMPLES = ("model", "adapter", "n", "num_problems", "seed", "batch_size", "chat_template_kwargs", "dtype")
OF_THE_SAMPLES += ("backend", "vllm_tensor_parallel_size")
# Keys of a training recipe that say how its model is prompted and sampled
OF_A_RECIPE = ("prompt_format", "temperature", "top_p", "top_k", "min_p", "max_completion_length")
OF_A_RECIPE += ("chat_template_kwargs",)


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
        temperature, top_p, top_k, min_p, max_completion_length:
            How completions are sampled. `--config` takes them from a training recipe.
        output_dir (`str`, *optional*, defaults to `"outputs/eval"`):
            Folder of the records and results. A run that is started again goes on where it stopped.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.
        backend (`str`, *optional*):
            `"vllm"` or `"transformers"`. Defaults to vLLM where it is installed.
        batch_size (`int`, *optional*):
            Completions sampled at once, and lost by a kill. Defaults to 256, and to 4096 with vLLM, whose engine idles
            towards the end of each batch.
        vllm_tensor_parallel_size (`int`, *optional*, defaults to `1`):
            GPUs that share one model. A launcher's processes share the problems.
        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.9`):
            Share of a GPU's memory that vLLM takes.
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
    min_p: float = field(
        default=0.0, metadata={"help": "Share of the likeliest token's probability below which a token is left out."}
    )
    max_completion_length: int = field(default=3072, metadata={"help": "Tokens after which a completion is cut off."})
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of the chat template, as JSON."}
    )
    dtype: str = field(default="auto", metadata={"help": "Numbers of the weights: auto, float32, bfloat16, float16."})
    output_dir: str = field(default="outputs/eval", metadata={"help": "Folder of the records and results."})
    seed: int = field(default=0, metadata={"help": "Seed of the samples."})
    backend: str | None = field(
        default=None, metadata={"help": "vllm or transformers. Default: vLLM where it is installed."}
    )
    batch_size: int | None = field(
        default=None, metadata={"help": "Completions sampled at once. Default: 256, and 4096 with vLLM."}
    )
    vllm_tensor_parallel_size: int = field(default=1, metadata={"help": "GPUs that share one model."})
    vllm_gpu_memory_utilization: float = field(
        default=0.9, metadata={"help": "Share of a GPU's memory that vLLM takes."}
    )
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
        self.backend = self.backend or default_backend()
        if self.backend not in BACKENDS:
            raise ValueError(f"`backend` is '{self.backend}'; it must be one of {list(BACKENDS)}.")
        self.batch_size = BATCH_SIZES[self.backend] if self.batch_size is None else self.batch_size
        if not 0 < self.vllm_gpu_memory_utilization <= 1:
            raise ValueError(
                f"`vllm_gpu_memory_utilization` is {self.vllm_gpu_memory_utilization}; it must be above 0 and at most "
                "1."
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"`dtype` is '{self.dtype}'; it must be one of {list(DTYPES)}.")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"`temperature` is 0 and `n` is {self.n}, but all samples would be the same. Set `n` to 1."
            )
        if self.seed < 0:
            raise ValueError(f"`seed` is {self.seed}; it must be at least 0.")
        for name in ("n", "num_problems", "batch_size", "vllm_tensor_parallel_size"):
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
        return powers_of_two(self.n) if self.k is None else parse_ks(self.k)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.max_completion_length, self.min_p)

    @property
    def shard_of(self) -> tuple[int, int]:
        if self.shard is None:  # a launcher's processes share the work
            return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        number, _, count = self.shard.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise ValueError(f"`shard` is '{self.shard}'; write i/n, such as 0/4, the first of four.")
        return int(number), int(count)


def powers_of_two(n: int) -> list[int]:
    """The powers of 2 up to n, and n itself."""
    return sorted({2**power for power in range(n.bit_length())} | {n})


def parse_ks(text: str) -> list[int]:
    """Numbers of tries, of at least 1, separated by commas."""
    parts = str(text).split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"`k` is '{text}'; write numbers of at least 1 separated by commas, such as 1,4,16.")
    return sorted({int(part) for part in parts})


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


def settings_of(arguments: EvalArguments, prompt_format: str, base: str, adapter: str | None) -> dict[str, Any]:
    """What the samples depend on, fit to be published. `base` and `adapter` are the parts of the model."""
    settings = {name: getattr(arguments, name) for name in OF_THE_SAMPLES}
    # Batches are made for the processes of the first command, so that another number of them goes on with the same
    before = read_folder(Path(arguments.output_dir)) or {"settings": {}}
    settings["planned_for"] = before["settings"].get("planned_for", arguments.shard_of[1])
    settings |= {"weights": fingerprint(base), "adapter_weights": fingerprint(adapter)}
    return portable(settings | {"prompt_format": prompt_format} | dataclasses.asdict(arguments.sampling))


def described(settings: dict[str, Any]) -> str:
    """How the samples were made, in a sentence."""
    names = [each.name for each in dataclasses.fields(Sampling)]
    asked = ", ".join(f"{name} {settings[name]}" for name in (*names, "seed"))
    return (
        f"In percent, with 95 % intervals over problems. Prompt format {settings['prompt_format']}; {asked}; "
        f"{settings['backend']}."
    )


def read_folder(folder: Path) -> dict[str, Any] | None:
    """What a folder's samples were made with; `None` where it says nothing."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: found[key] for key in ("settings", "problems", "answers")}
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"'{path}' is damaged, or of another version of this program: {error!r}.") from error


def check_folder(arguments: EvalArguments, settings: dict[str, Any], benchmarks: list[Problems]) -> dict[str, Any]:
    """
    Compares what is asked for with what the folder's samples were made with.

    Args:
        arguments ([`EvalArguments`]):
            The evaluation.
        settings (`dict`):
            From [`settings_of`].
        benchmarks (`list[Problems]`):
            The benchmarks.

    Returns:
        `dict`: the contents of the settings' file, those of now included.

    Raises:
        [`ValueError`]: the folder has samples that were made otherwise; the message names the differences.
    """
    folder = Path(arguments.output_dir)
    now = {
        "settings": settings,
        "problems": {each.name: each.questions for each in benchmarks},
        "answers": {each.name: each.golds for each in benchmarks},
    }
    olds = read_folder(folder)
    if olds is None:
        if any(folder.glob("records/*/*.jsonl.gz")):
            raise ValueError(f"'{folder}' has records and no {SETTINGS}: nobody knows how they were made.")
        return now
    changed = {name: (olds["settings"].get(name), value) for name, value in settings.items()}
    changed.pop("n")  # a sample is the same however many there are beside it
    if settings["weights"] is not None:  # the same model by another path
        changed.pop("model")
    if settings["adapter_weights"] is not None:
        changed.pop("adapter")
    changed |= {f"problems of {name}": (olds["problems"].get(name, new), new) for name, new in now["problems"].items()}
    if not arguments.rescore:
        changed |= {
            f"answers of {name}": (olds["answers"].get(name, new), new) for name, new in now["answers"].items()
        }
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    if changed:
        difference = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in changed.items())
        raise ValueError(
            f"'{folder}' holds samples that were made otherwise: {difference}. Set `output_dir` to another folder, or "
            "the settings back. Answers that were corrected are taken over by `rescore`."
        )
    return {key: olds[key] | now[key] for key in now}


def bind_folder(arguments: EvalArguments, settings: dict[str, Any], benchmarks: list[Problems]) -> None:
    """Writes down what the folder's samples are made with, once there is a model to make them with."""
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # Several processes begin at once, perhaps with different settings: one binds the folder, the others are compared
    with FileLock(folder / f"{SETTINGS}.lock"):
        text = json.dumps(check_folder(arguments, settings, benchmarks), indent=2)
        own = folder / f"{SETTINGS}.{os.getpid()}"
        own.write_text(text + "\n", encoding="utf-8")
        own.replace(folder / SETTINGS)


def fingerprint(model: str | None) -> str | None:
    """
    What tells a model in a folder from one that another training left there: a checksum over its weights (of large
    files over a part of every MiB), configuration, tokenizer and chat template. `None` for a model of the Hub.
    """
    if model is None or not Path(model).is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted({path for pattern in OF_A_MODEL for path in Path(model).glob(pattern) if path.is_file()}):
        size = path.stat().st_size
        found.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            if size <= WHOLE:
                found.update(file.read())
                continue
            for start in range(0, size, STRIDE):
                file.seek(start)
                found.update(file.read(READ))
    return found.hexdigest()[:16]
