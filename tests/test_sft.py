import json

import pytest
import torch
from support import GOLDEN
from transformers import AutoConfig, AutoModelForCausalLM

from sage_trl import sft, train
from sage_trl.data.prompts import load_prompt_format

SETTINGS = [
    *("--model_name_or_path", str(GOLDEN / "model"), "--use_cpu", "true", "--bf16", "false", "--report_to", "none"),
    *("--prompt_format", "tags", "--max_length", "1000", "--per_device_train_batch_size", "2", "--max_steps", "4"),
    *("--learning_rate", "1e-2", "--save_strategy", "no", "--logging_steps", "1", "--disable_tqdm", "true"),
]


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "problem": f"{i} + 1?",
            "expected_answer": str(i + 1),
            "generated_solution": f"<think>{i}</think>It is {i + 1}.",
        }
        for i in range(8)
    ]
    rows += [
        {"problem": "x?", "expected_answer": "x", "generated_solution": "x"},
        {"problem": "half?", "expected_answer": "1/2", "generated_solution": "a half " * 200},
        {"problem": "3?", "expected_answer": "3", "generated_solution": " "},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("lora", [True, False])
def test_both_stages_follow_each_other(data, tmp_path, capsys, lora):
    output = tmp_path / "sft"
    more = ["--use_peft", "--lora_r", "4", "--lora_target_modules", "all-linear"] if lora else []
    kwargs = json.dumps({"max_position_embeddings": 8192})
    sft.run(["--dataset_name", data, *SETTINGS, *more, "--output_dir", str(output), "--model_init_kwargs", kwargs])
    text = capsys.readouterr().out
    assert "11 rows read, 9 kept, 2 dropped" in text and f"Model saved to {output}" in text
    assert not (output / "adapter_model.safetensors").exists()
    assert AutoConfig.from_pretrained(output).max_position_embeddings == 8192
    assert load_prompt_format(output) == "tags"
    before = AutoModelForCausalLM.from_pretrained(GOLDEN / "model").state_dict()
    after = AutoModelForCausalLM.from_pretrained(output).state_dict()
    assert before.keys() == after.keys()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("mlp" in name for name in moved)
    # The second stage starts from what the first one made, in the same format
    arguments = ["--dataset_name", data, "--model_name_or_path", str(output), "--prompt_format", "tags"]
    arguments += ["--reward_funcs", "math", "--use_peft", "--max_steps", "1", "--num_generations", "2"]
    arguments += ["--per_device_train_batch_size", "2", "--max_completion_length", "4", "--use_cpu", "true"]
    arguments += ["--bf16", "false", "--report_to", "none", "--disable_tqdm", "true"]
    train.run([*arguments, "--output_dir", str(tmp_path / "rl")])
    assert (tmp_path / "rl" / "adapter_model.safetensors").exists()


def test_no_adapter_is_left_beside_the_merged_model(data, tmp_path):
    more = ["--use_peft", "--lora_r", "4", "--output_dir", str(tmp_path / "run")]
    parsed = sft.make_parser().parse_run(["--dataset_name", data, *SETTINGS, *more])
    trainer = sft.build_trainer(*parsed)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "adapter_config.json").write_text("{}")  # as an earlier run left it
    sft.COMMAND.fit(trainer, parsed[0])
    assert not list((tmp_path / "run").glob("adapter_*"))
    card = (tmp_path / "run" / "README.md").read_text()
    assert "None" not in card and str(tmp_path) not in card


def test_the_loss_is_taken_over_the_solution_alone(data, tmp_path):
    parsed = sft.make_parser().parse_run(["--dataset_name", data, *SETTINGS, "--output_dir", str(tmp_path / "run")])
    trainer = sft.build_trainer(*parsed)
    batch = next(iter(trainer.get_train_dataloader()))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        learnt = trainer.processing_class.decode(ids[labels != -100])
        assert learnt.startswith("<start_working_out>") and "</SOLUTION>" in learnt
        assert "between <SOLUTION>" in trainer.processing_class.decode(ids[labels == -100])


def test_rows_that_do_not_teach_are_dropped_and_named(data, tmp_path, capsys):
    more = ["--only_number_answers", "true", "--max_text_share", "0.9"]
    parsed = sft.make_parser().parse_run(
        ["--dataset_name", data, *SETTINGS, "--output_dir", str(tmp_path / "run"), *more, "--max_length", "1500"]
    )
    trainer = sft.build_trainer(*parsed)
    text = capsys.readouterr().out
    assert "11 rows read, 8 kept, 3 dropped" in text
    assert "dropped 1: the answer is no number (line 9)" in text
    assert "dropped 1: the solution is missing or empty (line 11)" in text
    assert "`max_text_share` x `max_length` = 1350 tokens" in text and "(line 10)" in text
    assert len(trainer.train_dataset) == 8


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--prompt_format", "tagz"], "Did you mean 'tags'"),
        (["--solution_column", "proof"], "`solution_column` is 'proof', and"),
        (["--max_text_share", "1.5"], "`max_text_share` is 1.5"),
        (["--on_bad_rows", "error"], "`on_bad_rows` is 'error', and 2 of the 11 rows"),
        (["--use_peft", "--load_in_4bit"], "an adapter cannot be merged into a quantized model"),
    ],
)
def test_mistakes_are_one_line(data, tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        sft.run(["--dataset_name", data, *SETTINGS, "--output_dir", str(tmp_path / "run"), *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_an_adapter_is_not_merged_into_a_sharded_model(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    parsed = sft.make_parser().parse_run(
        ["--dataset_name", data, *SETTINGS, "--output_dir", str(tmp_path), "--use_peft"]
    )
    with pytest.raises(ValueError, match="under ZeRO-3 or FSDP an adapter cannot be merged"):
        sft.build_trainer(*parsed)
