"""Engines that sample, behind one narrow interface: prompts with seeds in, completions out.

A sample's randomness is its own: one uniform number per token from a generator that its seed starts. So the same seed
gives the same sample whichever samples share its batch, up to the rounding of the model's own arithmetic, which can
depend on the shape of a batch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from transformers import DynamicCache, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..sampling import end_tokens, pad_rows, until_end
from ..seeds import derive_generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STAYING = 0.75  # share of a batch below which those that have ended are taken out


@dataclass(frozen=True)
class Request:
    """One completion that is wanted: the prompt's tokens and the place that its seed is derived from."""

    prompt_ids: tuple[int, ...]
    place: tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """
    How completions are sampled.

    Args:
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature, above 0.
        top_p (`float`, *optional*, defaults to `1.0`):
            Share of probability that is kept, the likeliest tokens first.
        top_k (`int`, *optional*, defaults to `0`):
            How many tokens are kept; 0 for all.
        max_tokens (`int`, *optional*, defaults to `3072`):
            Tokens after which a completion is cut off.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 3072

    def __post_init__(self):
        if not self.temperature > 0:
            raise ValueError(f"`temperature` is {self.temperature}; it must be above 0, or all samples are the same.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` is {self.top_p}; it must be above 0 and at most 1.")
        if self.top_k < 0:
            raise ValueError(f"`top_k` is {self.top_k}; it must be at least 0, where 0 keeps all tokens.")
        if self.max_tokens < 1:
            raise ValueError(f"`max_completion_length` is {self.max_tokens}; it must be at least 1.")


class Backend(Protocol):
    """What an engine has to do. `ends` are the tokens that end a completion."""

    ends: list[int]

    def generate(self, requests: list[Request]) -> list[list[int]]:
        """
        Samples one completion for each request.

        Args:
            requests (`list[Request]`):
                What is wanted.

        Returns:
            `list[list[int]]`: token ids, the end token included where there is one.
        """
        ...


class TransformersBackend:
    """
    Samples with transformers, many prompts in one batch. A batch that does not fit into memory is halved, and so are
    all after it.

    Args:
        model (`PreTrainedModel`):
            The model, with its adapter where it has one.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        sampling ([`Sampling`]):
            How to sample.
    """

    def __init__(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", sampling: Sampling):
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        self.ends = end_tokens(model, tokenizer)
        self.rows: int | None = None  # that fit, once some did not

    def generate(self, requests: list[Request]) -> list[list[int]]:
        rows = min(len(requests), self.rows or len(requests))
        while True:
            try:
                parts = [self._generate(requests[start : start + rows]) for start in range(0, len(requests), rows)]
                return [completion for part in parts for completion in part]
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
                self.rows = rows = (rows + 1) // 2
            torch.cuda.empty_cache()  # outside of `except`, whose traceback holds tensors

    @torch.inference_mode()
    def _generate(self, requests: list[Request]) -> list[list[int]]:
        # What `generate` cannot do: a prompt is read once for all of its samples, and a sample that has ended leaves
        device = self.model.device
        ends = torch.tensor(self.ends, device=device)
        prompts = {
            prompt_ids: row for row, prompt_ids in enumerate(dict.fromkeys(each.prompt_ids for each in requests))
        }
        prompt_of = torch.tensor([prompts[request.prompt_ids] for request in requests], device=device)
        ids, mask = pad_rows(list(prompts), 0, device, side="left")
        mask = mask.long()
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        scores = self._forward(ids, mask, positions, cache)[prompt_of]
        cache.batch_select_indices(prompt_of)
        mask, going = mask[prompt_of], torch.arange(len(requests), device=device)
        choose = _OwnRandomness([request.place for request in requests], self.sampling)
        drawn = torch.full((len(requests), self.sampling.max_tokens), self.ends[0], device=device)
        for step in range(self.sampling.max_tokens):
            chosen = choose(scores, going, step)
            drawn[going, step] = chosen
            still = ~torch.isin(chosen, ends)
            # A sample that has ended may stay on for a while, and its tokens are ends
            if still.float().mean() < STAYING:
                kept = still.nonzero().squeeze(1)
                if len(kept) == 0:
                    break
                cache.batch_select_indices(kept)
                mask, going, chosen = mask[kept], going[kept], chosen[kept]
            if step + 1 < self.sampling.max_tokens:
                mask = torch.nn.functional.pad(mask, (0, 1), value=1)
                scores = self._forward(chosen.unsqueeze(1), mask, mask.sum(1, keepdim=True) - 1, cache)
        return [until_end(row, self.ends) for row in drawn.tolist()]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Scores of the next token, shape `(B, V)`."""
        return self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]


class _OwnRandomness:
    """Picks each row's next token by the row's own next uniform number: sampling by the inverse CDF."""

    def __init__(self, places: list[tuple[int, ...]], sampling: Sampling):
        generators = (derive_generator(torch.device("cpu"), *place) for place in places)
        draws = [torch.rand(sampling.max_tokens, generator=each, dtype=torch.float64) for each in generators]
        self.uniforms = torch.stack(draws)
        self.warpers = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []
        self.warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        self.warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []

    def __call__(self, scores: torch.Tensor, rows: torch.Tensor, step: int) -> torch.Tensor:
        scores = scores.float()
        for warper in self.warpers:
            scores = warper(None, scores)
        # float64: a sum over 150,000 tokens in float32 loses the rare ones
        summed = scores.double().softmax(-1).cumsum(-1)
        wanted = self.uniforms[rows.cpu(), step].to(scores.device).unsqueeze(1) * summed[:, -1:]
        # `right` passes over tokens of probability 0, which do not raise the sum
        return torch.searchsorted(summed, wanted, right=True).squeeze(1).clamp(max=scores.size(-1) - 1)
