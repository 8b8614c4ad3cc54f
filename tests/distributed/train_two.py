"""Launched by test_two_processes.py under accelerate: a few steps whose groups span both processes."""

import gc
import json
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent.parent))
from support import Spy, build_trainer, weights  # noqa: E402

from sage_trl import TokenGuide  # noqa: E402
from sage_trl.guides import NoveltyGuide, ProductGuide  # noqa: E402


def empty_on_rank_1(prompts, trainer):
    """A rollout in which every completion of the second process ends at once, masked as a tool's output."""
    rank = trainer.accelerator.process_index
    ids = [[trainer.processing_class.eos_token_id] if rank else [20 + i, 30, 40] for i in range(len(prompts))]
    env_mask = [[0] if rank else [1, 1, 1] for _ in prompts]
    return {"prompt_ids": [[5, 6, 7]] * len(prompts), "completion_ids": ids, "logprobs": None, "env_mask": env_mask}


def main(output_dir: str, kind: str):
    settings = {"per_device_train_batch_size": 2, "num_generations": 4, "gradient_accumulation_steps": 2}
    if "sequence" in kind:
        settings["anchor"] = "sequence"
    if "empty" in kind:
        settings["rollout_func"] = empty_on_rank_1
    spy = Spy(TokenGuide())
    guide = ProductGuide([spy, NoveltyGuide(ngram=1)]) if "novelty" in kind else spy
    trainer = build_trainer(Path(output_dir) / "run", guide_object=guide, **settings)
    trainer.train()
    checksum = sum(
        value.double().abs().sum() for value in weights(trainer.accelerator.unwrap_model(trainer.model)).values()
    )
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    report = {"seeds": spy.seeds, "checksum": checksum.item(), "logs": logs}
    rank = trainer.accelerator.process_index
    (Path(output_dir) / f"rank{rank}.json").write_text(json.dumps(report))
    trainer.end()
    # What is left of DDP now would be dropped after its process group, which can hang a process at its very end
    assert not [thing for thing in gc.get_objects() if isinstance(thing, DistributedDataParallel)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
