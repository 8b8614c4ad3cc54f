"""Samples with transformers: every sample's next token by its own uniform number, and no `generate` call.

There is one uniform number per token, from a generator that the sample's seed starts.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..loading import load_model
from ..sampling import end_tokens, pad_rows, until_end
from ..seeds import derive_generator
from .backends import Request, Sampling, ignore

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STAYING = 0.75  # share of a batch below which those that have ended are taken out


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
        self.ends = end_tokens(model.generation_config, tokenizer)
        self.rows: int | None = None  # that fit, once some did not

    @classmethod
    def load(
        cls,
        model: str,
        adapter: str | None,
        tokenizer: "PreTrainedTokenizerBase",
        sampling: Sampling,
        dtype: str = "auto",
        trust_remote_code: bool = False,
    ) -> "TransformersBackend":
        """
        Loads a model onto this process's device.

        Args:
            model (`str`):
                Whole model, by Hub id or folder.
            adapter (`str` or `None`):
                Adapter on it, which is merged into it.
            tokenizer (`PreTrainedTokenizerBase`):
                The model's tokenizer.
            sampling ([`Sampling`]):
                How to sample.
            dtype (`str`, *optional*, defaults to `"auto"`):
                Numbers of the weights; `"auto"` for those of the model's files.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether to run code that comes with the model.

        Returns:
            [`TransformersBackend`]: ready to sample.
        """
        loaded = load_model(model, "model", dtype=dtype, trust_remote_code=trust_remote_code)
        if adapter is not None:
            from peft import PeftModel

            loaded = PeftModel.from_pretrained(loaded, adapter).merge_and_unload()
        device = torch.device("cpu")
        if torch.accelerator.is_available():
            local = int(os.environ.get("LOCAL_RANK", "0"))
            device = torch.device(torch.accelerator.current_accelerator().type, local)
        return cls(loaded.to(device).eval(), tokenizer, sampling)

    def generate(self, requests: list[Request], ended: Callable[[int], None] = ignore) -> list[list[int]]:
        rows = min(len(requests), self.rows or len(requests))
        while True:
            try:
                parts = (requests[start : start + rows] for start in range(0, len(requests), rows))
                return [completion for part in parts for completion in self._generate(part, ended)]
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
                self.rows = rows = (rows + 1) // 2
            torch.cuda.empty_cache()  # outside of `except`, whose traceback holds tensors

    @torch.no_grad()  # not inference mode: a model that is being trained would keep tensors that cannot be
    def _generate(self, requests: list[Request], ended: Callable[[int], None]) -> list[list[int]]:
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
                ended(len(going) - len(kept))
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
        self.greedy = sampling.temperature == 0
        self.warpers = [] if sampling.temperature in (0, 1) else [TemperatureLogitsWarper(sampling.temperature)]
        self.warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        self.warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
        self.warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []

    def __call__(self, scores: torch.Tensor, rows: torch.Tensor, step: int) -> torch.Tensor:
        scores = scores.float()
        if self.greedy:
            return scores.argmax(-1)
        for warper in self.warpers:
            scores = warper(None, scores)
        # float64: a sum over 150,000 tokens in float32 loses the rare ones
        summed = scores.double().softmax(-1).cumsum(-1)
        wanted = self.uniforms[rows.cpu(), step].to(scores.device).unsqueeze(1) * summed[:, -1:]
        # `right` passes over tokens of probability 0, which do not raise the sum
        return torch.searchsorted(summed, wanted, right=True).squeeze(1).clamp(max=scores.size(-1) - 1)
