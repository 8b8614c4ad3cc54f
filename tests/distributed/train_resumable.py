"""
Launched by test_kill_and_resume.py: a run that goes on from the newest whole checkpoint, if there is one. A kind is
words of "full" or "lora", and "vllm".
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import keep_plain_weights  # noqa: E402
from support import build_trainer  # noqa: E402

from sage_trl.checkpoints import resolve_resume  # noqa: E402

# vLLM's attention wants heads of 32 or more, which the golden model does not have
VLLM = {
    "model": str(Path(__file__).parents[2] / "examples" / "countdown" / "model"),
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_max_model_length": 40,
}


def main(output_dir: str, kind: str):
    settings = {"max_steps": 24, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 2}
    settings |= {"guide": "token", "learning_rate": 1e-3, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    if "vllm" in kind:
        keep_plain_weights()
        settings |= VLLM
    if "lora" in kind:
        settings["peft_config"] = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = build_trainer(Path(output_dir) / "run", **settings)
    trainer.train(resume_from_checkpoint=resolve_resume("auto", Path(output_dir) / "run"))
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # whole, from the shards of ZeRO-3
    if trainer.is_world_process_zero():
        save_file({name: value.clone() for name, value in state.items()}, f"{output_dir}/final.safetensors")
        (Path(output_dir) / "history.json").write_text(json.dumps(trainer.state.log_history))
    trainer.end()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
