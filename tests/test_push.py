import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_server import COMMIT, Hub

ROOT = Path(__file__).parents[1]
TOKEN = "hf_" + "secretSecretSecret" * 2
RECIPE = """
model_name_or_path: {root}/examples/countdown/model
bf16: false
use_cpu: true
task: countdown
task_kwargs: {{num_rows: 64}}
reward_funcs: [countdown]
guide: branch
guide_kwargs: {{threshold: 1.3}}
num_generations: 4
max_completion_length: 8
per_device_train_batch_size: 8
max_steps: 2
output_dir: {output}
report_to: none
push_to_hub: true
hub_model_id: someone/model
{more}
"""


RECORDS = {"README.md", "recipe.yaml", "sage_prompt.json", "trainer_state.json"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
MODEL = {
    True: {"adapter_model.safetensors", "adapter_config.json", "sage_base.json"},
    False: {"model.safetensors", "config.json", "generation_config.json"},
}


def train(tmp_path, hub, more, *arguments):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(root=ROOT, output=tmp_path / "run", more=f"hub_token: {TOKEN}\n{more}"))
    return command(tmp_path, hub, "train", "--config", str(recipe), *arguments)


def command(tmp_path, hub, name, *arguments, **more):
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT), **more}
    if "HF_TOKEN" not in more:
        environment.pop("HF_TOKEN", None)
    words = [sys.executable, "-m", f"sage_trl.{name}", *arguments]
    return subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("use_peft", [True, False])
def test_a_run_pushes_the_list_and_neither_paths_nor_secrets(tmp_path, use_peft):
    more = f"env: {{OTHER_SECRET: {TOKEN}}}\nuse_peft: {str(use_peft).lower()}\nsave_steps: 1\nhub_always_push: true"
    with Hub() as hub:
        run = train(tmp_path, hub, more, "--learning_rate", "2e-4")
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Model pushed to https://huggingface.co/someone/model" in run.stdout
    assert hub.tokens == {TOKEN}
    assert hub.files.keys() == MODEL[use_peft] | TOKENIZER | RECORDS
    assert len([each for each in hub.requests if "/commit/" in each]) == 3  # two steps and the end
    for name, content in hub.files.items():
        assert TOKEN.encode() not in content, name
        for path in (tmp_path, ROOT, Path.home() / ""):
            assert f"{path}/".encode() not in content and str(tmp_path).encode() not in content, name
    assert TOKEN not in run.stdout + run.stderr
    pushed = yaml.safe_load(hub.files["recipe.yaml"])
    assert pushed["learning_rate"] == 2e-4 and pushed["guide_kwargs"] == {"threshold": 1.3}
    assert not {"hub_token", "env"} & set(pushed)
    assert json.loads(hub.files["sage_prompt.json"])["prompt_format"] is None


def test_a_last_push_that_fails_is_one_line_and_the_command_in_it_completes_it(tmp_path):
    with Hub(failures=[(COMMIT, 403, 1)]) as hub:
        run = train(tmp_path, hub, "use_peft: true\nsave_strategy: 'no'\nhub_private_repo: true")
        assert run.returncode == 2 and not hub.files
        (line,) = [line for line in run.stderr.splitlines() if "sage-trl: error: " in line]
        words = f"to complete the push: sage-trl push {tmp_path}/run --repo someone/model --private"
        assert "the Hub answered 403" in line and line.endswith(words)
        assert "Traceback" not in run.stderr and f"Model saved to {tmp_path}/run" in run.stdout
        pushed = command(tmp_path, hub, *line.rpartition("sage-trl ")[2].split(), HF_TOKEN=TOKEN)
    assert pushed.returncode == 0, pushed.stderr[-2000:]
    assert hub.files.keys() == MODEL[True] | TOKENIZER | RECORDS


def test_a_name_that_cannot_be_one_is_refused_before_anything_loads(tmp_path):
    with Hub() as hub:
        run = train(tmp_path, hub, "", "--hub_model_id", "model", "--model_name_or_path", "no/such-model")
    assert run.returncode == 2 and not hub.requests
    assert "`hub_model_id` is 'model', which is no name of a repository" in run.stderr.splitlines()[-1]
