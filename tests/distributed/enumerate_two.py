"""Launched by test_two_processes.py: the enumerated model, its one group split over the processes."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from enumeration import COMPLETIONS, closed_form, expected_gradient, generate, gradient_vector, tiny_trainer  # noqa: E402


def main(output_dir: str, anchor: str, kind: str):
    trainer = tiny_trainer(Path(output_dir) / "model", anchor, kind, per_device_train_batch_size=len(COMPLETIONS) // 2)
    part = expected_gradient(trainer, generate(trainer))
    measured = trainer.accelerator.reduce(part, reduction="sum")
    exact = gradient_vector(closed_form(trainer, anchor, kind), trainer.model)
    error = ((measured - exact).norm() / exact.norm()).item()
    report = {"error": error, "share": (part.norm() / exact.norm()).item()}
    (Path(output_dir) / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(report))
    trainer.end()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
