import json
from pathlib import Path

import pytest

from sage_trl.evaluation.benchmarks import BENCHMARKS, checksum, load_benchmark

BENCH = Path(__file__).parents[3] / "shared" / "data" / "bench"
needs_bench = pytest.mark.skipif(not BENCH.is_dir(), reason="the benchmarks' files are not here")


def write_rows(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@needs_bench
@pytest.mark.parametrize("name", ["math500", "aime24", "amc23", "minerva"])
def test_a_local_copy_is_known_by_its_problems(name):
    problems = load_benchmark(f"{name}={BENCH / f'{name}.jsonl'}")
    assert problems.name == name and len(problems.rows) == BENCHMARKS[name].rows
    assert problems.checksum == BENCHMARKS[name].checksum
    assert set(problems.rows[0]) == {"id", "problem", "answer"}


@needs_bench
def test_another_edition_is_refused(tmp_path):
    rows = [json.loads(line) for line in (BENCH / "aime24.jsonl").read_text().splitlines()]
    with pytest.raises(ValueError, match="has 29 problems, and aime24 has 30"):
        load_benchmark("aime24=" + write_rows(tmp_path / "short.jsonl", *rows[1:]))
    rows[3]["problem"] += " Explain."
    with pytest.raises(ValueError, match="checksum .* it is another edition"):
        load_benchmark("aime24=" + write_rows(tmp_path / "other.jsonl", *rows))


def test_a_file_of_ones_own(tmp_path):
    file = write_rows(
        tmp_path / "mine.jsonl", {"question": "1 + 1?", "answer": 2}, {"question": "2 + 2?", "answer": "#### 4"}
    )
    problems = load_benchmark(file)
    assert problems.name == "mine" and [row["id"] for row in problems.rows] == ["0", "1"]
    assert [row["answer"] for row in problems.rows] == ["2", "#### 4"]
    assert len(load_benchmark(file, 1).rows) == 1 and load_benchmark(file, 1).checksum != problems.checksum


def test_countdown_is_generated():
    problems = load_benchmark("countdown", 5)
    assert problems.task == "countdown" and len(problems.rows) == 5
    assert {"prompt", "numbers", "target", "id"} <= set(problems.rows[0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "a", "answer": "1"}, {"problem": " ", "answer": "1"}], "line 2: it has no problem or no answer"),
        ([{"problem": "a", "answer": None}, {"problem": "b", "answer": "1"}], "line 1: it has no problem"),
        ([{"id": 7, "problem": "a", "answer": "1"}, {"id": 7, "problem": "b", "answer": "1"}], "the id '7' more than"),
        ([{"problem": "a"}], "no column named 'answer'"),
    ],
)
def test_no_row_is_lost_silently(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        load_benchmark(write_rows(tmp_path / "rows.jsonl", *rows))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="names 'math50', which is neither .* Did you mean 'math500'"):
        load_benchmark("math50")


def test_a_checksum_knows_the_texts_and_nothing_else():
    assert checksum(["a  b", "c"]) == checksum(["c", "a b\n"]) != checksum(["a b", "d"])
