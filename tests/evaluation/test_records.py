"""Records survive being cut off anywhere."""

import pytest

from sage_trl.evaluation.records import Records, read_records, repair

BATCHES = [[{"problem": str(i), "sample": j, "answer": "½ \n \ud800"} for j in range(3)] for i in range(4)]


@pytest.fixture
def written(tmp_path):
    records = Records(tmp_path)
    for batch in BATCHES:
        records.append(batch)
    return records


def test_what_is_written_is_read(written):
    assert list(written) == [row for batch in BATCHES for row in batch]


def test_cut_off_at_any_byte_it_goes_on_with_the_whole_batches(written):
    content = written.path.read_bytes()
    sizes = set()
    for size in range(len(content)):
        written.path.write_bytes(content[:size])
        found = list(read_records(written.folder))  # reading alone repairs nothing
        assert found == [row for batch in BATCHES[: len(found) // 3] for row in batch]
        again = Records(written.folder)
        again.append(BATCHES[len(found) // 3])
        assert list(again) == [row for batch in BATCHES[: len(found) // 3 + 1] for row in batch]
        sizes.add(len(found))
    assert sizes == {0, 3, 6, 9}


def test_garbage_at_the_end_is_cut_off(written):
    whole = written.path.read_bytes()
    written.path.write_bytes(whole + b"\x00garbage")
    repair(written.path)
    assert written.path.read_bytes() == whole


def test_shards_are_read_together(tmp_path):
    for shard in range(3):
        Records(tmp_path, (shard, 3)).append([{"problem": str(shard), "sample": 0}])
    assert sorted(row["problem"] for row in read_records(tmp_path)) == ["0", "1", "2"]


def test_the_same_records_are_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        Records(tmp_path / name).append(BATCHES[0])
    assert Records(tmp_path / "a").path.read_bytes() == Records(tmp_path / "b").path.read_bytes()


@pytest.mark.parametrize("batch", range(3))
def test_damage_before_whole_batches_is_no_half_written_end(written, batch):
    content = bytearray(written.path.read_bytes())
    content[len(content) // 4 * batch + 30] ^= 0xFF
    written.path.write_bytes(content)
    for use in (lambda: list(read_records(written.folder)), lambda: Records(written.folder)):
        with pytest.raises(ValueError, match="is damaged at byte .*, and whole records follow"):
            use()
    assert written.path.read_bytes() == content
