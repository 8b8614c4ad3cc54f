"""What a guide prepares on whole groups reaches it with the completions that it belongs to."""

import pytest
import torch
from support import build_trainer

from sage_trl import GuideFunction


class Numbered(GuideFunction):
    """Numbers the completions of a generation, and notes which numbers come with which ids."""

    def __init__(self):
        self.prepared, self.seen = [], []

    def prepare(self, rollout):
        self.prepared.append(rollout)
        numbers = torch.arange(len(rollout.mask)).float()
        return {"number": numbers, "token": numbers.unsqueeze(1) + torch.zeros(rollout.mask.shape)}

    def __call__(self, signals):
        self.seen.append((signals.completion_ids, signals.extra))
        return torch.ones(signals.mask.shape)


@pytest.mark.parametrize("anchor", ["k3", "sequence"])
def test_what_a_guide_prepares_travels_with_its_completions(tmp_path, anchor):
    guide = Numbered()
    settings = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    trainer = build_trainer(tmp_path, guide_object=guide, anchor=anchor, num_generations=4, max_steps=2, **settings)
    trainer.train()
    (rollout,) = guide.prepared
    assert rollout.completion_ids.shape == rollout.mask.shape and len(rollout.mask) == 8
    assert rollout.group.tolist() == [0] * 4 + [1] * 4
    assert torch.equal(rollout.correct, rollout.rewards > 0.5)
    assert len(guide.seen) == (4 if anchor == "k3" else 1)
    numbers = []
    for ids, extra in guide.seen:
        assert extra["token"].shape == ids.shape and torch.equal(extra["token"][:, 0], extra["number"])
        for row, number in zip(ids, extra["number"].long().tolist(), strict=True):
            assert torch.equal(row, rollout.completion_ids[number])
            numbers.append(number)
    assert sorted(numbers) == list(range(8))
