"""The trainer through TRL's own loop: every combination takes two optimizer steps, and says what it did."""

import json

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support import assert_same_bits, build_trainer, gradients, odd_sum, weights
from trl import GRPOConfig, GRPOTrainer

from sage_trl import BranchGuide, GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
BRANCH = {"guide": "branch", "guide_kwargs": {"ratio": 0.3, "threshold": 4.0}}
REF_BRANCH = {"guide": "branch", "guide_kwargs": {"ratio": 0.3, "threshold": 4.0, "source": "ref"}}
LORA = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
METRICS = ("q_mean", "q_min", "q_max", "active_frac", "clamped_frac", "log_q_sum", "kl_ref", "group_pass")


class Ones(GuideFunction):
    requires = ()

    def __call__(self, signals):
        return torch.ones(signals.mask.shape)


def with_tool_tokens(prompts, trainer):
    """A rollout of fixed tokens of which the second and third stand for a tool's output."""
    ids = [[20 + i, 30, 40, 50 + i, 60][: 5 - i % 2] for i in range(len(prompts))]
    return {
        "prompt_ids": [[5, 6, 7]] * len(prompts),
        "completion_ids": ids,
        "logprobs": None,
        "env_mask": [[1, 0, 0, 1, 1][: len(row)] for row in ids],
    }


