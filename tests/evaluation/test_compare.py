"""`sage-trl compare`: what the report says, in every form."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sage_trl.compare import run
from sage_trl.evaluation.benchmarks import Problems
from sage_trl.evaluation.pass_at_k import pass_at_k
from sage_trl.evaluation.records import Records
from sage_trl.evaluation.results import collect, summarize, write_results
from sage_trl.reports.compare import markdown

IDS = [f"p{i}" for i in range(40)]


def write_evaluation(folder, rates, seed, n=16, names=("math500", "<b>own</b>")):
    source, summaries = np.random.default_rng(seed), []
    for name in names:
        problems = Problems(name, [{"id": key, "answer": "1"} for key in IDS], "0123456789abcdef")
        records = Records(folder / "records" / re.sub(r"\W", "", name))
        for key, rate in zip(IDS, rates, strict=True):
            right = source.random(n) < rate
            records.append(
                [
                    {"problem": key, "sample": i, "tokens": 9, "finish": "stop", "answer": str(int(each))}
                    | {"verdict": "right" if each else "wrong"}
                    for i, each in enumerate(right)
                ]
            )
        summaries.append(summarize(collect(problems, records.folder, n), [1, 4, 16]))
    write_results(folder, {}, summaries)
    return folder


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluations")
    rates = np.random.default_rng(0).beta(0.4, 1.2, size=len(IDS))
    better = np.clip(rates + 0.25, 0, 1)
    found = {"base": (rates, 1), "same_1": (rates, 2), "better": (better, 3)}
    return [f"{name}={write_evaluation(root / name, *how)}" for name, how in found.items()]


@pytest.fixture(scope="module")
def report(evaluations, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    run([*evaluations, "--output", str(folder)])
    return folder


def test_what_is_there_is_seen_and_what_is_not_is_not(report):
    pairs = json.loads((report / "compare.json").read_text())["benchmarks"]["math500"]["pairs"]
    by_name = {(pair["ours"], pair["theirs"]): pair for pair in pairs}
    same, better = by_name["same_1", "base"]["difference"]["1"], by_name["better", "base"]["difference"]["1"]
    assert same["interval"][0] <= 0 <= same["interval"][1] and same["p_holm"] > 0.05
    assert better["interval"][0] > 0.1 and better["p_holm"] < 0.01
    text = (report / "report.md").read_text()
    assert "no difference seen" in text and "| higher |" in text
    assert re.search(r"one of this size would take about [\d,]+ problems to see", text)


def test_every_form_says_the_same(report, evaluations, capsys):
    run([*evaluations, "--output", str(report), "--latex"])
    printed = capsys.readouterr().out
    assert (report / "report.md").read_text() in printed
    figure = json.loads((report / "compare.json").read_text())["benchmarks"]["math500"]["pass_at_k"]["same_1"]["4"]
    value = f"{100 * figure['value']:.1f}"
    page = (report / "index.html").read_text()
    assert value in page and r"same\_1 & " in printed and f"& {value} &" in printed
    assert (report / "pass_at_k.png").stat().st_size > 10_000


def test_the_page_is_safe_and_fetches_nothing(report):
    page = (report / "index.html").read_text()
    assert "<b>own</b>" not in page and "&lt;b&gt;own&lt;/b&gt;" in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "'a' is no evaluation; write name=folder"),
        (["a=no/such"], "'no/such' has no results.json"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        run(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_evaluations_at_other_k_are_compared_at_all_of_them(evaluations, tmp_path):
    found = json.loads((Path(evaluations[0].partition("=")[2]) / "results.json").read_text())
    for name, keep in (("first", ("1", "4")), ("second", ("4", "16"))):
        for each in found["benchmarks"].values():
            each["pass_at_k"] = {k: each["pass_at_k"].get(k, {"value": 0.5, "problems": [0.4, 0.6]}) for k in keep}
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(found))
    run([f"a={tmp_path / 'first'}", f"b={tmp_path / 'second'}", "--output", str(tmp_path / "report")])
    pair = json.loads((tmp_path / "report" / "compare.json").read_text())["benchmarks"]["math500"]["pairs"][0]
    assert pair["difference"].keys() == {"1", "4", "16"} and (tmp_path / "report" / "index.html").is_file()


def test_the_k_of_a_report_can_be_chosen(evaluations, tmp_path, capsys):
    run([*evaluations, "--output", str(tmp_path), "--k", "2,5"])
    found = json.loads((tmp_path / "compare.json").read_text())["benchmarks"]["math500"]
    correct = json.loads((Path(evaluations[0].partition("=")[2]) / "results.json").read_text())
    counts = np.array(list(correct["benchmarks"]["math500"]["correct"].values()))
    assert found["pass_at_k"]["base"]["5"]["value"] == pytest.approx(pass_at_k(16, counts, 5).mean())
    with pytest.raises(SystemExit):
        run([*evaluations, "--output", str(tmp_path), "--k", "17"])
    assert "some evaluation has 16 samples" in capsys.readouterr().err


def test_evaluations_that_were_sampled_otherwise_are_named(evaluations, tmp_path, capsys):
    found = json.loads((Path(evaluations[0].partition("=")[2]) / "results.json").read_text())
    settings = {"hot": {"temperature": 1.0, "seed": 0}, "cold": {"temperature": 0.6, "seed": 0}}
    for name, each in (settings | {"twin": settings["hot"]}).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(found | {"settings": each}))
    run([*(f"{name}={tmp_path / name}" for name in ("hot", "cold", "twin")), "--output", str(tmp_path / "report")])
    said = (
        "Not sampled alike: the temperature is 1.0 for hot, 0.6 for cold, 1.0 for twin.",
        "twin' are the same samples",
    )
    for text in (capsys.readouterr().out, (tmp_path / "report" / "report.md").read_text()):
        assert all(each in text for each in said)
    page = (tmp_path / "report" / "index.html").read_text()
    assert said[0] in page and "are the same samples" in page
    assert json.loads((tmp_path / "report" / "compare.json").read_text())["settings"]["cold"]["temperature"] == 0.6


def test_one_evaluation_alone_is_refused(evaluations, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run([evaluations[0], "--output", str(tmp_path)])
    assert "two evaluations or more" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run([evaluations[0]] * 2)
    assert "two evaluations are called 'base'" in capsys.readouterr().err


def test_results_by_hand(tmp_path):
    """4 problems of 8 samples: 0, 1, 4 and 8 correct."""
    problems = Problems("hand", [{"id": key, "answer": "1"} for key in "abcd"], "x")
    records = Records(tmp_path)
    for key, correct in zip("abcd", (0, 1, 4, 8), strict=True):
        answers = ["1"] * correct + ["2"] * (4 if key == "a" else 0)
        answers += [None] * (2 if key == "a" else 0)
        answers += [str(10 + i) for i in range(8 - len(answers))]
        records.append(
            [
                {"problem": key, "sample": i, "tokens": 10 * (i + 1), "finish": "length" if i == 7 else "stop"}
                | {"answer": answer, "verdict": "right" if answer == "1" else "wrong"}
                for i, answer in enumerate(answers)
            ]
        )
    found = summarize(collect(problems, tmp_path, 8), [1, 2, 8])
    assert found["correct"] == {"a": 0, "b": 1, "c": 4, "d": 8}
    # pass@2: 0; 1 - C(7,2)/C(8,2) = 1/4; 1 - C(4,2)/C(8,2) = 11/14; 1
    by_hand = {"1": (0 + 1 / 8 + 1 / 2 + 1) / 4, "2": (0 + 1 / 4 + 11 / 14 + 1) / 4, "8": 3 / 4}
    assert {k: figure["value"] for k, figure in found["pass_at_k"].items()} == pytest.approx(by_hand)
    # maj@8: a: "2" wins, wrong; b: eight answers tie, one is right; c: "1" four times; d: "1"
    assert found["majority_at_k"]["8"]["value"] == pytest.approx((0 + 1 / 8 + 1 + 1) / 4)
    assert found["length"]["value"] == 45 and found["truncated"]["value"] == 1 / 8
    assert found["answer_found"]["value"] == pytest.approx((6 / 8 + 3) / 4)
    assert found["distinct_answers"]["value"] == (3 + 8 + 5 + 1) / 4
    assert found["verdicts"] == {"right": 13, "wrong": 19}


def test_missing_records_are_no_results(tmp_path):
    problems = Problems("x", [{"id": "a", "answer": "1"}], "x")
    Records(tmp_path).append([{"problem": "a", "sample": 0, "verdict": "right"}])
    with pytest.raises(ValueError, match="lacks 3 completions"):
        summarize(collect(problems, tmp_path, 4), [1])
    with pytest.raises(ValueError, match="a problem 'a' that y has not"):
        summarize(collect(Problems("y", [{"id": "b"}], "x"), tmp_path, 1), [1])


def test_names_are_letters_and_nothing_else_in_every_form(evaluations, tmp_path, capsys):
    odd = ["$\\frac$", "a|b\n<script>", "a#b${c}^~\\e_f"]
    named = [f"{name}={each.partition('=')[2]}" for name, each in zip(odd, evaluations, strict=True)]
    run([*named, "--output", str(tmp_path), "--latex"])
    said, report = capsys.readouterr().out, (tmp_path / "report.md").read_text()
    assert r"a\#b\$\{c\}\textasciicircum{}\textasciitilde{}\textbackslash{}e\_f" in said
    assert "<script>" not in report and r"a\|b \<script\>" in report
    assert "<script>" not in (tmp_path / "index.html").read_text()


def test_a_benchmark_that_not_all_have_is_named(evaluations, tmp_path, capsys):
    found = json.loads((Path(evaluations[0].partition("=")[2]) / "results.json").read_text())
    for name, kept in (("a", found["benchmarks"]), ("b", {"math500": found["benchmarks"]["math500"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(found | {"benchmarks": kept}))
    run([f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}", "--output", str(tmp_path / "report")])
    assert "Not compared, since not all have it: " in capsys.readouterr().out


def test_a_number_of_problems_that_nobody_has_is_not_counted_out(report):
    comparison = json.loads((report / "compare.json").read_text())
    figure = comparison["benchmarks"]["math500"]["pairs"][0]["difference"]["1"]
    figure |= {"interval": [-0.01, 0.01], "problems_to_settle": 9e7}
    assert "would take more than 1,000,000 problems to see" in markdown(comparison)
