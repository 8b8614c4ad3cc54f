"""Trainers on the golden model that take their few steps in a second or two, and comparisons to the bit."""

from pathlib import Path

import torch
from datasets import Dataset

from sage_trl import GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer

GOLDEN = Path(__file__).parent / "golden"
FAST = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 6,
    "learning_rate": 1e-2,
    "temperature": 1.0,
    "beta": 0.5,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
}


def odd_sum(completion_ids, **kwargs):
    """1.0 where the token ids add up to an odd number: varies within any group of random completions."""
    return [float(sum(ids) % 2) for ids in completion_ids]


class Spy(GuideFunction):
    """Another guide, noting the seed of the noise at each call."""

    def __init__(self, guide: GuideFunction):
        self.guide = guide
        self.requires, self.looks_ahead = guide.requires, guide.looks_ahead
        self.depends_on_token = guide.depends_on_token
        self.seeds = []

    def __call__(self, signals):
        self.seeds.append(signals.generator.initial_seed())
        return self.guide(signals)


def build_trainer(output_dir, trainer_class=SAGEGRPOTrainer, config_class=SAGEGRPOConfig, **settings):
    """
    A trainer, on the golden model unless another is given. What its constructor takes is given there, every other
    setting to its config.
    """
    names = ("model", "guide_object", "reward_funcs", "peft_config", "rollout_func", "callbacks", "eval_dataset")
    given = {name: settings.pop(name) for name in names if name in settings}
    if "guide_object" in given:
        given["guide"] = given.pop("guide_object")
    return trainer_class(
        model=given.pop("model", str(GOLDEN / "model")),
        reward_funcs=given.pop("reward_funcs", odd_sum),
        args=config_class(str(output_dir), **(FAST | settings)),
        train_dataset=Dataset.from_dict({"prompt": [f"problem {i}" for i in range(16)]}),
        **given,
    )


def assert_distribution(model: torch.nn.Module, prompt_ids, sampling, tokens: list[int]) -> None:
    """That so many first tokens of one prompt follow the model's own distribution, as the sampling shapes it."""
    with torch.no_grad():
        scores = model(torch.tensor([prompt_ids])).logits[0, -1] / sampling.temperature
    if sampling.top_k:
        scores[scores < scores.topk(sampling.top_k).values[-1]] = -torch.inf
    expected = scores.softmax(-1)
    found = torch.bincount(torch.tensor(tokens), minlength=len(expected)) / len(tokens)
    assert (found[expected == 0] == 0).all()
    assert (found - expected).abs().max() < 4 * (0.25 / len(tokens)) ** 0.5


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys() and left
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"these tensors differ: {different[:3]} and {len(different)} in all"
