"""
Launched by benchmarks/parity.py on one engine after another: short runs, one for each case named, in one launch.
Each leaves its metrics, the seeds of its noise and its final weights. A case is words of "full" or "lora", "branch" or
"token", "k3" or "sequence", "scripted" (completions in which no process's generator has a part), "synced" (a reference
that follows the policy), "vllm" and "uncorrected" (without TRL's importance weights of what vLLM sampled).
"""

import json
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import keep_plain_weights  # noqa: E402
from support import FAST, Spy, odd_sum  # noqa: E402

from sage_trl import BranchGuide, SAGEGRPOConfig, SAGEGRPOTrainer, TokenGuide  # noqa: E402
from sage_trl.data.countdown import make_countdown  # noqa: E402

MODEL = Path(__file__).parents[2] / "examples" / "countdown" / "model"
ROWS = 8  # of one micro-batch, of all processes together
SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 40}


def scripted(prompts, trainer):
    """Completions that follow from a prompt and its place in its group, whatever process they fall to."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"] for each in prompts]
    completion_ids = []
    for row, ids in enumerate(prompt_ids, start=trainer.accelerator.process_index * len(prompts)):
        start = 3 + (7 * sum(ids) + 13 * (row % trainer.num_generations)) % 90
        completion_ids.append([*range(start, start + 3 + start % 8), tokenizer.eos_token_id])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def run(output_dir: Path, case: str) -> SAGEGRPOTrainer:
    words = case.split()
    given = {
        "max_steps": 4,
        "learning_rate": 1e-4,
        "beta": 0.05,
        "max_completion_length": 12,
        "num_generations": 4,
        "seed": 7,
        "per_device_train_batch_size": ROWS // int(os.environ.get("WORLD_SIZE", 1)),
        # TRL averages metrics over micro-batches, whose rows each process draws: a step of one is the same everywhere
        "gradient_accumulation_steps": 1 if "scripted" in words else 2,
        "anchor": "sequence" if "sequence" in words else "k3",
    }
    given |= SYNCED if "synced" in words else {}
    given |= VLLM if "vllm" in words else {}
    given |= {"vllm_importance_sampling_correction": False} if "uncorrected" in words else {}
    args = SAGEGRPOConfig(str(output_dir / "run"), **(FAST | given))
    guide = Spy(TokenGuide() if "token" in words else BranchGuide(threshold=1.3))
    lora = LoraConfig(r=4, target_modules="all-linear") if "lora" in words else None
    trainer = SAGEGRPOTrainer(
        str(MODEL),
        odd_sum,
        args,
        train_dataset=make_countdown(64),
        peft_config=lora,
        guide=guide,
        rollout_func=scripted if "scripted" in words else None,
    )
    trainer.train()
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # whole, from the shards of ZeRO-3
    name, rank = case.replace(" ", "_"), trainer.accelerator.process_index
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    (output_dir / f"{name}.{rank}.json").write_text(json.dumps({"seeds": guide.seeds, "logs": logs}))
    if trainer.is_world_process_zero():
        state = {key.removeprefix("module."): value.float().clone() for key, value in state.items()}
        save_file(state, output_dir / f"{name}.safetensors")
    return trainer


def main(output_dir: str, *cases: str):
    if any("vllm" in case for case in cases):
        keep_plain_weights()
    for case in cases:
        trainer = run(Path(output_dir), case)
        # As `end` does, whose process group the next case still needs
        trainer.model_wrapped = trainer.model
        trainer.accelerator.free_memory()
    trainer.end()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
