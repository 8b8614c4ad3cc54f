"""A language model so small that every completion can be listed: 4 tokens, 3 of them generated, 64 completions."""

import itertools

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sage_trl import GuideFunction, SAGEGRPOConfig, SAGEGRPOTrainer

VOCABULARY, LENGTH = 4, 3
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


def every_completion(prompts, trainer):
    """TRL's rollout function: this process's share of all completions, as often as they fit."""
    start = trainer.accelerator.process_index * len(prompts)
    rows = [COMPLETIONS[(start + i) % len(COMPLETIONS)].tolist() for i in range(len(prompts))]
    ids = trainer.processing_class(prompts)["input_ids"]
    return {"prompt_ids": ids, "completion_ids": rows, "logprobs": [[0.0] * LENGTH for _ in rows]}


def reward(completion_ids, **kwargs):
    return [float((3 * ids[0] + ids[1] * ids[2]) % 5) / 4 for ids in completion_ids]


class TableGuide(GuideFunction):
    """q from the ids alone: by the token, by the state before it, or by both."""

    requires = ("completion_ids",)

    def __init__(self, kind: str):
        self.kind = kind

    @property
    def depends_on_token(self):
        return self.kind != "state"

    def __call__(self, signals):
        ids = signals.completion_ids.double()
        before = torch.nn.functional.pad(ids.cumsum(-1)[:, :-1], (1, 0))
        by_token, by_state = 0.7 + 0.2 * ids, 0.8 + 0.15 * torch.sin(before + 1).square()
        return {"token": by_token, "state": by_state, "both": by_token * by_state}[self.kind]


def tiny_trainer(folder, anchor: str, kind: str | None, **settings) -> SAGEGRPOTrainer:
    """A trainer whose policy has moved away from its reference."""
    args = SAGEGRPOConfig(
        str(folder),
        anchor=anchor,
        **{
            "beta": 0.5,
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
    model = tiny_model(seed=0)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
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
    """Gradient of the trainer's own loss on each completion, weighted by the policy's probability of it."""
    model = trainer.model
    weights = token_logps(model).sum(-1).exp().detach()
    total = 0
    for index, weight in enumerate(weights):
        row = {
            key: value[index : index + 1] if isinstance(value, torch.Tensor) and value.dim() else value
            for key, value in batch.items()
        }
        total = total + weight * gradient_vector(trainer._compute_loss(model, row), model)
    return total * LENGTH  # dr_grpo divides by the longest completion
