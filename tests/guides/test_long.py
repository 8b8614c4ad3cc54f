"""Long completions: no built-in guide makes a tensor of B x T x V or of T x T elements."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sage_trl.anchor import guide_values, prepared_extras, shape_anchor
from sage_trl.guides import GUIDES, BranchGuide, GuideFunction, GuideSignals, ProductGuide, Rollout, TokenGuide

B, T, V = 8, 2048, 64
# Numbers per token at most: an n-gram of the novelty guide is 4 of them and its group. T x T would be T / B = 256
MOST = 8

LONG = [
    *(pytest.param(build(), id=name) for name, build in GUIDES.items()),
    pytest.param(BranchGuide(source="ref"), id="branch, ref"),
    pytest.param(TokenGuide(norm="rank"), id="token, rank"),
    pytest.param(TokenGuide(norm="zscore"), id="token, zscore"),
    pytest.param(ProductGuide([build() for build in GUIDES.values()]), id="product"),
]


class LargestTensor(TorchDispatchMode):
    """Notes the largest number of elements of any tensor that an operation returns; of a sparse one, those kept."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                kept = tensor.numel() if tensor.layout == torch.strided else tensor._nnz()
                self.elements = max(self.elements, kept)
        return made


def largest(guide: GuideFunction) -> int:
    """Elements of the largest tensor that is made on the way from a generation batch to its anchor."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([T, T, T, T // 2, T - 1, 3, 1, 0])
    mask = torch.arange(T) < lengths.unsqueeze(1)
    ids = torch.randint(V, (B, T), generator=generator)
    ids[1] = ids[0]  # its n-grams are known, most of the others are new
    correct = torch.tensor([1, 1, 1, 0, 1, 1, 0, 0]).bool()
    rollout = Rollout(ids, mask, correct.float(), correct, group_size=4)
    surprisal = torch.rand(B, T, generator=generator) * 3
    with LargestTensor() as seen:
        signals = GuideSignals(
            policy_logps=-surprisal,
            ref_logps=-surprisal,
            mask=mask,
            entropies=surprisal,
            ref_entropies=surprisal,
            completion_ids=ids,
            generator=generator,
            extra=prepared_extras(guide, rollout),
        )
        q = guide_values(guide, signals).clamp(0.6, 1.4)
        anchor = shape_anchor(signals.ref_logps, q)
    assert anchor.shape == (B, T) and not torch.equal(anchor, signals.ref_logps)  # the guide was at work
    return seen.elements


@pytest.mark.parametrize("guide", LONG)
def test_a_guide_s_tensors_grow_with_the_tokens_only(guide):
    assert B * T <= largest(guide) <= MOST * B * T


class ComparesAllPositions(GuideFunction):
    def __call__(self, signals):
        ranks = [(row.unsqueeze(0) < row.unsqueeze(1)).sum(1) for row in signals.policy_logps]
        return 1 + torch.stack(ranks) / T


class ComparesAllPositionsInPrepare(ComparesAllPositions):
    def prepare(self, rollout):
        same = rollout.completion_ids[0].unsqueeze(0) == rollout.completion_ids[0].unsqueeze(1)
        return {"repeats": same.sum(1).expand(rollout.mask.shape)}

    def __call__(self, signals):
        return 1 + signals.extra["repeats"] / T


class LooksAtTheVocabulary(GuideFunction):
    def __call__(self, signals):
        return 1 + torch.nn.functional.one_hot(signals.completion_ids, V).float().amax(-1)


@pytest.mark.parametrize(
    ("guide", "elements"),
    [
        (ComparesAllPositions(), T * T),
        (ComparesAllPositionsInPrepare(), T * T),
        (LooksAtTheVocabulary(), B * T * V),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_larger_tensor_is_seen(guide, elements):
    assert largest(guide) == elements > MOST * B * T
