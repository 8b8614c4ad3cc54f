"""What `sage-trl push` sends to a Hub of one machine by the real client, and what it does when that fails."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, CREATE, LARGE, Hub

from sage_trl.hub import as_published, check_repository
from sage_trl.push import make_parser

ROOT = Path(__file__).parents[1]
TOKEN = "hf_" + "secretSecretSecret" * 2
FILES = {
    "adapter_model.safetensors": b"\x00weights" * 1000,
    "adapter_config.json": b'{"base_model_name_or_path": "/home/me/models/base", "r": 4}',
    "tokenizer.json": b'{"model": {"vocab": {"/home": 0}}}',
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"---\nlibrary_name: peft\n---\n\n# Card\n",
    "recipe.yaml": b"guide: branch\n",
    "sage_prompt.json": b'{"prompt_format": null}',
    "sage_base.json": b'{"fingerprint": "0", "commit": null}',
    "trainer_state.json": b'{"best_model_checkpoint": "/home/me/run/checkpoint-2", "global_step": 2}',
}
STAYS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "sage_state_0.pt", "notes.txt", ".env")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    for name in STAYS:
        (folder / name).write_bytes(b"/home/me " + TOKEN.encode())
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "model.safetensors").write_bytes(b"older")
    return folder


def push(hub, folder, *arguments, repository="someone/model", **more):
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    environment |= {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder.parent / "cache")} | more
    command = [sys.executable, "-m", "sage_trl.push", str(folder), "--repo", repository, *arguments]
    before = contents(folder)
    pushed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert contents(folder) == before  # no file is lost or changed here, whatever happens
    assert TOKEN not in pushed.stdout + pushed.stderr
    return pushed


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_what_goes_up_is_the_list_without_paths_and_tokens(folder):
    with Hub(large=".*safetensors") as hub:
        pushed = push(hub, folder, "--private")
        assert pushed.returncode == 0, pushed.stderr[-2000:]
        assert "Pushed to https://huggingface.co/someone/model" in pushed.stdout
        assert hub.tokens == {TOKEN} and hub.private == {"private"}
        assert hub.files.keys() == FILES.keys()
        assert hub.stored and hub.files["adapter_model.safetensors"] == FILES["adapter_model.safetensors"]
        assert b'"base_model_name_or_path": "base"' in hub.files["adapter_config.json"]
        assert b'"best_model_checkpoint": "checkpoint-2"' in hub.files["trainer_state.json"]
        assert hub.files["tokenizer.json"] == FILES["tokenizer.json"]
        for name, content in hub.files.items():
            assert TOKEN.encode() not in content and b"/home/me" not in content, name
        requests = len(hub.requests)
        assert push(hub, folder).returncode == 0  # nothing is left to send
        assert not [each for each in hub.requests[requests:] if "/commit/" in each or "/large/" in each]


WHAT_HEALS = {
    "a busy Hub, at the repository": (CREATE, 503),
    "a busy Hub, at a large file": (LARGE, 503),
    "a busy Hub, at the commit": (COMMIT, 503),
    "another commit at the same time": (COMMIT, 409),
    "a connection dropped in a large file": (LARGE, "drop"),
    "a connection dropped in the commit": (COMMIT, "drop"),
    "an answer that is lost": (COMMIT, "lose"),
}


@pytest.mark.parametrize(("where", "what"), WHAT_HEALS.values(), ids=WHAT_HEALS)
def test_what_passes_is_waited_for(folder, where, what):
    with Hub(large=".*safetensors", failures=[(where, what, 1)]) as hub:
        pushed = push(hub, folder)
        assert pushed.returncode == 0, pushed.stderr[-2000:]
        assert hub.files.keys() == FILES.keys() and hub.failures == [(where, what, 0)]
        assert hub.files["adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


WHAT_STAYS = {
    "no valid token": (COMMIT, 401, "the Hub answered 401", "run `hf auth login`, or set HF_TOKEN"),
    "a token that may only read": (COMMIT, 403, "the Hub answered 403", "make one with the role 'write'"),
    "a file that is too large": (COMMIT, 413, "the Hub answered 413", "too large"),
    "a large file that is refused": (LARGE, 403, "the Hub answered 403", "make one with the role 'write'"),
}


@pytest.mark.parametrize(("where", "status", "reason", "remedy"), WHAT_STAYS.values(), ids=WHAT_STAYS)
def test_what_does_not_pass_is_one_line_and_another_push_completes_it(folder, where, status, reason, remedy):
    with Hub(large=".*safetensors", failures=[(where, status, 1)]) as hub:
        pushed = push(hub, folder)
        assert pushed.returncode == 2 and not hub.files
        (line,) = [line for line in pushed.stderr.splitlines() if "sage-trl: error: " in line]
        assert "'someone/model' was not pushed: " in line and reason in line
        assert remedy in line and line.endswith(f"to complete the push: sage-trl push {folder} --repo someone/model")
        assert "Traceback" not in pushed.stderr
        assert push(hub, folder).returncode == 0 and hub.files.keys() == FILES.keys()


def test_no_repository_may_be_made_there(folder):
    with Hub(failures=[(CREATE, 403, 1)]) as hub:
        pushed = push(hub, folder, repository="other/thing")
    assert pushed.returncode == 2 and "The token may not write to 'other'" in pushed.stderr and not hub.files


def test_a_hub_that_is_switched_off_says_so(folder):
    with Hub() as hub:
        pushed = push(hub, folder, HF_HUB_OFFLINE="1")
    assert pushed.returncode == 2 and "HF_HUB_OFFLINE is set: unset it" in pushed.stderr and not hub.requests


def test_a_merged_model_replaces_its_adapter(folder):
    with Hub() as hub:
        assert push(hub, folder).returncode == 0
        for name in ("adapter_model.safetensors", "adapter_config.json", "sage_base.json"):
            (folder / name).unlink()
        (folder / "model.safetensors").write_bytes(b"merged")
        (folder / "config.json").write_bytes(b"{}")
        assert push(hub, folder).returncode == 0
        assert {"model.safetensors", "config.json"} <= set(hub.files)
        assert not [name for name in hub.files if name.startswith(("adapter_", "sage_base"))]


def test_a_repository_keeps_the_weights_of_one_model(folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for made, names in (
        (whole, ["model.safetensors"]),
        (parts, ["model-1.safetensors", "model.safetensors.index.json"]),
    ):
        made.mkdir()
        for name in [*names, "config.json"]:
            (made / name).write_bytes(b"{}")
    with Hub() as hub:
        for made in (whole, parts, folder, whole):
            assert push(hub, made).returncode == 0
            kept = {name for name in hub.files if name.startswith(("model", "adapter", "config"))}
            assert kept == {
                each.name for each in made.iterdir() if each.name.startswith(("model", "adapter", "config"))
            }


def test_an_adapter_of_a_local_base_is_said_to_be_of_use_to_nobody_else(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder.parent)}))
    with Hub() as hub:
        pushed = push(hub, folder)
    assert pushed.returncode == 0 and f"The adapter's base is the folder '{folder.parent.name}'" in pushed.stderr


def test_optimizer_states_go_up_only_when_asked_for(folder):
    with Hub() as hub:
        asked = push(hub, folder, "--with_optimizer")
        assert asked.returncode == 2 and "no whole checkpoint" in asked.stderr and not hub.requests
        (folder / "checkpoint-2" / "trainer_state.json").write_bytes(FILES["trainer_state.json"])
        for name in ("optimizer.bin", "training_args.bin"):
            (folder / "checkpoint-2" / name).write_bytes(b"/home/me")
        (folder / "checkpoint-2" / "optimizer.bin").rename(folder / "checkpoint-2" / "optimizer_0")
        (folder / "checkpoint-2" / "optimizer_0").write_bytes(b"states")
        (folder / "checkpoint-2" / "model.safetensors").unlink()
        assert push(hub, folder, "--with_optimizer").returncode == 0
        last = {name for name in hub.files if name.startswith("last-checkpoint/")}
        assert last == {"last-checkpoint/optimizer_0", "last-checkpoint/trainer_state.json"}


@pytest.mark.parametrize("name", ["model", "a/b/c", "/tmp/model", "some one/model", "a/", "a/-b"])
def test_a_target_has_the_form_of_one(name):
    with pytest.raises(ValueError, match="is no name of a repository on the Hub. Write user/name"):
        check_repository(name, "hub_model_id")


def test_a_token_in_a_file_is_not_pushed(tmp_path):
    card = tmp_path / "README.md"
    card.write_text(f"HF_TOKEN={TOKEN}")
    with pytest.raises(ValueError, match="holds what looks like an access token"):
        as_published(card)


@pytest.mark.parametrize(("folder", "words"), [("no/such", "is no folder"), (str(ROOT / "docs"), "holds no model")])
def test_a_folder_without_a_model_is_named(folder, words):
    from sage_trl.push import push

    options = make_parser().parse_args([folder, "--repo", "someone/model"])
    assert isinstance(options, argparse.Namespace)
    with pytest.raises(FileNotFoundError, match=words):
        push(options)
