"""How much memory training takes on each GPU, by the estimate of a dry run; and how far that is from what is measured.

    python -m benchmarks.memory             # the table: models x full or LoRA x ZeRO x GPUs
    python -m benchmarks.memory --measure   # trains small models on the CPU under Linux, minutes

The table comes from trainers that are built as a dry run builds them, without weights, in bfloat16, with the settings
below. `--measure` trains Qwen2 models of random weights for two steps, each in a process of its own, in float32. Its
measured value is how far resident memory rises at most above what it was before the trainer was built.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig

from sage_trl import SAGEGRPOConfig, SAGEGRPOTrainer
from sage_trl.dry_run import GIB, estimate_memory
from sage_trl.empty import empty_models

from .guides import MIB, peak_memory

TOKENIZER = Path(__file__).parents[1] / "examples" / "countdown" / "model"
PROMPT = "1 + 2"
# Hidden, intermediate, layers, attention heads, key and value heads, vocabulary, tied embeddings
SHAPES = {
    "Qwen2.5-Math-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-Math-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-32B": (5120, 27648, 64, 40, 8, 152064, False),
    "tiny": (64, 128, 1, 2, 2, 4000, True),
    "20M": (384, 1536, 8, 6, 2, 4000, True),
    "80M": (768, 2560, 10, 12, 4, 8000, True),
    "200M": (1024, 3584, 13, 16, 4, 16000, True),
}
LARGE, SMALL = list(SHAPES)[:3], list(SHAPES)[4:]
SETTINGS = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "beta": 0.05,
    "learning_rate": 1e-5,
    "max_steps": 2,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}
# glibc keeps what is freed, which tells of glibc: it is to give it back at once, as if asked for by each tensor
FREED = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
OF_TABLE = {"max_completion_length": 4096, "bf16": True, "gradient_checkpointing": True}
OF_MEASURE = {"max_completion_length": 256, "bf16": False, "gradient_checkpointing": False, "min_p": None}


def write_model(name: str, folder: Path, **settings) -> Path:
    """A folder with a config of a shape, and a tokenizer, without weights."""
    from transformers import Qwen2Config

    hidden, intermediate, layers, heads, kv_heads, vocabulary, tied = SHAPES[name]
    shutil.copytree(TOKENIZER, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        architectures=["Qwen2ForCausalLM"],
        **settings,
    ).save_pretrained(folder)
    return folder


def build(folder: Path, lora: bool, settings: dict, dtype: str) -> SAGEGRPOTrainer:
    return SAGEGRPOTrainer(
        model=str(folder),
        reward_funcs=longest,
        args=SAGEGRPOConfig(str(folder / "run"), model_init_kwargs={"dtype": dtype}, **(SETTINGS | settings)),
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 16}),
        peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )


def longest(completion_ids, **kwargs) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


def estimated(trainer: SAGEGRPOTrainer, generated: int, stage: int = 0, processes: int = 1) -> dict[str, float]:
    tokens = len(trainer.processing_class(PROMPT)["input_ids"]) + trainer.args.max_completion_length
    return estimate_memory(
        trainer,
        tokens=tokens,
        stage=stage,
        processes=processes,
        deepspeed=stage > 0,
        has_reference=trainer.ref_model is not None,
        generated=generated,
        vllm_share=None if generated else 0.3,
        vllm_sleeps=True,
    )


def table(names: list[str]) -> Iterator[tuple]:
    """Model, kind, stage of ZeRO, GPUs and the estimate, with a vLLM engine that sleeps while the model trains."""
    for name in names:
        for lora in (False, True):
            with tempfile.TemporaryDirectory() as folder, empty_models():
                trainer = build(write_model(name, Path(folder) / "model"), lora, OF_TABLE, "bfloat16")
            for stage in (2, 3):
                for gpus in (1, 8, 64):
                    yield name, "LoRA" if lora else "full", stage, gpus, estimated(trainer, 0, stage, gpus)


def measure(name: str, lora: bool) -> dict[str, float]:
    """Trains two steps in this process: the parts of the estimate, and `"measured"`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kept = []

    def train(name: str) -> SAGEGRPOTrainer:
        trainer = build(Path(folder) / name, lora, OF_MEASURE, "float32")
        trainer.train()
        return trainer

    with tempfile.TemporaryDirectory() as folder:
        for each in ("tiny", name):
            model = write_model(each, Path(folder) / each, eos_token_id=None)
            config = AutoConfig.from_pretrained(model)
            AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(model)
        train("tiny")  # what is loaded or set up once is no cost of the model
        gc.collect()
        peak, trainer = peak_memory(lambda: kept.append(train(name))), kept[0]
        parts = estimated(trainer, trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation)
    return parts | {"measured": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="train small models and compare")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "KIND"), help="one such model, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], options.one[1] == "LoRA")))
    elif options.measure:
        print("| model | trained | estimate, MiB | measured, MiB | error |\n| --- | --- | --- | --- | --- |")
        for name in SMALL:
            for kind in ("full", "LoRA"):
                command = [sys.executable, "-m", "benchmarks.memory", "--one", name, kind]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | FREED)
                parts = json.loads(done.stdout.splitlines()[-1])
                peak, measured = parts["peak"], parts["measured"]
                error = peak / measured - 1
                print(f"| {name} | {kind} | {peak / MIB:.0f} | {measured / MIB:.0f} | {error:+.0%} |", flush=True)
    else:
        print("GiB on each GPU, at the peak:\n")
        print("| model | trained | ZeRO | 1 GPU | 8 GPUs | 64 GPUs |\n| --- | --- | --- | --- | --- | --- |")
        rows: dict[tuple, list[str]] = {}
        for *key, _, parts in table(LARGE):
            rows.setdefault(tuple(key), []).append(f"{parts['peak'] / GIB:.1f}")
        for key, sizes in rows.items():
            print(f"| {' | '.join(map(str, key))} | {' | '.join(sizes)} |")


if __name__ == "__main__":
    main()
