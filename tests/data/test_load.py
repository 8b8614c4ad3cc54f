import json

import pytest
from datasets import Dataset, DatasetDict

from sage_trl.data.countdown import make_countdown
from sage_trl.data.load import load_rows


def load(path, split="train", **kwargs):
    return load_rows(str(path), None, split, f"dataset_{split}_split", **kwargs)


@pytest.mark.parametrize(
    ("suffix", "write"), [(".jsonl", Dataset.to_json), (".csv", Dataset.to_csv), (".parquet", Dataset.to_parquet)]
)
def test_local_files_load(tmp_path, suffix, write):
    path = tmp_path / f"problems{suffix}"
    write(Dataset.from_dict({"problem": ["1 + 1?", "2 + 2?"], "level": [1, 2]}), str(path))
    rows = load(path)
    assert rows.names == ["problem", "level"]
    assert list(rows.columns["problem"]) == ["1 + 1?", "2 + 2?"]
    assert list(rows.columns["level"]) == [1, 2]
    assert list(rows.numbers) == [1, 2]


@pytest.mark.parametrize("text", ['[{"problem": "a"},\n {"problem": "b"}]', '{"problem": "a"}\n\n{"problem": "b"}\n'])
def test_json_is_a_list_or_lines(tmp_path, text):
    path = tmp_path / "problems.json"
    path.write_text("\ufeff" + text)
    rows = load(path)
    assert rows.columns["problem"] == ["a", "b"]
    assert (rows.unit, rows.numbers) == (("row", [1, 2]) if text[0] == "[" else ("line", [1, 3]))


@pytest.mark.parametrize(
    ("content", "unparsed"),
    [
        (b'{"a": 1}\n{"a": \n{"a": 2}\n', {2: "Expecting value at character 7"}),
        (b'{"a": 1}\n{"a": "\xff"}\n', {2: "is not UTF-8"}),
        (b'{"a": 1}\n[1]\n', {2: "is no JSON object"}),
        (b'[{"a": 1},\n 2]', {2: "is no JSON object"}),
        (b'[{"a": 1},\n {"a": ]', {2: "Expecting value at character 8"}),
        ('{"a": "one\u2028line"}\n'.encode(), {}),
        (b'{"a": ' + b"[" * 100_000 + b"\n", {1: "is nested too deep"}),
        (b'{"a": ' + b"1" * 10_000 + b"}\n", {1: "Exceeds the limit"}),
    ],
)
def test_what_cannot_be_parsed_is_named(tmp_path, content, unparsed):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    found = load(path).unparsed
    assert found.keys() == unparsed.keys()
    assert all(found[line].startswith(why) for line, why in unparsed.items())


def test_a_row_of_json_may_lack_a_column(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert load(path).columns == {"a": [1, None], "b": [None, 2]}


def test_text_in_a_csv_file_stays_as_it_is_written(tmp_path):
    path = tmp_path / "problems.csv"
    path.write_text('problem,answer,level\n"1, 2, ?",007,1\nNA,1.50,\n')
    rows = load(path, as_text=("problem", "answer"))
    assert list(rows.columns["problem"]) == ["1, 2, ?", "NA"]
    assert list(rows.columns["answer"]) == ["007", "1.50"]
    assert list(rows.columns["level"]) == [1.0, None]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.txt", b"1 + 1?", r"must end in one of \['.json', '.jsonl', '.csv', '.parquet'\]"),
        ("a.csv", b"problem,answer\na,b\na,b,c\n", "cannot be read as .csv: .* line 3"),
        ("a.csv", b"problem,answer\na,b,c\na,b,c\n", "more fields than its header"),
        ("a.csv", b"problem,answer\n\xff,b\n", "cannot be read as .csv"),
        ("a.parquet", b"nothing of the kind", "cannot be read as .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["missing.jsonl", "/no/such/folder"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load(name)


def test_saved_folders_load_and_an_unknown_split_is_refused(tmp_path):
    problems = make_countdown(4)
    problems.save_to_disk(tmp_path / "one")
    DatasetDict({"train": problems, "validation": problems}).save_to_disk(tmp_path / "two")
    (tmp_path / "three.json").write_text(json.dumps([{"a": 1}]))
    assert list(load(tmp_path / "one").numbers) == [1, 2, 3, 4]
    for name, splits in (("two", r"\['train', 'validation'\]"), ("three.json", r"\['train'\]")):
        with pytest.raises(ValueError, match=rf"`dataset_test_split` is 'test'.*{splits}"):
            load(tmp_path / name, "test")
