"""A language model so small that every completion can be listed: 4 tokens, 3 of them generated, 64 completions."""

import itertools
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sage_trl import GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer
from sage_trl.guides import GuideSignals

VOCABULARY, LENGTH, BETA = 4, 3, 0.5
COMPLETIONS = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
PROMPT = "b d"  # tokens 1 and 3


def tiny_model(seed: int, dtype: torch.dtype = torch.float64) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=5,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {"a": 0, "b": 1, "c": 2, "d": 3, "<pad>": 4, "<eos>": 5}
    tokenizer = Tokenizer(WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def save_model(folder) -> None:
    tiny_model(seed=0).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def every_completion(prompts, trainer):
    """TRL's rollout function: this process's share of all completions, as often as they fit."""
    start = trainer.accelerator.process_index * len(prompts)
    rows = [COMPLETIONS[(start + i) % len(COMPLETIONS)].tolist() for i in range(len(prompts))]
    ids = trainer.processing_class(prompts)["input_ids"]
    return {"prompt_ids": ids, "completion_ids": rows, "logprobs": [[0.0] * LENGTH for _ in rows]}


def reward(completion_ids, **kwargs):
    return [float((3 * ids[0] + ids[1] * ids[2]) % 5) / 4 for ids in completion_ids]


class TableGuide(GuideFunction):
    """q from the ids alone: by the token, by the state before it, by both, or by all of the completion."""

    requires = ("completion_ids",)

    def __init__(self, kind: str):
        self.kind = kind

    @property
    def depends_on_token(self):
        return self.kind != "state"

    @property
    def looks_ahead(self):
        return self.kind == "ahead"

    def __call__(self, signals):
        ids = signals.completion_ids.double()
        before = torch.nn.functional.pad(ids.cumsum(-1)[:, :-1], (1, 0))
        by_token, by_state = 0.7 + 0.2 * ids, 0.8 + 0.15 * torch.sin(before + 1).square()
        ahead = 1 + 0.3 * (ids - ids.mean(-1, keepdim=True))
        return {"token": by_token, "state": by_state, "both": by_token * by_state, "ahead": ahead.clamp(0.2)}[
            self.kind
        ]


def tiny_trainer(folder, anchor: str, kind: str | None, **settings) -> SAGEGRPOTrainer:
    """A trainer whose policy has moved away from its reference."""
    args = SAGEGRPOConfig(
        str(folder),
        anchor=anchor,
        **{
            "beta": BETA,
            "q_min": 0.1,
            "q_max": 9.0,
            "loss_type": "dr_grpo",
            "scale_rewards": "none",
            "per_device_train_batch_size": len(COMPLETIONS),
            "num_generations": len(COMPLETIONS),
            "max_completion_length": LENGTH,
            "temperature": 1.0,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "model_init_kwargs": {"dtype": "auto"},
        }
        | settings,
    )
    if not (Path(folder) / "config.json").exists():
        save_model(folder)
    trainer = SAGEGRPOTrainer(
        model=str(folder),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 64}),
        guide=None if kind is None else TableGuide(kind),
        rollout_func=every_completion,
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def token_logps(model) -> torch.Tensor:
    """Log-probabilities of the tokens of every completion, shape `(64, 3)`."""
    prompt = torch.tensor([[1, 3]]).expand(len(COMPLETIONS), -1)
    logits = model(torch.cat([prompt, COMPLETIONS], dim=1)).logits[:, 1:-1]
    return logits.log_softmax(-1).gather(-1, COMPLETIONS.unsqueeze(-1)).squeeze(-1)


def state_log_distributions(model) -> torch.Tensor:
    """Log-probabilities of all tokens in the states of every completion, shape `(64, 3, 4)`."""
    prompt = torch.tensor([[1, 3]]).expand(len(COMPLETIONS), -1)
    return model(torch.cat([prompt, COMPLETIONS], dim=1)).logits[:, 1:-1].log_softmax(-1)


def gradient_vector(loss: torch.Tensor, model) -> torch.Tensor:
    grads = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, parameters, strict=True)]
    )


def expected_gradient(trainer, batch: dict) -> torch.Tensor:
    """
    Gradient of the trainer's own loss on each completion, weighted by the policy's probability of it. Of several
    processes each has its share of the completions, and of the sum.
    """
    model, count = trainer.model, len(batch["completion_ids"])
    start = trainer.accelerator.process_index * count
    weights = token_logps(model).sum(-1).exp().detach()[start : start + count]
    total = 0
    for index, weight in enumerate(weights):
        row = {
            key: value[index : index + 1] if isinstance(value, torch.Tensor) and value.dim() else value
            for key, value in batch.items()
        }
        total = total + weight * gradient_vector(trainer._compute_loss(model, row), model)
    return total * LENGTH  # dr_grpo divides by the longest completion


def generate(trainer) -> dict:
    return trainer._generate_and_score_completions(
        [{"prompt": PROMPT}] * (len(COMPLETIONS) // trainer.accelerator.num_processes)
    )


def guide_of(kind: str | None) -> torch.Tensor:
    """q of the tokens of every completion, shape `(64, 3)`."""
    ones = torch.ones(COMPLETIONS.shape, dtype=torch.float64)
    signals = GuideSignals(policy_logps=ones, ref_logps=ones, mask=ones, completion_ids=COMPLETIONS)
    return ones if kind is None else TableGuide(kind)(signals)


def guide_of_states(kind: str | None) -> torch.Tensor:
    """q of all tokens in the states of every completion, shape `(64, 3, 4)`."""
    if kind is None:
        return torch.ones(*COMPLETIONS.shape, VOCABULARY, dtype=torch.float64)
    values = []
    for token in range(VOCABULARY):
        columns = []
        for position in range(LENGTH):
            ids = COMPLETIONS.clone()
            ids[:, position] = token
            ones = torch.ones(ids.shape)
            signals = GuideSignals(policy_logps=ones, ref_logps=ones, mask=ones, completion_ids=ids)
            columns.append(TableGuide(kind)(signals)[:, position])
        values.append(torch.stack(columns, dim=1))
    return torch.stack(values, dim=-1)


def closed_form(trainer, anchor: str, kind: str | None) -> torch.Tensor:
    """The function whose gradient the expected loss gradient is to be."""
    logps, reference = token_logps(trainer.model), token_logps(trainer.ref_model).detach()
    rewards = torch.tensor(reward(COMPLETIONS.tolist()), dtype=torch.float64)
    probabilities = logps.sum(-1).exp()
    if anchor == "sequence":  # minus the objective: reward less beta KL(pi || q ref)
        divergence = logps.sum(-1) - reference.sum(-1) - guide_of(kind).log().sum(-1)
        return -(probabilities * (rewards - BETA * divergence)).sum()
    policy, anchored = state_log_distributions(trainer.model), state_log_distributions(trainer.ref_model).detach()
    anchored = anchored + guide_of_states(kind).log()
    if anchor == "k3":  # forward KL per token, weighted by q
        per_token = -(anchored.exp() * policy).sum(-1)
    else:  # reverse KL per token
        per_token = (policy.exp() * (policy - anchored)).sum(-1)
    # Averaged over the states that the policy visits, without credit for visiting them
    return BETA * (probabilities.detach().unsqueeze(1) * per_token).sum() - (probabilities * rewards).sum()