COMBINATIONS = {
    **{f"loss {name}": {**BRANCH, "loss_type": name} for name in LOSS_TYPES},
    "sequence importance": {**BRANCH, "importance_sampling_level": "sequence"},
    "two iterations": {**BRANCH, "num_iterations": 2},
    "steps per generation": {**BRANCH, "steps_per_generation": 4},
    "accumulation": {**BRANCH, "gradient_accumulation_steps": 3},
    "gradient checkpointing": {**BRANCH, "gradient_checkpointing": True},
    "tool mask": {**BRANCH, "rollout_func": with_tool_tokens},
    "masked truncation": {**BRANCH, "mask_truncated_completions": True},
    "top entropy tokens": {**BRANCH, "top_entropy_quantile": 0.5},
    "entropy bonus": {**BRANCH, "entropy_coef": 0.01},
    "synced reference": {**BRANCH, "sync_ref_model": True, "ref_model_sync_steps": 1},
    "bf16 autocast": {**BRANCH, "bf16": True},
    "bf16 weights": {**BRANCH, "bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}},
    "lora": {**BRANCH, "peft_config": LORA},
    "lora with checkpointing": {**BRANCH, "peft_config": LORA, "gradient_checkpointing": True},
    "reference entropies": REF_BRANCH,
    "reference entropies, lora": {**REF_BRANCH, "peft_config": LORA},
    "reference entropies, two iterations": {**REF_BRANCH, "num_iterations": 2, "steps_per_generation": 2},
    "token guide": {"guide": "token"},
    "random guide": {"guide": "random", "guide_kwargs": {"probability": 0.5}},
    "no guide": {},
    "no guide with TRL's correction": {"use_bias_correction_kl": True},
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combination_takes_two_steps(name, make_trainer):
    trainer = make_trainer(**COMBINATIONS[name])
    before = weights(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 2
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for entry in logs:
        expected = METRICS if "reward" in entry else METRICS[:-1]  # rewards are news only where completions are new
        assert all(f"sage/{metric}" in entry for metric in expected)
        assert torch.isfinite(torch.tensor([entry["loss"], entry["grad_norm"]])).all()
        if "guide" in COMBINATIONS[name] and name != "masked truncation":  # there, nothing may be left to act on
            assert entry["sage/active_frac"] > 0
            assert entry["sage/kl_ref"] == pytest.approx(0.0, abs=1e-6) or entry["step"] > 1 or "bf16" in name
    changed = [key for key, value in trainer.model.state_dict().items() if not torch.equal(value, before[key])]
    assert changed or name == "masked truncation"


def test_metrics_reach_trainer_state(make_trainer, tmp_path):
    trainer = make_trainer(**BRANCH, save_strategy="steps", save_steps=2)
    trainer.train()
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    assert {f"sage/{metric}" for metric in METRICS} <= state["log_history"][0].keys()


def test_plain_grpo_without_a_reference(make_trainer):
    trainer = make_trainer(beta=0.0)
    trainer.train()
    logged = {key for entry in trainer.state.log_history for key in entry if key.startswith("sage/")}
    assert trainer.ref_model is None and logged == {"sage/group_pass"}


def test_group_pass_counts_prompts_by_the_named_reward(make_trainer):
    def always(completions, **kwargs):
        return [1.0] * len(completions)

    def first_of_four(completions, **kwargs):
        return [float(i == 0) for i in range(len(completions))]  # two prompts of two: one of them has a correct one

    rewards = {"reward_funcs": [always, first_of_four]}
    for pass_reward, share in ((None, 1.0), ("first_of_four", 0.5)):
        trainer = make_trainer(**rewards, pass_reward=pass_reward, max_steps=1)
        trainer.train()
        assert trainer.state.log_history[0]["sage/group_pass"] == share
    trainer = make_trainer(**rewards, pass_threshold=1.0, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["sage/group_pass"] == 0.0
    with pytest.raises(ValueError, match=r"`pass_reward` is 'alwys'.*Did you mean 'always'.*first_of_four"):
        make_trainer(**rewards, pass_reward="alwys")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_invariant_1_q_of_1_is_grpo_to_the_bit(loss_type, level, tmp_path, golden_inputs):
    settings = {"use_bias_correction_kl": False, "loss_type": loss_type, "importance_sampling_level": level}
    settings |= {"max_completion_length": 24}
    golden_inputs["importance_sampling_ratio"] = torch.ones_like(golden_inputs["ref_per_token_logps"])
    found = []
    for cls, config, guide in (
        (GRPOTrainer, GRPOConfig, {}),
        (SAGEGRPOTrainer, SAGEGRPOConfig, {"guide_object": Ones()}),
        (SAGEGRPOTrainer, SAGEGRPOConfig, {}),
    ):
        trainer = build_trainer(tmp_path, cls, config, **settings, **guide)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer._compute_loss(trainer.model, golden_inputs)
        loss.backward()
        found.append({"loss": loss.detach()} | gradients(trainer.model))
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"num_iterations": 2}], ids=str)
def test_invariant_1_through_training(settings, tmp_path):
    plain = build_trainer(tmp_path, GRPOTrainer, GRPOConfig, use_bias_correction_kl=False, **settings)
    plain.train()
    guided = build_trainer(tmp_path, guide_object=Ones(), **settings)
    guided.train()
    assert_same_bits(weights(plain.model), weights(guided.model))
    assert [e["kl"] for e in plain.state.log_history[:2]] == [e["kl"] for e in guided.state.log_history[:2]]


def test_a_guide_changes_training(tmp_path):
    trained = []
    for guide in ({}, BRANCH):
        trainer = build_trainer(tmp_path, **guide)
        trainer.train()
        trained.append(weights(trainer.model))
    assert any(not torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_inputs_are_shaped_once_per_use_not_once_and_for_all(make_trainer, golden_inputs):
    trainer = make_trainer(**BRANCH, max_completion_length=24)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    before = {name: value.clone() for name, value in golden_inputs.items()}
    first, second = (trainer._compute_loss(trainer.model, golden_inputs) for _ in range(2))
    assert torch.equal(first, second)
    assert golden_inputs.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in golden_inputs.items())


def test_a_guide_is_1_on_tool_tokens_and_padding(make_trainer, golden_inputs):
    class Recorder(GuideFunction):
        requires = ()

        def __call__(self, signals):
            return torch.full(signals.mask.shape, 1.3)

    trainer = make_trainer(guide_object=Recorder(), max_completion_length=24)
    tool_mask = torch.ones_like(golden_inputs["completion_mask"])
    tool_mask[:, 3:9] = 0
    trainer._compute_loss(trainer.model, golden_inputs | {"tool_mask": tool_mask})
    valid = (golden_inputs["completion_mask"] * tool_mask).sum()
    expected = valid * torch.log(torch.tensor(1.3)) / len(tool_mask)
    assert trainer._metrics["eval"]["sage/log_q_sum"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_reference_entropies_are_the_reference_s(make_trainer):
    seen = []

    class Compare(GuideFunction):
        requires = ("entropies", "ref_entropies")

        def __call__(self, signals):
            seen.append((signals.step, signals.mask, signals.entropies, signals.ref_entropies))
            return torch.ones(signals.mask.shape)

    for lora in ({}, {"peft_config": LORA}):
        seen.clear()
        make_trainer(guide_object=Compare(), **lora).train()
        (_, mask, policy, ref), (_, later_mask, later_policy, later_ref) = seen
        torch.testing.assert_close(policy[mask], ref[mask])  # at step 0 the policy is the reference
        assert not torch.allclose(later_policy[later_mask], later_ref[later_mask])


@pytest.mark.parametrize("lora", [{}, {"peft_config": LORA}], ids=["full", "lora"])
@pytest.mark.parametrize("guide", [{}, BRANCH, REF_BRANCH, {"guide": "token"}, {"guide": "random"}], ids=str)
def test_no_guide_costs_a_forward_pass(guide, lora, tmp_path):
    """Forward passes of a step that generates, scores and trains, counted on policy and reference."""

    def forwards(trainer):
        count = []
        for model in (trainer.model, trainer.ref_model):
            if model is not None:
                model.register_forward_hook(lambda *args: count.append(1))
        trainer.train()
        return len(count)

    settings = {"max_steps": 1, "gradient_accumulation_steps": 2, **lora}
    plain = build_trainer(tmp_path, GRPOTrainer, GRPOConfig, use_bias_correction_kl=False, **settings)
    assert forwards(build_trainer(tmp_path, **settings, **guide)) == forwards(plain) > 0


def noise_seeds(tmp_path, **settings):
    """(mode, step, seed of the guide's generator) of every micro-batch of a run."""
    seeds = []

    class Spy(GuideFunction):
        requires = ()

        def __call__(self, signals):
            mode = "train" if trainer.model.training else "eval"
            seeds.append((mode, signals.step, signals.generator.initial_seed()))
            return 1 + 0.1 * signals.rand()

    trainer = build_trainer(tmp_path, guide_object=Spy(), **settings)
    trainer.train()
    return seeds


def test_invariant_3_noise_is_seeded_by_where_the_run_stands(tmp_path):
    seeds = noise_seeds(tmp_path, gradient_accumulation_steps=2)
    assert [step for _, step, _ in seeds] == [0, 0, 1, 1]
    assert len({seed for _, _, seed in seeds}) == 4
    assert seeds == noise_seeds(tmp_path, gradient_accumulation_steps=2)
    assert {s for *_, s in seeds}.isdisjoint(s for *_, s in noise_seeds(tmp_path, seed=7))


def test_invariant_3_no_evaluation_shifts_the_noise(tmp_path):
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    evaluated = noise_seeds(tmp_path, **evaluation, eval_dataset=Dataset.from_dict({"prompt": ["a", "b"]}))
    assert [seed for seed in evaluated if seed[0] == "train"] == noise_seeds(tmp_path)
    assert any(mode == "eval" for mode, *_ in evaluated)


def test_invariant_3_a_global_generator_s_state_does_not_reach_the_noise(tmp_path):
    torch.manual_seed(1)
    first = noise_seeds(tmp_path)
    torch.manual_seed(2)
    assert first == noise_seeds(tmp_path)


@pytest.mark.parametrize("lora", [{}, {"peft_config": LORA}], ids=["full", "lora"])
def test_invariant_3_a_resumed_run_repeats_an_uninterrupted_one(tmp_path, lora):
    settings = {"guide": "token", "max_steps": 4, "gradient_accumulation_steps": 2, **lora}
    whole = build_trainer(tmp_path / "whole", save_strategy="steps", save_steps=2, **settings)
    whole.train()
    resumed = build_trainer(tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same_bits(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("guide", [{}, BRANCH, {"guide": "token"}], ids=str)
def test_invariant_5_collectives_do_not_depend_on_the_data(guide, make_trainer, golden_inputs, monkeypatch):
    trainer = make_trainer(**guide, max_completion_length=24)
    calls = []
    for name in ("gather", "reduce", "gather_for_metrics"):
        collective = getattr(trainer.accelerator, name)

        def counted(tensor, *args, _name=name, _collective=collective, **kwargs):
            calls.append((_name, tuple(tensor.shape)))
            return _collective(tensor, *args, **kwargs)

        monkeypatch.setattr(trainer.accelerator, name, counted)

    def collectives_with(mask):
        calls.clear()
        trainer._compute_loss(trainer.model, golden_inputs | {"completion_mask": mask})
        return list(calls)

    mask = golden_inputs["completion_mask"]
    ordinary = collectives_with(mask)
    assert ordinary and ordinary == collectives_with(torch.zeros_like(mask)) == collectives_with(torch.ones_like(mask))


def test_invariant_6_evaluation_leaves_training_state_alone(make_trainer):
    trainer = make_trainer(guide="token", per_device_eval_batch_size=4)
    trainer.train()
    before, step = weights(trainer.model), trainer._step
    noise, metrics = trainer._micro_batch["train"].last, dict(trainer._metrics["train"])
    result = trainer.evaluate(eval_dataset=trainer.train_dataset.select(range(4)))
    assert_same_bits(before, weights(trainer.model))
    assert (trainer._step, trainer._micro_batch["train"].last, dict(trainer._metrics["train"])) == (
        step,
        noise,
        metrics,
    )
    assert "eval_sage/q_mean" in result and "eval_sage/group_pass" in result


def test_evaluation_during_training_does_not_change_the_guide_s_part(make_trainer):
    trainer = make_trainer(
        guide="token",
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        eval_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
    )
    trainer.train()
    logged = [key for entry in trainer.state.log_history for key in entry]
    assert logged.count("eval_sage/q_mean") == logged.count("sage/q_mean") == 2


def test_a_guide_that_fails_late_names_its_step(make_trainer):
    class Late(GuideFunction):
        requires = ()

        def __call__(self, signals):
            return torch.full(signals.mask.shape, 1.0 if signals.step == 0 else torch.nan)

    with pytest.raises(ValueError, match="Guide Late returned .* not finite .* at step 1"):
        make_trainer(guide_object=Late()).train()


def test_signals_are_what_the_docs_say(make_trainer):
    seen = []

    class Spy(GuideFunction):
        requires = ()

        def __call__(self, signals):
            seen.append(signals)
            return torch.ones(signals.mask.shape)

    make_trainer(guide_object=Spy(), max_steps=1).train()
    (signals,) = seen
    shape = signals.mask.shape
    assert shape[0] == 4 and signals.mask.dtype == torch.bool
    for name in ("policy_logps", "ref_logps", "entropies", "completion_ids"):
        assert getattr(signals, name).shape == shape
    assert signals.prompt_ids.shape[0] == 4 and signals.advantages.shape == (4,)
    assert (signals.step, signals.max_steps, signals.ref_entropies) == (0, 1, None)
    assert isinstance(signals.tokenizer.decode(signals.completion_ids[0]), str)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"guide_object": BranchGuide(), "beta": 0.0}, ValueError, "BranchGuide.* but `beta` is 0"),
        ({"guide_object": BranchGuide(), "use_bias_correction_kl": True}, ValueError, "zero expected effect"),
        ({"guide_object": BranchGuide(), "guide": "token"}, ValueError, "Give one"),
        ({"guide_object": "branch"}, TypeError, "not an instance of a subclass of `sage_trl.GuideFunction`"),
    ],
    ids=str,
)
def test_refusals_at_construction(settings, error, message, make_trainer):
    with pytest.raises(error, match=message):
        make_trainer(**settings)


