"""A guide of your own, in ten lines, trained for two steps on countdown.

    python examples/custom_guide.py

The same guide in a recipe, or behind one:

    accelerate launch --config_file recipes/accelerate_configs/cpu.yaml -m sage_trl.train \
        --config recipes/countdown/grpo.yaml --guide examples/custom_guide.py:SurprisalGuide \
        --guide_kwargs '{"scale": 0.2}' --max_steps 2 --output_dir outputs/surprisal
"""

from pathlib import Path

from sage_trl import GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer


class SurprisalGuide(GuideFunction):
    """Raises the anchor of a token by `scale` for each nat of its surprisal, up to 3 nats."""

    requires = ("policy_logps",)

    def __init__(self, scale: float = 0.1):
        self.scale = scale

    def __call__(self, signals):  # q, shape (B, T)
        return 1 + self.scale * (-signals.policy_logps).clamp(max=3.0)


def main(output_dir: str = "outputs/custom_guide") -> list[dict[str, float]]:
    from sage_trl.data.countdown import make_countdown
    from sage_trl.rewards.countdown import countdown_reward

    trainer = SAGEGRPOTrainer(
        model=str(Path(__file__).parent / "countdown" / "model"),
        reward_funcs=countdown_reward,
        args=SAGEGRPOConfig(
            output_dir,
            max_steps=2,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=20,
            learning_rate=1e-4,
            logging_steps=1,
            bf16=False,
            report_to="none",
        ),
        train_dataset=make_countdown(64),
        guide=SurprisalGuide(scale=0.2),
    )
    trainer.train()
    trainer.end()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    for entry in main():
        print({name: value for name, value in entry.items() if name.startswith("sage/")})
