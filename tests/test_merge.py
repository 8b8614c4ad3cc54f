import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, constants
from peft import LoraConfig
from support import GOLDEN, build_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_trl.fingerprint import describe_base, fingerprint
from sage_trl.hub import published_files
from sage_trl.merge import check_same, run, some_logits

BASE = str(GOLDEN / "model")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with LoRA on a base that may be moved: the base, the output folder, and the trained model's logits."""
    folder = tmp_path_factory.mktemp("merge")
    shutil.copytree(BASE, folder / "base")
    lora = LoraConfig(r=4, target_modules="all-linear")
    more = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.1, "gradient_accumulation_steps": 1}
    trainer = build_trainer(folder / "run", peft_config=lora, guide="branch", guide_kwargs={"threshold": 4.0}, **more)
    trainer.model.get_base_model().config._name_or_path = str(folder / "base")
    for config in trainer.model.peft_config.values():
        config.base_model_name_or_path = str(folder / "base")
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    return folder / "base", folder / "run", some_logits(trainer.model.eval())


def refused(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as end:
        run([str(each) for each in argv])
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("sage-trl: error: ")


@pytest.mark.parametrize("part", ["", "checkpoint-2"])
def test_the_merged_model_computes_what_the_trained_one_does(trained, tmp_path, capsys, part):
    _, folder, expected = trained
    run([str(folder / part), "--output", str(tmp_path / "merged")])
    assert f"Merged into {tmp_path / 'merged'}; its logits differ by " in capsys.readouterr().out
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(BASE)
    torch.testing.assert_close(some_logits(merged), expected, atol=1e-4, rtol=1e-4)
    assert (some_logits(base) - expected).abs().max() > 1e-2  # training changed something
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").vocab_size > 0
    assert {"model.safetensors", "config.json", "generation_config.json", "README.md", "tokenizer.json"} <= set(
        published_files(tmp_path / "merged")
    )
    assert not list((tmp_path / "merged").glob("adapter_*"))
    card = ModelCard.load(tmp_path / "merged" / "README.md")
    assert card.data.library_name == "transformers" and str(tmp_path) not in str(card)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes_within_its_own_rounding(trained, tmp_path, dtype):
    run([str(trained[1]), "--output", str(tmp_path / "merged"), "--dtype", dtype])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert merged.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(("dtype", "passes", "fails"), [("float32", 5e-5, 2e-4), ("bfloat16", 4e-2, 6e-2)])
def test_a_difference_beyond_rounding_is_named_with_its_limit(dtype, passes, fails):
    logits = torch.tensor([[3.0, -4.0]])
    assert check_same(logits, logits * (1 + passes), dtype) == pytest.approx(passes, rel=1e-2)
    with pytest.raises(ValueError, match=f"by {fails:.1e} of their norm, and .* is what rounding in {dtype}"):
        check_same(logits, logits * (1 + fails), dtype)
    with pytest.raises(ValueError, match="by nan"):
        check_same(logits, logits * torch.nan, dtype)


def test_the_fingerprint_is_of_the_weights_and_not_of_their_place(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(BASE)
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    assert fingerprint(str(tmp_path / "shards")) == fingerprint(BASE) is not None
    assert fingerprint(str(Path(__file__).parents[1] / "examples" / "countdown" / "model")) != fingerprint(BASE)
    model.model.layers[0].mlp.up_proj.weight.data += 1e-3  # another training of one layer
    model.save_pretrained(tmp_path / "other")
    assert fingerprint(str(tmp_path / "other")) != fingerprint(BASE)


def test_a_base_of_the_hub_is_recorded_with_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository, commits = tmp_path / "models--someone--base", {"main": "a" * 40, "trial": "b" * 40}
    (repository / "refs").mkdir(parents=True)
    other = AutoModelForCausalLM.from_pretrained(BASE)
    other.lm_head.weight.data += 1
    for branch, commit in commits.items():
        (repository / "refs" / branch).write_text(commit)
        (other if branch == "trial" else AutoModelForCausalLM.from_pretrained(BASE)).save_pretrained(
            repository / "snapshots" / commit
        )
    found = {}
    for branch, commit in commits.items():
        model = AutoModelForCausalLM.from_pretrained("someone/base", revision=branch, cache_dir=tmp_path)
        found[branch] = describe_base(model, branch)
        assert found[branch]["commit"] == commit
        assert found[branch]["fingerprint"] == fingerprint(str(repository / "snapshots" / commit))
    assert found["main"]["fingerprint"] == fingerprint(BASE) != found["trial"]["fingerprint"]


def test_another_base_is_refused_and_a_moved_one_is_named(trained, tmp_path, capsys):
    base, folder, _ = trained
    copy, moved, other = tmp_path / "run", tmp_path / "moved", tmp_path / "other"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "gone")
    (copy / "adapter_config.json").write_text(json.dumps(config))
    output = ("--output", tmp_path / "merged")
    assert refused(capsys, copy, *output) == (
        f"the adapter's base is '{tmp_path}/gone', and there is no such folder. Say where it lies by `--base`."
    )
    model = AutoModelForCausalLM.from_pretrained(BASE)
    model.lm_head.weight.data *= 1.01
    model.save_pretrained(other)
    message = refused(capsys, copy, *output, "--base", other)
    assert f"'{other}' is not the model that the adapter was trained on: its weights have the fingerprint" in message
    assert "'nowhere' has no weights as safetensors files" in refused(capsys, copy, *output, "--base", "nowhere")
    assert not (tmp_path / "merged").exists()
    shutil.copytree(base, moved)
    run([str(copy), "--output", str(tmp_path / "merged"), "--base", str(moved)])
    assert (tmp_path / "merged" / "model.safetensors").is_file()


def test_a_model_from_no_place_or_one_that_is_gone_has_no_record(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(BASE)
    for name in ("", "my tiny model", str(tmp_path / "gone")):
        model.config._name_or_path = name
        assert describe_base(model, None) is None


def test_an_adapter_without_a_record_needs_a_word(trained, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained[1], copy)
    (copy / "sage_base.json").unlink()
    message = refused(capsys, copy, "--output", tmp_path / "merged")
    assert f"'{copy}' has no sage_base.json" in message and message.endswith(
        "Add `--unchecked` if you know that it is."
    )
    run([str(copy), "--output", str(tmp_path / "merged"), "--unchecked"])
    assert (tmp_path / "merged" / "model.safetensors").is_file()


def test_a_folder_that_cannot_be_right_is_named(trained, capsys):
    folder = trained[1]
    assert "is there already. Name a new folder" in refused(capsys, folder, "--output", folder)
    assert "has no adapter_config.json" in refused(capsys, BASE, "--output", folder / "merged")
