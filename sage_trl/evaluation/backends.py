"""Engines that sample, behind one narrow interface: prompts with seeds in, completions out.

A sample's randomness is its own: one uniform number per token from a generator that its seed starts. So the same seed
gives the same sample whichever samples share its batch, up to the rounding of the model's own arithmetic, which can
depend on the shape of a batch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ..seeds import derive_generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    """What an engine has to do."""

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
        end, device = self.tokenizer.eos_token_id, self.model.device
        pad = end if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        longest = max(len(request.prompt_ids) for request in requests)
        ids = torch.full((len(requests), longest), pad)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, longest - len(request.prompt_ids) :] = 1
        generated = self.model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=self.sampling.max_tokens,
            do_sample=False,  # of what the processor leaves, which is one token
            logits_processor=[_OwnRandomness([request.place for request in requests], self.sampling, longest)],
            eos_token_id=end,
            pad_token_id=pad,
            temperature=None,
            top_p=None,
            top_k=None,
            repetition_penalty=1.0,  # whatever the model's own generation settings are
        )[:, longest:].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in generated]


class _OwnRandomness:
    """Leaves of each row's tokens the one that its own next uniform number picks: sampling by the inverse CDF."""

    def __init__(self, places: list[tuple[int, ...]], sampling: Sampling, prompt_length: int):
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        self.prompt_length = prompt_length
        generators = (derive_generator(torch.device("cpu"), *place) for place in places)
        draws = [torch.rand(sampling.max_tokens, generator=each, dtype=torch.float64) for each in generators]
        self.uniforms = torch.stack(draws)
        self.warpers = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []
        self.warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        self.warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.size(1) - self.prompt_length
        for warper in self.warpers:
            scores = warper(input_ids, scores)
        # float64: a sum over 150,000 tokens in float32 loses the rare ones
        summed = scores.double().softmax(-1).cumsum(-1)
        wanted = self.uniforms[:, step].to(scores.device).unsqueeze(1) * summed[:, -1:]
        # `right` passes over tokens of probability 0, which do not raise the sum
        chosen = torch.searchsorted(summed, wanted, right=True).clamp(max=scores.size(-1) - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)
