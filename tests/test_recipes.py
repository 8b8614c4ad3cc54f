import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2Config

from sage_trl import sft, train
from sage_trl.config import SEQUENCE_BETA
from sage_trl.memory import estimate, shape_of
from sage_trl.rewards import resolve_reward

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*/*.yaml") if path.parent.name != "accelerate_configs")
ACCELERATE_CONFIGS = sorted((ROOT / "recipes" / "accelerate_configs").glob("*.yaml"))
COUNTDOWN = [path for path in RECIPES if path.parent.name == "countdown"]


def identity(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", RECIPES, ids=identity)
def test_a_recipe_parses_and_starts_with_its_launch_line(path):
    module = sft if path.stem == "sft" else train
    script_args, training_args, _ = module.make_parser().parse_run(["--config", str(path), "--use_cpu", "true"])
    if module is train:
        assert all(map(resolve_reward, script_args.reward_funcs))
        assert training_args.per_device_train_batch_size % training_args.num_generations == 0
    comment = " ".join(line.strip("# \\") for line in path.read_text().splitlines() if line.startswith("#"))
    assert f"-m {module.COMMAND.module} --config {identity(path)}" in comment


def test_the_five_countdown_recipes_differ_in_guide_and_beta_alone():
    free = {"guide", "guide_kwargs", "beta", "output_dir"}
    recipes = [yaml.safe_load(path.read_text()) for path in COUNTDOWN]
    settings = [{key: value for key, value in recipe.items() if key not in free} for recipe in recipes]
    assert len(COUNTDOWN) == 5
    assert all(each == settings[0] for each in settings)
    assert {recipe["output_dir"] for recipe in recipes} == {f"outputs/countdown/{path.stem}" for path in COUNTDOWN}


@pytest.mark.parametrize("path", ACCELERATE_CONFIGS, ids=identity)
def test_accelerate_takes_its_configs(path):
    config = load_config_from_file(str(path))
    assert config.use_cpu == (path.stem == "cpu")
    assert config.mixed_precision == "no"
    assert (config.num_machines > 1) == ("multinode" in path.stem)
    if path.stem.startswith("zero"):
        assert config.deepspeed_config["zero_stage"] == int(path.stem[4])
        offloaded = {config.deepspeed_config[f"offload_{what}_device"] for what in ("optimizer", "param")}
        assert offloaded == ({"cpu"} if "offload" in path.stem else {"none"})


SIZED = ("sft", "sage_branch_qlora")  # those of another stage, and for another machine
LARGE = ("Qwen2.5-Math-7B", "Qwen2.5-Math-1.5B", "DeepSeek-R1-Distill-Qwen-7B")


@pytest.mark.parametrize("model", LARGE)
def test_the_recipes_of_a_large_model_differ_in_loss_and_anchor_alone(model):
    free = {"guide", "guide_kwargs", "anchor", "beta", "loss_type", "output_dir"}
    paths = [path for path in RECIPES if path.parent.name == model and path.stem not in SIZED]
    recipes = {path.stem: yaml.safe_load(path.read_text()) for path in paths}
    settings = [{key: value for key, value in recipe.items() if key not in free} for recipe in recipes.values()]
    assert len(recipes) == (13 if model == LARGE[0] else 9) and all(each == settings[0] for each in settings)
    for name, recipe in recipes.items():
        words = name.split("_")
        is_sequence = words[-1] == "sequence"
        assert recipe["output_dir"] == f"outputs/{model}/{name}"
        assert recipe["loss_type"] == (
            words[0] if words[0] in ("bnpo", "dapo") else "dr_grpo" if is_sequence else "grpo"
        )
        assert recipe["beta"] == (0.0 if name.endswith("no_kl") else 2.6e-4 if is_sequence else 0.05)
        assert recipe["guide"] == (words[words.index("sage") + 1] if "sage" in words else "none")
        assert recipe.get("anchor", "k3") == {"reverse": "token"}.get(words[0], "sequence" if is_sequence else "k3")


def test_the_default_beta_of_the_sequence_recipes_is_theirs():
    for name in ("sage_branch_sequence", "sage_token_sequence"):
        recipe = yaml.safe_load((ROOT / "recipes" / LARGE[0] / f"{name}.yaml").read_text())
        assert recipe["beta"] == pytest.approx(SEQUENCE_BETA / recipe["max_completion_length"], rel=0.01)


def test_the_published_settings():
    for model in LARGE:
        recipe = yaml.safe_load((ROOT / "recipes" / model / "sage_branch.yaml").read_text())
        for key, value in PUBLISHED.items():
            assert recipe[key] == value, (model, key)


PUBLISHED = {
    "dataset_name": "open-r1/DAPO-Math-17k-Processed",
    "dataset_config": "en",
    "max_steps": 1000,
    "num_generations": 8,
    "learning_rate": 5e-6,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "beta": 0.05,
    "epsilon": 0.2,
    "per_device_train_batch_size": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.01,
    "max_prompt_length": 2048,
    "max_completion_length": 6144,
    "lora_r": 8,
    "lora_alpha": 16,
    "gradient_checkpointing": True,
    "optim": "adamw_8bit",
    "seed": 3407,
    "save_steps": 100,
    "use_vllm": True,
    "vllm_mode": "colocate",
}


@pytest.mark.parametrize("path", [path for path in RECIPES if path.parent.name in LARGE], ids=identity)
def test_a_head_names_the_memory_that_is_computed(path):
    recipe = yaml.safe_load(path.read_text())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPES[path.parent.name]), dtype=torch.bfloat16)
        lora = LoraConfig(r=recipe["lora_r"], target_modules=recipe["lora_target_modules"], task_type="CAUSAL_LM")
        if recipe.get("load_in_4bit"):
            model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
        shape = shape_of(get_peft_model(model, lora))
    is_sft = path.stem == "sft"
    tokens = recipe["max_length"] * recipe["max_text_share"] if is_sft else 2048 + 6144
    parts = estimate(
        shape,
        rows=recipe["per_device_train_batch_size"],
        tokens=int(tokens),
        optimizer=recipe["optim"],
        vllm_share=recipe.get("vllm_gpu_memory_utilization"),
    )
    assert f"about {parts['peak'] / 1024**3:.0f} GiB by --dry_run" in path.read_text()


SHAPES = json.loads((ROOT / "tests" / "data" / "model_shapes.json").read_text())


def test_the_table_of_recipes_agrees_with_the_files():
    text = (ROOT / "recipes" / "README.md").read_text()
    sections = {part.partition("\n")[0].strip(): part for part in text.split("\n## ")[1:]}
    rows = {title: re.findall(r"^\| `([\w.]+\.yaml)` \|(.*)\|$", part, re.M) for title, part in sections.items()}
    for folder in {path.parent.name for path in RECIPES} | {"accelerate_configs"}:
        files = {path.name for path in (ROOT / "recipes" / folder).glob("*.yaml")}
        named = [name for title, found in rows.items() if folder in title for name, _ in found]
        assert set(named) == files and len(named) == len(files), folder
    for path in RECIPES:
        title = next(title for title in rows if path.parent.name in title and path.name in dict(rows[title]))
        cells = [cell.strip() for cell in dict(rows[title])[path.name].split("|")]
        recipe = yaml.safe_load(path.read_text())
        if path.stem == "sft":
            continue
        assert cells[0] == recipe.get("guide", "none"), path
        assert float(cells[1]) == recipe["beta"], path
        if path.parent.name in LARGE:
            assert cells[2] == recipe["loss_type"], path
