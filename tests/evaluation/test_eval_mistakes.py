"""What `sage-trl eval` refuses, and how it says so: one line, exit code 2, before a model is loaded."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from sage_trl.eval import run
from sage_trl.evaluation.records import read_records

ROOT = Path(__file__).parents[2]
SMALL = ["--model", str(ROOT / "examples" / "countdown" / "model"), "--benchmarks", "countdown", "--num_problems", "6"]
SMALL += ["--max_completion_length", "16", "--n", "4", "--batch_size", "10", "--backend", "transformers"]


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as end:
        run([*SMALL, *map(str, arguments)])
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("dtype", "fp16", "`dtype` is 'fp16'; it must be one of ['auto', 'float32', 'bfloat16', 'float16']"),
        ("temperature", "0", "`temperature` is 0 and `n` is 4, but all samples would be the same. Set `n` to 1."),
        ("temperature", "-1", "`temperature` is -1.0; it must be at least 0"),
        ("adapter", "./nowhere", "`adapter` is './nowhere', and there is no such folder"),
        ("adapter", "examples/countdown", "has no adapter_config.json"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(setting, value, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert message in refused(capsys, f"--{setting}", value, "--output_dir", tmp_path)


def test_a_file_without_the_usual_columns_is_told_what_to_do(tmp_path, capsys):
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"frage": "1+1?", "antwort": "2"}) + "\n")
    message = refused(capsys, "--benchmarks", own, "--output_dir", tmp_path / "out")
    assert "has no column named" in message and "Rename one of its own" in message
    assert "problem_column" not in message  # a setting that this command has not


def test_a_second_process_on_the_same_shard_is_refused(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".shard-0-of-1.lock"):
        message = refused(capsys, "--output_dir", tmp_path / "out")
    assert "another process is at work on shard 0/1" in message


def test_greedy_is_one_sample_and_always_the_same(tmp_path):
    texts = []
    for seed in (0, 1):
        more = ["--n", "1", "--temperature", "0", "--seed", str(seed), "--keep_text", "true", "--output_dir"]
        run([*SMALL, *more, str(tmp_path / str(seed))])
        texts.append({row["problem"]: row["text"] for row in read_records(tmp_path / str(seed) / "records/countdown")})
    assert texts[0] == texts[1] and len(texts[0]) == 6


def test_more_samples_are_added_to_those_there_are(tmp_path):
    run([*SMALL, "--output_dir", str(tmp_path)])
    before = {(row["problem"], row["sample"]): row for row in read_records(tmp_path / "records/countdown")}
    run([*SMALL, "--n", "8", "--output_dir", str(tmp_path)])
    rows = list(read_records(tmp_path / "records/countdown"))
    assert len(rows) == 48 and len(before) == 24
    assert [row for row in rows if row["sample"] < 4] == list(before.values())
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"]["countdown"]["samples"] == 8


def test_few_problems_are_said_to_be_few(tmp_path, capsys):
    run([*SMALL, "--output_dir", str(tmp_path)])
    assert "6 problems say little about others" in capsys.readouterr().out
    assert "temperature 1.0" in (tmp_path / "results.md").read_text()


def test_stopped_by_hand_it_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "sage_trl.eval", *SMALL, "--n", "2000", "--output_dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(tmp_path.glob("records/countdown/*.gz")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "goes on where it was" in said and "Traceback" not in said


def test_what_was_not_sampled_cannot_be_judged_again(tmp_path, capsys):
    run([*SMALL, "--keep_text", "true", "--output_dir", str(tmp_path)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    message = refused(capsys, "--keep_text", "true", "--n", "8", "--rescore", "true", "--output_dir", tmp_path)
    assert "24 completions of `n` 8 were not" in message
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}


def test_batches_are_small_enough_for_the_processes_of_the_first_command_and_stay_so(tmp_path):
    names, shares = [], []
    more = ["--batch_size", "256", "--keep_text", "true", "--output_dir", str(tmp_path)]
    for shard in range(3):
        run([*SMALL, *more, "--shard", f"{shard}/4"])
    for path in sorted((tmp_path / "records/countdown").glob("*.gz")):
        names.append(path.name)
        shares.append(sum(1 for _ in gzip.open(path)))
    assert shares == [6, 6, 6] and len(names) == 3
    run([*SMALL, *more])  # alone, it does the rest, in the same batches
    assert json.loads((tmp_path / "settings.json").read_text())["settings"]["planned_for"] == 4
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"]["countdown"]["samples"] == 4
