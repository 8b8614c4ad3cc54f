"""What a trainer pushes by the real client to a Hub of one machine, and what it does when it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, CREATE, Hub
from huggingface_hub import constants
from peft import LoraConfig
from support import GOLDEN, build_trainer

from sage_trl import hub as client
from sage_trl import sft
from sage_trl.hub import PushError

ROOT = Path(__file__).parents[1]
WEIGHTS = {
    "adapter_model.safetensors",
    "adapter_config.json",
    "tokenizer.json",
    "README.md",
    "trainer_state.json",
    "sage_base.json",
}
STATES = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "sage_state_0.pt"}


@pytest.fixture
def hub(monkeypatch):
    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(client, "WAITS", (1,))
        yield hub


def trainer_of(output_dir, **settings):
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    settings = {"save_strategy": "steps", "save_steps": 1, "hub_always_push": True} | settings
    settings |= {"push_to_hub": True, "hub_model_id": "someone/model"}
    return build_trainer(output_dir, peft_config=lora, guide="branch", guide_kwargs={"threshold": 4.0}, **settings)


def commits(hub):
    return len([each for each in hub.requests if "/commit/" in each])


@pytest.mark.parametrize(
    ("strategy", "folders", "number"),
    [
        ("end", set(), 0),
        ("every_save", set(), 2),
        ("checkpoint", {"last-checkpoint"}, 2),
        ("all_checkpoints", {"checkpoint-1", "checkpoint-2"}, 2),
    ],
)
def test_a_strategy_keeps_its_meaning(hub, tmp_path, strategy, folders, number):
    trainer_of(tmp_path / "run", hub_strategy=strategy).train()
    assert commits(hub) == number
    assert {name for name in hub.files if name.startswith("adapter_model")} == (
        {"adapter_model.safetensors"} if number else set()
    )
    assert {name.partition("/")[0] for name in hub.files if "/" in name} == folders
    for folder in folders:
        names = {name.partition("/")[2] for name in hub.files if name.startswith(f"{folder}/")}
        assert names > WEIGHTS | STATES and "training_args.bin" not in names
    for name, content in hub.files.items():
        assert str(tmp_path).encode() not in content and str(ROOT).encode() not in content, name
    assert not (tmp_path / "run" / ".push").exists()
    if number:
        newest = tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors"
        assert hub.files["adapter_model.safetensors"] == newest.read_bytes()
        assert b"BranchGuide" in hub.files["README.md"] and b"None" not in hub.files["README.md"]


def test_the_newest_checkpoint_takes_the_place_of_the_last_whole(hub, tmp_path):
    hub.files |= {"last-checkpoint/sage_state_7.pt": b"of 8 processes", "mine.txt": b"stays"}
    trainer_of(tmp_path / "run", hub_strategy="checkpoint").train()
    assert "last-checkpoint/sage_state_0.pt" in hub.files and "last-checkpoint/sage_state_7.pt" not in hub.files
    assert hub.files["mine.txt"] == b"stays"


def test_a_checkpoint_is_sent_whole_although_a_limit_deletes_it(hub, tmp_path, caplog):
    hub.failures = [(COMMIT, 503, 1)]
    trainer_of(tmp_path / "run", hub_strategy="all_checkpoints", save_total_limit=1).train()
    assert not (tmp_path / "run" / "checkpoint-1").exists()
    assert {"checkpoint-1/optimizer.pt", "checkpoint-2/optimizer.pt"} <= hub.files.keys()
    assert [record.message for record in caplog.records if "sage-trl push" in record.message] == []


@pytest.mark.parametrize("what", [401, 403, 503, "drop"])
def test_a_push_that_fails_in_training_is_a_warning_and_the_last_one_completes_it(hub, tmp_path, caplog, what):
    hub.failures = [(COMMIT, what, 2 if what in (503, "drop") else 1)]
    trainer = trainer_of(tmp_path / "run", max_steps=1, hub_strategy="every_save")
    trainer.train()
    assert trainer.state.global_step == 1 and not hub.files
    (warning,) = [record.message for record in caplog.records if "sage-trl push" in record.message]
    folder = tmp_path / "run" / "checkpoint-1"
    assert warning.startswith("'someone/model' was not pushed: ") and warning.endswith(
        f"to complete the push: sage-trl push {folder} --repo someone/model The run goes on."
    )
    assert trainer.push_to_hub() == "https://huggingface.co/someone/model"
    assert hub.files.keys() >= {"adapter_model.safetensors", "README.md"} and "training_args.bin" not in hub.files


def test_a_checkpoint_that_cannot_be_kept_for_its_push_is_a_warning(hub, tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".push").write_text("no folder")
    trainer = trainer_of(tmp_path / "run")
    trainer.train()
    assert trainer.state.global_step == 2 and not commits(hub)
    assert "its files cannot be kept for it" in caplog.text


@pytest.mark.parametrize("what", [403, 503, "drop"])
def test_the_last_push_raises_and_leaves_all_files(hub, tmp_path, what):
    trainer = trainer_of(tmp_path / "run", max_steps=1, hub_strategy="end")
    trainer.train()
    hub.failures = [(COMMIT, what, 2 if what in (503, "drop") else 1)]
    with pytest.raises(PushError, match=r"complete the push: sage-trl push \S+/run --repo someone/model$"):
        trainer.push_to_hub()
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file() and not hub.files


def test_visibility_branch_and_token_are_honoured(hub, tmp_path):
    settings = {"hub_private_repo": True, "hub_revision": "trial", "hub_token": "hf_mine"}
    trainer = trainer_of(tmp_path / "run", max_steps=1, hub_strategy="end", **settings)
    trainer.push_to_hub()
    assert hub.private == {"private"} and hub.tokens == {"hf_mine"}
    posts = [each for each in hub.requests if each.startswith("POST")]
    assert "POST /api/models/someone/model/branch/trial" in posts
    assert [each for each in posts if "/commit/" in each] == ["POST /api/models/someone/model/commit/trial"]


def test_what_cannot_be_pushed_ends_a_run_before_it_trains(hub, tmp_path):
    with pytest.raises(ValueError, match="`hub_model_id` is 'a/b/c', which is no name"):
        build_trainer(tmp_path / "run", push_to_hub=True, hub_model_id="a/b/c")
    hub.failures = [(CREATE, 403, 1)]
    with pytest.raises(PushError, match="'other/model' was not made ready for a push: the Hub answered 403"):
        build_trainer(tmp_path / "run", push_to_hub=True, hub_model_id="other/model")


def test_a_push_of_a_checkpoint_by_hand_has_card_and_optimizer(hub, tmp_path):
    hub.failures = [(COMMIT, 403, 1)]
    trainer_of(tmp_path / "run", max_steps=1, hub_strategy="checkpoint").train()
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sage_trl.push", str(tmp_path / "run" / "checkpoint-1"), "--repo"]
    command += ["someone/model", "--with_optimizer"]
    environment |= {"HF_TOKEN": "hf_mine", "HF_HOME": str(tmp_path / "cache")}
    pushed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert pushed.returncode == 0, pushed.stderr[-2000:]
    assert b"BranchGuide" in hub.files["README.md"]
    assert {f"last-checkpoint/{name}" for name in WEIGHTS | STATES} <= hub.files.keys()


def test_the_first_stage_pushes_its_adapter_on_the_way_and_the_merged_model_in_the_end(hub, tmp_path, capsys):
    rows = [{"problem": f"{i}+1?", "expected_answer": f"{i + 1}", "generated_solution": f"{i + 1}"} for i in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--dataset_name", str(tmp_path / "data.jsonl"), "--model_name_or_path", str(GOLDEN / "model")]
    arguments += ["--prompt_format", "tags", "--max_length", "1000", "--max_steps", "1", "--save_steps", "1"]
    arguments += ["--use_cpu", "true", "--bf16", "false", "--report_to", "none", "--disable_tqdm", "true"]
    arguments += ["--push_to_hub", "true", "--hub_model_id", "someone/model", "--use_peft", "--lora_r", "4"]
    on_the_way = {}
    commit = hub.commit
    hub.commit = lambda body: (commit(body), on_the_way.update(hub.files) if not on_the_way else None)
    sft.run([*arguments, "--output_dir", str(tmp_path / "run")])
    assert "adapter_model.safetensors" in on_the_way and "model.safetensors" not in on_the_way
    assert "model.safetensors" in hub.files and not [name for name in hub.files if name.startswith("adapter_")]
    for name, content in [*on_the_way.items(), *hub.files.items()]:
        assert str(tmp_path).encode() not in content and str(ROOT).encode() not in content, name
    assert b"None" not in on_the_way["README.md"] + hub.files["README.md"]
