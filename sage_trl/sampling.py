"""What a model writes, and how likely it finds what was written: outside training, to look and to measure.

One prompt at a time, so that nothing is padded on the left.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

# Numbers of float32 that the logits of one forward pass may take, and positions whose distributions are held at once
MAX_LOGITS = 2**28
POSITIONS = 256


def end_tokens(settings: "GenerationConfig", tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """
    The tokens that end a completion: the tokenizer's, and every one that the model's generation settings name, as in
    training. Raises [`ValueError`] where there is none.
    """
    named = settings.eos_token_id
    named = [] if named is None else [named] if isinstance(named, int) else list(named)
    ends = [tokenizer.eos_token_id, *named]
    ends = [token for token in dict.fromkeys(ends) if token is not None]
    if not ends:
        raise ValueError(f"'{tokenizer.name_or_path}' has no end-of-sequence token: its tokenizer must name one.")
    return ends


def until_end(row: list[int], ends: list[int]) -> list[int]:
    """A completion up to its first end token, that one included."""
    last = next((position for position, token in enumerate(row) if token in ends), len(row))
    return row[: last + 1]


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device, side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids padded on one side, and where they count. Shapes `(B, T)`, the second boolean."""
    ids = [torch.tensor(row, dtype=torch.long, device=device) for row in rows]
    valid = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad, padding_side=side),
        pad_sequence(valid, batch_first=True, padding_value=False, padding_side=side),
    )


@torch.inference_mode()
def sample(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt_ids: list[int],
    num_samples: int,
    seed: int,
    max_completion_length: int,
    temperature: float = 1.0,
    **generation,
) -> list[list[int]]:
    """
    Completions of one prompt.

    Args:
        model (`PreTrainedModel`):
            The model.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        prompt_ids (`list[int]`):
            Tokens of the prompt.
        num_samples (`int`):
            How many completions.
        seed (`int`):
            Seed of these completions. Torch's global generators are left as they were.
        max_completion_length (`int`):
            Tokens after which a completion is cut off.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature.
        **generation:
            More settings of `generate`, such as `top_p`.

    Returns:
        `list[list[int]]`: token ids, the end token included where there is one.
    """
    ids = torch.tensor([prompt_ids], device=model.device).expand(num_samples, -1)
    ends = end_tokens(model.generation_config, tokenizer)
    devices = [model.device] if model.device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=model.device.type if devices else "cuda"):
        torch.manual_seed(seed)  # `generate` draws from the global generator
        generated = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_completion_length,
            do_sample=True,
            temperature=temperature,
            eos_token_id=ends,
            pad_token_id=ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            **{"top_k": 0, "top_p": 1.0} | generation,
        )
    return [until_end(row, ends) for row in generated[:, len(prompt_ids) :].tolist()]


@torch.inference_mode()
def score(
    model: "PreTrainedModel",
    prompt_ids: list[int],
    completion_ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    How likely a model finds completions of one prompt, and how undecided it was.

    Args:
        model (`PreTrainedModel`):
            The model.
        prompt_ids (`list[int]`):
            Tokens of the prompt.
        completion_ids (`torch.Tensor` of shape `(B, T)`):
            Tokens of the completions, padded on the right.
        mask (`torch.Tensor` of shape `(B, T)`):
            True where a token counts.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature that the completions were drawn at, by which the logits are divided.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: log-probability of each token and entropy of the distribution it was drawn
        from, in nats, shapes `(B, T)`, float32.
    """
    length = completion_ids.size(1)
    rows = max(1, MAX_LOGITS // (length * model.config.get_text_config().vocab_size))
    prompt = torch.tensor([prompt_ids], device=completion_ids.device)
    logps, entropies = [], []
    for ids, valid in zip(completion_ids.split(rows), mask.split(rows), strict=True):
        logits = model(
            input_ids=torch.cat([prompt.expand(len(ids), -1), ids], dim=1),
            attention_mask=torch.cat([torch.ones_like(prompt).expand(len(ids), -1), valid.long()], dim=1),
            logits_to_keep=length + 1,
        ).logits[:, :-1]
        found = [_read(part, tokens, temperature) for part, tokens in _in_parts(logits, ids)]
        for values, parts in zip((logps, entropies), zip(*found, strict=True), strict=True):
            values.append(torch.cat(parts, dim=1))
    return torch.cat(logps), torch.cat(entropies)


def _in_parts(logits: torch.Tensor, ids: torch.Tensor):
    return zip(logits.split(POSITIONS, dim=1), ids.split(POSITIONS, dim=1), strict=True)


def _read(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    distribution = (logits.float() / temperature).log_softmax(-1)
    return distribution.gather(-1, ids.unsqueeze(-1)).squeeze(-1), torch.special.entr(distribution.exp()).sum(-1)
