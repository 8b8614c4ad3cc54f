from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from sage_trl.rewards import resolve_reward
from sage_trl.train import make_parser

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*/*.yaml") if path.parent.name != "accelerate_configs")
ACCELERATE_CONFIGS = sorted((ROOT / "recipes" / "accelerate_configs").glob("*.yaml"))
COUNTDOWN = [path for path in RECIPES if path.parent.name == "countdown"]


def identity(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", RECIPES, ids=identity)
def test_a_recipe_parses_and_starts_with_its_launch_line(path):
    script_args, training_args, model_args = make_parser().parse_run(["--config", str(path)])
    assert all(map(resolve_reward, script_args.reward_funcs))
    assert training_args.per_device_train_batch_size % training_args.num_generations == 0
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(f"--config {identity(path)}" in line for line in comment)


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
