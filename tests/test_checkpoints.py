"""Which checkpoint a run goes on from: the newest whole one, and never a torn one."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sage_trl.checkpoints import is_finished, load_state, newest_checkpoint, resolve_resume, why_torn


def make_checkpoint(folder):
    folder.mkdir(parents=True)
    save_file({"w": torch.ones(3), "b": torch.ones(2)}, folder / "model.safetensors")
    torch.save({"state": torch.ones(3)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
    return folder


@pytest.fixture
def run(tmp_path):
    for step in (2, 9, 10):
        make_checkpoint(tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-best").mkdir()
    return tmp_path


def tear(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_the_newest_counts_by_steps(run):
    assert newest_checkpoint(run).name == "checkpoint-10"
    assert resolve_resume("auto", run) == resolve_resume(True, run) == resolve_resume("true", run)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_torn_file_is_noticed_and_the_checkpoint_skipped(run, name, caplog):
    tear(run / "checkpoint-10" / name)
    assert name in why_torn(run / "checkpoint-10")
    assert newest_checkpoint(run).name == "checkpoint-9"
    assert "Skipping the torn checkpoint" in caplog.text and name in caplog.text
    with pytest.raises(ValueError, match=f"checkpoint-10', which is torn: its {name}.*Set it to 'auto'"):
        resolve_resume(str(run / "checkpoint-10"), run)


@pytest.mark.parametrize("size", [0, 4, 20])
def test_a_safetensors_file_cut_in_its_header(run, size):
    file = run / "checkpoint-10" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "model.safetensors is cut short" in why_torn(run / "checkpoint-10")


def test_a_checkpoint_without_its_last_file(run):
    (run / "checkpoint-10" / "trainer_state.json").unlink()
    assert "has no trainer_state.json" in why_torn(run / "checkpoint-10")


def test_where_there_is_none(tmp_path):
    assert all(resolve_resume(setting, tmp_path) is None for setting in ("auto", None, False, "false"))
    with pytest.raises(FileNotFoundError, match="holds no whole checkpoint.*'auto'"):
        resolve_resume("true", tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        resolve_resume(str(tmp_path / "checkpoint-3"), tmp_path)


def test_a_file_of_zeros_is_torn(run):
    file = run / "checkpoint-10" / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)  # as after a loss of power
    assert newest_checkpoint(run).name == "checkpoint-9"


@pytest.mark.parametrize(
    "name, reason", [("model.safetensors", "it has no weights"), ("optimizer.pt", "no optimizer.pt")]
)
def test_a_missing_file_is_noticed(run, name, reason):
    (run / "checkpoint-10" / name).unlink()
    assert reason in why_torn(run / "checkpoint-10")
    assert newest_checkpoint(run).name == "checkpoint-9"


def test_a_missing_shard_is_noticed(run):
    folder = run / "checkpoint-10"
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"w": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert why_torn(folder) == "it has no model-00002-of-00002.safetensors"


def test_a_run_is_finished_at_its_last_step(run):
    folder = run / "checkpoint-10"
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 10, "max_steps": 12}))
    assert [is_finished(folder, max_steps) for max_steps in (9, 10, 11, -1)] == [True, True, False, False]


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_state_is_loaded_to_a_cpu_whatever_it_is_called(device, tmp_path):
    torch.save({"step": 3, "values": torch.arange(3)}, tmp_path / "state.pt")
    state = load_state(tmp_path / "state.pt", torch.device(device))
    assert state["step"] == 3 and torch.equal(state["values"], torch.arange(3))
