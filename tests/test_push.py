import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_server import Hub

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


@pytest.mark.parametrize("use_peft", [True, False])
def test_a_run_pushes_model_tokenizer_card_and_recipe_and_no_secret(tmp_path, use_peft):
    output = tmp_path / "run"
    recipe = tmp_path / "recipe.yaml"
    more = f"hub_token: {TOKEN}\nenv: {{OTHER_SECRET: {TOKEN}}}\nuse_peft: {str(use_peft).lower()}"
    recipe.write_text(RECIPE.format(root=ROOT, output=output, more=more))
    with Hub() as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
        environment.pop("HF_TOKEN", None)
        command = [sys.executable, "-m", "sage_trl.train", "--config", str(recipe), "--learning_rate", "2e-4"]
        run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Model pushed to https://huggingface.co/someone/model" in run.stdout
    assert hub.tokens == {TOKEN}
    weights = "adapter_model.safetensors" if use_peft else "model.safetensors"
    expected = {weights, "tokenizer.json", "README.md", "recipe.yaml", "sage_prompt.json"}
    assert expected <= set(hub.files)
    for name, content in [*hub.files.items(), ("log", (run.stdout + run.stderr).encode())]:
        assert TOKEN.encode() not in content, name
    for name in ("README.md", "recipe.yaml", "log"):
        content = hub.files.get(name) or (run.stdout + run.stderr).encode()
        if name != "log":
            assert str(tmp_path).encode() not in content and str(ROOT).encode() not in content, name
    pushed = yaml.safe_load(hub.files["recipe.yaml"])
    assert pushed["learning_rate"] == 2e-4 and pushed["guide_kwargs"] == {"threshold": 1.3}
    assert not {"hub_token", "env"} & set(pushed)
    assert json.loads(hub.files["sage_prompt.json"])["prompt_format"] is None
