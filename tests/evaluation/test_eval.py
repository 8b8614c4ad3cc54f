"""`sage-trl eval` on the demo model."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.eval import run
from sage_trl.evaluation import runner, settings
from sage_trl.evaluation.pass_at_k import pass_at_k
from sage_trl.evaluation.records import read_records
from sage_trl.evaluation.results import meanings
from sage_trl.evaluation.runner import Judge, plan
from sage_trl.evaluation.settings import parse
from sage_trl.evaluation.transformers_backend import TransformersBackend

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "countdown" / "model"
SMALL = ["--model", str(MODEL), "--benchmarks", "countdown", "--max_completion_length", "16"]
SMALL += ["--num_problems", "6", "--n", "8", "--batch_size", "10"]


def evaluate(folder, *more):
    run([*SMALL, "--output_dir", str(folder), *map(str, more)])
    return json.loads((folder / "results.json").read_text())


def rows_of(folder):
    return sorted(read_records(folder / "records" / "countdown"), key=lambda row: (row["problem"], row["sample"]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, evaluate(folder, "--keep_text", "true")


def test_results_say_what_the_records_say(whole):
    folder, results = whole
    rows, found = rows_of(folder), results["benchmarks"]["countdown"]
    assert len(rows) == 48 and {(row["problem"], row["sample"]) for row in rows} == {
        (str(i), j) for i in range(6) for j in range(8)
    }
    counts = {}
    for row in rows:
        counts[row["problem"]] = counts.get(row["problem"], 0) + (row["verdict"] == "right")
    assert found["correct"] == counts
    for k in (1, 2, 4, 8):
        figure = found["pass_at_k"][str(k)]
        assert figure["value"] == pytest.approx(pass_at_k(8, list(counts.values()), k).mean())
        for low, high in (figure["problems"], figure["samples"], figure["hierarchical"]):
            assert low <= figure["value"] <= high
    assert found["length"]["value"] == pytest.approx(sum(row["tokens"] for row in rows) / 48)
    assert (folder / "pass_at_k.png").stat().st_size > 5000
    assert "| countdown, 6 problems x 8 |" in (folder / "results.md").read_text()
    assert str(folder) not in json.dumps(results)  # results are published


def test_shards_together_are_the_whole(whole, tmp_path, capsys):
    for shard in range(3):
        run([*SMALL, "--output_dir", str(tmp_path), "--keep_text", "true", "--shard", f"{shard}/3"])
    assert "This shard is done" in capsys.readouterr().out
    assert rows_of(tmp_path) == rows_of(whole[0])
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"] == whole[1]["benchmarks"]


def test_a_launcher_s_processes_share_the_work(whole, tmp_path):
    config = ROOT / "recipes" / "accelerate_configs" / "ddp.yaml"
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(config),
        "--main_process_port",
        "0",
    ]
    command += ["-m", "sage_trl.eval", *SMALL, "--output_dir", str(tmp_path), "--keep_text", "true"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    names = sorted(path.name for path in (tmp_path / "records" / "countdown").iterdir())
    assert names == ["000-of-002.jsonl.gz", "001-of-002.jsonl.gz"]
    assert rows_of(tmp_path) == rows_of(whole[0])
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"] == whole[1]["benchmarks"]


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(whole, tmp_path):
    source, kills = random.Random(0), 0
    command = [sys.executable, "-c", "import sys; from sage_trl.eval import run; run(sys.argv[1:])", *SMALL]
    command += ["--output_dir", str(tmp_path), "--keep_text", "true"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    records = tmp_path / "records" / "countdown"
    while kills < 4:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = sum(path.stat().st_size for path in records.glob("*")) if records.is_dir() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            size = sum(path.stat().st_size for path in records.glob("*")) if records.is_dir() else 0
            if size > before:  # it has begun to write: now at any moment
                time.sleep(source.uniform(0, 0.05))
                break
            time.sleep(0.005)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 2
    evaluate(tmp_path, "--keep_text", "true")
    assert rows_of(tmp_path) == rows_of(whole[0])
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"] == whole[1]["benchmarks"]


def test_a_finished_run_samples_nothing_again(whole, monkeypatch):
    monkeypatch.setattr(TransformersBackend, "generate", lambda *args: pytest.fail("it sampled"))
    assert evaluate(whole[0], "--keep_text", "true", "--k", "1,8")["benchmarks"]["countdown"]["pass_at_k"].keys() == {
        "1",
        "8",
    }


def test_changed_settings_are_refused_with_the_difference(whole, capsys):
    with pytest.raises(SystemExit) as end:
        evaluate(whole[0], "--temperature", 0.5, "--seed", 3)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "seed was 0 and is 3" in message and "temperature was 1.0 and is 0.5" in message


def test_texts_that_were_kept_are_judged_again(tmp_path, whole, capsys, monkeypatch):
    for shard in ("0/2", "1/2"):
        run([*SMALL, "--output_dir", str(tmp_path), "--keep_text", "true", "--shard", shard])
    monkeypatch.setattr(TransformersBackend, "generate", lambda *args: pytest.fail("it sampled"))
    monkeypatch.setattr(runner.countdown, "is_correct", lambda *args: True)
    found = evaluate(tmp_path, "--keep_text", "true", "--rescore", "true")["benchmarks"]["countdown"]
    assert found["verdicts"] == {"right": 48}
    assert [path.name for path in (tmp_path / "records" / "countdown").iterdir()] == ["000-of-001.jsonl.gz"]
    shutil.rmtree(tmp_path / "records")
    with pytest.raises(SystemExit):
        evaluate(tmp_path, "--rescore", "true")
    assert "48 completions of `n` 8 were not" in capsys.readouterr().err


def test_a_model_that_was_trained_anew_is_another_one(tmp_path, capsys):
    model, arguments = tmp_path / "model", ["--benchmarks", "countdown", "--n", "1", "--num_problems", "1"]
    arguments += ["--model", str(model), "--output_dir", str(tmp_path / "out"), "--max_completion_length", "4"]
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(MODEL)
    network.save_pretrained(model)
    run(arguments)
    with torch.no_grad():
        next(network.parameters()).mul_(1.1)
    network.save_pretrained(model)
    with pytest.raises(SystemExit):
        run(arguments)
    assert "samples that were made otherwise: weights was" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named_and_does_not_bind_the_folder(tmp_path, capsys):
    arguments = ["--benchmarks", "countdown", "--n", "1", "--num_problems", "1", "--output_dir", str(tmp_path)]
    arguments += ["--max_completion_length", "4"]
    with pytest.raises(SystemExit):
        run([*arguments, "--model", "nobody-has-this"])
    assert "`model` is 'nobody-has-this', which cannot be loaded" in capsys.readouterr().err
    run([*arguments, "--model", str(MODEL)])
    assert (tmp_path / "results.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`model` is not set"),
        (["--model", str(MODEL), "--n", "4", "--k", "8"], "`k` names 8; it must lie between 1 and the 4 samples"),
        (["--model", str(MODEL), "--k", "1;2"], "`k` is '1;2'"),
        (["--model", str(MODEL), "--temperature", "0"], "`temperature` is 0"),
        (["--model", str(MODEL), "--shard", "3/3"], "`shard` is '3/3'"),
        (["--benchmarks", "countdown"], "`model` is not set"),
        (["--model", str(MODEL), "--benchmark", "countdown"], "Did you mean 'benchmarks'"),
        (["--config", "no/such.yaml"], "there is no such file"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        parse(arguments, "eval")
    assert message in str(error.value)


def test_a_recipe_gives_model_format_and_sampling():
    arguments = parse(["--config", str(ROOT / "recipes/SmolLM2-135M-Instruct/sage_branch.yaml"), "--top_p", "0.9"], "")
    assert arguments.prompt_format == "plain" and arguments.temperature == 0.5 and arguments.top_p == 0.9
    assert arguments.max_completion_length == 40 and arguments.model.endswith("SmolLM2-135M-Instruct")


def test_a_format_other_than_that_of_training_is_said(tmp_path, capsys):
    model = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(MODEL).save_pretrained(model)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(model)
    (model / "sage_prompt.json").write_text(
        json.dumps({"prompt_format": "plain", "system": None, "problem": "{problem}"})
    )
    problems = tmp_path / "own.jsonl"
    problems.write_text(json.dumps({"problem": "Numbers: 5 47 12 6 Target: 70", "answer": "47+6+5+12"}))
    arguments = ["--model", str(model), "--benchmarks", str(problems), "--n", "2", "--max_completion_length", "8"]
    run([*arguments, "--output_dir", str(tmp_path / "same")])
    assert "Note: The model was trained" not in capsys.readouterr().out
    run([*arguments, "--output_dir", str(tmp_path / "other"), "--prompt_format", "qwen-math"])
    said = "The model was trained with `prompt_format` 'plain' and is asked with 'qwen-math'."
    assert said in capsys.readouterr().out
    assert said in json.loads((tmp_path / "other" / "results.json").read_text())["settings"]["notes"]


def test_a_plan_holds_every_completion_once_and_shards_share_it():
    lengths = [5, 9, 7]
    batches = list(plan(lengths, 4, 5, (0, 1)))
    assert [len(batch) for batch in batches] == [5, 5, 2]
    assert [task.problem for batch in batches for task in batch] == [1] * 4 + [2] * 4 + [0] * 4
    shared = [list(plan(lengths, 4, 5, (shard, 2))) for shard in (0, 1)]
    assert shared[0] == batches[::2] and shared[1] == batches[1::2]


def test_a_verdict_is_computed_once(monkeypatch):
    asked = []

    def counted(golds, texts):
        asked.extend(texts)
        return original(golds, texts)

    original = runner.verdicts
    monkeypatch.setattr(runner, "verdicts", counted)
    judge, row = Judge("math"), {"answer": r"\frac{1}{2}"}
    texts = [r"\boxed{0.5}", r"so \boxed{0.5}", r"\boxed{3}", "nothing"]
    assert [verdict for _, verdict in judge([row] * 4, texts)] == ["right", "right", "wrong", "wrong"]
    assert len(asked) == 3
    assert judge([row], [r"again \boxed{0.5}"]) == [("0.5", "right")]
    assert len(asked) == 3


def test_a_score_is_no_function_of_the_last_problem(tmp_path):
    problems = tmp_path / "two.jsonl"
    rows = [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "2"}]
    problems.write_text("\n".join(map(json.dumps, rows)))
    judge = Judge("math")
    assert [verdict for _, verdict in judge(rows, [r"\boxed{1}", r"\boxed{1}"])] == ["right", "wrong"]
    assert [verdict for _, verdict in judge(rows[::-1], [r"\boxed{1}", r"\boxed{1}"])] == ["wrong", "right"]


def test_what_could_not_be_judged_is_said():
    from sage_trl.evaluation.results import warnings_of

    found = {
        "benchmark": "x",
        "problems": 3,
        "verdicts": {"right": 5, "timeout": 2, "wrong": 3},
        "truncated": {"value": 0.2},
        "answer_found": {"value": 0.3},
    }
    said = " ".join(warnings_of(found))
    assert "2 timeout of 10 completions could not be judged and count as wrong" in said
    assert "20 % of the completions were cut off" in said and "only 30 % of the completions have an answer" in said


def test_equal_answers_are_one_vote_however_they_are_written(tmp_path):
    texts = [r"\boxed{0.75}", r"\boxed{\frac{3}{4}}", r"\boxed{3/4}", r"\boxed{2}", r"\boxed{2.0}", r"\boxed{1}", "?"]
    judged = Judge("math")([{"answer": r"\frac{3}{4}"}] * len(texts), texts)
    rows = [{"sample": i, "answer": a, "verdict": v} for i, (a, v) in enumerate(judged)]
    found = meanings(rows, "math")
    assert found[0] == found[1] == found[2] and found[3] == found[4]
    assert len({found[0], found[3], found[5]}) == 3 and found[6] is None
    expressions = [row | {"answer": answer} for row, answer in zip(rows, ("1+2", "2+1"), strict=False)]
    assert meanings(expressions, "countdown") == ["1+2", "2+1"]


def test_benchmarks_of_one_name_are_refused_and_can_be_named(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        row = {"problem": f"Numbers: 5 47 12 6 Target: 7{len(folder)}", "answer": "1"}
        (tmp_path / folder / "t.jsonl").write_text(json.dumps(row))
    arguments = [
        "--model",
        str(MODEL),
        "--n",
        "1",
        "--max_completion_length",
        "4",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    first, second = (str(tmp_path / folder / "t.jsonl") for folder in ("a", "b"))
    with pytest.raises(SystemExit):
        run([*arguments, "--benchmarks", f"{first},{second}"])
    assert "holds 2 that are called 't'" in capsys.readouterr().err
    run([*arguments, "--benchmarks", f"{first},other={second}"])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["benchmarks"]) == ["t", "other"]
    with pytest.raises(SystemExit):
        run([*arguments, "--benchmarks", f"countdown={second}"])
    assert "countdown is generated" in capsys.readouterr().err


def test_a_later_benchmark_leaves_the_results_of_an_earlier_one(whole, tmp_path):
    problems = tmp_path / "own.jsonl"
    problems.write_text(json.dumps({"problem": "Numbers: 5 47 12 6 Target: 70", "answer": "1"}))
    shutil.copytree(whole[0], tmp_path / "out")
    evaluate(tmp_path / "out", "--benchmarks", str(problems))
    assert list(evaluate(tmp_path / "out", "--benchmarks", str(problems))["benchmarks"]) == ["countdown", "own"]
    assert "| own, 1 problem x 8 |" in (tmp_path / "out" / "results.md").read_text()


def test_texts_cannot_be_kept_where_they_were_not(tmp_path, capsys):
    evaluate(tmp_path)
    with pytest.raises(SystemExit):
        evaluate(tmp_path, "--keep_text", "true")
    assert "holds completions whose texts were not kept" in capsys.readouterr().err


def test_every_k_that_was_asked_for_is_in_the_table(whole, capsys):
    evaluate(whole[0], "--k", "1,3,5")
    assert "| pass@1 | pass@3 | pass@5 |" in capsys.readouterr().out


def test_a_completion_that_could_run_past_the_model_s_positions_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(["--model", str(MODEL), "--benchmarks", "countdown", "--num_problems", "2", "--output_dir", str(tmp_path)])
    message = capsys.readouterr().err
    assert "`max_completion_length` is 3072" in message and "has 64 positions. Set it to at most" in message


def own_problems(path, golds=("1", "2"), reverse=False):
    rows = [{"problem": f"Numbers: 5 47 12 6 Target: 7{i}", "answer": gold} for i, gold in enumerate(golds)]
    path.write_text("\n".join(map(json.dumps, rows[::-1] if reverse else rows)))


def test_problems_or_answers_that_changed_are_refused_and_new_answers_can_be_judged(tmp_path, capsys):
    file, out = tmp_path / "own.jsonl", tmp_path / "out"
    arguments = ["--model", str(MODEL), "--n", "2", "--max_completion_length", "4", "--benchmarks", str(file)]
    arguments += ["--keep_text", "true", "--output_dir", str(out)]
    own_problems(file)
    run(arguments)
    for changed in ({"reverse": True}, {"golds": ("1", "3")}):
        own_problems(file, **changed)
        with pytest.raises(SystemExit):
            run(arguments)
        assert ("problems" if "reverse" in changed else "answers") + " of own was" in capsys.readouterr().err
    before = json.loads((out / "results.json").read_text())["benchmarks"]["own"]["golds"]
    run([*arguments, "--rescore", "true"])
    assert json.loads((out / "results.json").read_text())["benchmarks"]["own"]["golds"] != before
    run(arguments)  # these are its answers now
    (out / "settings.json").unlink()
    with pytest.raises(SystemExit):
        run(arguments)
    assert "nobody knows how they were made" in capsys.readouterr().err


def test_a_fingerprint_sees_every_part_of_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "WHOLE", 1000)
    monkeypatch.setattr(settings, "STRIDE", 500)
    monkeypatch.setattr(settings, "READ", 100)
    for name, content in (("model.safetensors", bytes(5000)), ("config.json", b"{}"), ("chat_template.jinja", b"a")):
        (tmp_path / name).write_bytes(content)
    seen = {settings.fingerprint(str(tmp_path))}
    changed = bytearray(5000)
    changed[2300:2900] = b"x" * 600  # a tensor in the middle
    for name, content in (("model.safetensors", changed), ("config.json", b"[]"), ("chat_template.jinja", b"b")):
        (tmp_path / name).write_bytes(content)
        seen.add(settings.fingerprint(str(tmp_path)))
    assert len(seen) == 4
    (tmp_path / "README.md").write_text("a card")
    assert settings.fingerprint(str(tmp_path)) in seen


def test_the_same_model_by_another_path_goes_on(whole, monkeypatch):
    monkeypatch.setattr(TransformersBackend, "generate", lambda *args: pytest.fail("it sampled"))
    evaluate(whole[0], "--model", f"{MODEL}/")


def test_what_is_solved_so_far_is_no_matter_of_length():
    order = [batch[0].problem for batch in plan(list(range(100, 0, -1)), 4, 4, (0, 1))]
    assert order[0] == 0 and sorted(order) == list(range(100))
    assert abs(np.corrcoef(order, range(100))[0, 1]) < 0.25