def test_a_plain_grpo_config_is_refused(tmp_path):
    with pytest.raises(TypeError, match="`args` is a GRPOConfig; SAGEGRPOTrainer takes a `sage_trl.SAGEGRPOConfig`"):
        build_trainer(tmp_path, config_class=GRPOConfig)


def test_the_card_names_method_guide_and_software_but_no_path(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom sage_trl import GuideFunction\n\n"
        "class Mine(GuideFunction):\n    requires = ()\n\n"
        "    def __init__(self, scale, table):\n        self.scale, self.table = scale, table\n\n"
        "    def __call__(self, signals):\n        return torch.ones(signals.mask.shape)\n"
    )
    kwargs = {"scale": 0.125, "table": str(tmp_path / "table.json")}
    trainer = build_trainer(tmp_path / "run", guide=f"{tmp_path}/mine.py:Mine", guide_kwargs=kwargs, hub_token="hf_x")
    trainer.create_model_card(model_name="run")
    card = (tmp_path / "run" / "README.md").read_text()
    for text in ("2605.18864", "`Mine`", "`0.125`", "`k3`", "`0.5`", "sage-trl", "- sage"):
        assert text in card
    assert str(tmp_path) not in card and "golden" not in card and "hf_x" not in card


def test_no_saved_card_holds_a_path(tmp_path):
    trainer = build_trainer(tmp_path / "run", **BRANCH, peft_config=LORA, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer.save_model()
    cards = list((tmp_path / "run").rglob("README.md"))
    assert cards
    for card in cards:
        assert "golden" not in card.read_text() and str(tmp_path) not in card.read_text(), card


def test_reward_of_the_fixture_varies():
    assert odd_sum(completion_ids=[[1, 2], [2, 2]]) == [1.0, 0.0]
