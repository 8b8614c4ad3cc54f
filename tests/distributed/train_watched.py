"""
Launched by tests, in one process or two: a short training, with pass@k measured or without. Its weights are noted, and
what was measured. A kind is words of "watched", "vllm" and "lora".
"""

import json
import sys
from pathlib import Path

from peft import LoraConfig

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import keep_plain_weights  # noqa: E402
from support import FAST, weights  # noqa: E402

from sage_trl import SAGEGRPOConfig, SAGEGRPOTrainer  # noqa: E402
from sage_trl.data.countdown import make_countdown  # noqa: E402
from sage_trl.rewards.countdown import countdown_reward  # noqa: E402

MODEL = Path(__file__).parents[2] / "examples" / "countdown" / "model"


def main(output_dir: str, kind: str):
    if "vllm" in kind:
        keep_plain_weights()
    settings = FAST | {"max_completion_length": 12, "per_device_train_batch_size": 2, "learning_rate": 1e-2}
    if "vllm" in kind:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 40}
    if "watched" in kind:
        watch = {"benchmarks": "countdown", "num_problems": 21, "n": 4, "batch_size": 8}
        settings |= {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "eval_pass_at_k": watch}
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"]) if "lora" in kind else None
    args = SAGEGRPOConfig(str(Path(output_dir) / "run"), **settings)
    trainer = SAGEGRPOTrainer(str(MODEL), countdown_reward, args, train_dataset=make_countdown(32), peft_config=lora)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    checksum = sum(value.double().abs().sum() for value in weights(model).values()).item()
    logs = [entry for entry in trainer.state.log_history if "eval_pass@4" in entry]
    drift = [
        e["sampling/sampling_logp_difference/mean"]
        for e in trainer.state.log_history
        if "loss" in e and "vllm" in kind
    ]
    rank = trainer.accelerator.process_index
    (Path(output_dir) / f"rank{rank}.json").write_text(
        json.dumps({"checksum": checksum, "logs": logs, "drift": drift})
    )
    trainer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
