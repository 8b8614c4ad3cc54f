import pytest
import torch

from sage_trl import SAGEGRPOConfig
from sage_trl.anchor import evaluate_guide
from sage_trl.guides import (
    BranchGuide,
    GuideFunction,
    GuideSignals,
    NoveltyGuide,
    ProductGuide,
    RandomGuide,
    TokenGuide,
    resolve_guide,
)


class Constant(GuideFunction):
    requires = ()

    def __init__(self, value=2.0):
        self.value = value

    def __call__(self, signals):
        return torch.full(signals.mask.shape, self.value)


def signals(**more):
    ones = torch.ones(2, 3)
    return GuideSignals(policy_logps=-ones, ref_logps=-ones, mask=ones, entropies=2 * ones, **more)


def test_guides_multiply_and_the_bounds_apply_once():
    product = ProductGuide([Constant(2.0), Constant(0.5)])
    assert torch.equal(evaluate_guide(product, signals(), 0.9, 1.1), torch.ones(2, 3))
    assert torch.equal(
        evaluate_guide(ProductGuide([Constant(), Constant()]), signals(), 0.9, 3.0), torch.full((2, 3), 3.0)
    )


def test_it_needs_what_its_parts_need():
    product = ProductGuide([BranchGuide(source="ref"), TokenGuide()])
    assert set(product.requires) == {"ref_entropies", "policy_logps"} and product.depends_on_token
    assert not ProductGuide([BranchGuide(), RandomGuide()]).depends_on_token
    assert NoveltyGuide().depends_on_token  # whether a completion is correct depends on each of its tokens
    assert ProductGuide([BranchGuide(), NoveltyGuide()]).prepares
    assert not ProductGuide([BranchGuide(), TokenGuide()]).prepares


def test_each_part_sees_its_own_extras():
    product = ProductGuide([NoveltyGuide(scale=1.0), NoveltyGuide(scale=3.0)])
    extra = {"0.novelty": torch.tensor([1.0, 0.0]), "1.novelty": torch.tensor([0.0, 1.0])}
    assert product(signals(extra=extra))[:, 0].tolist() == [2.0, 4.0]


def test_a_recipe_names_a_list():
    args = SAGEGRPOConfig(
        "unused", bf16=False, use_cpu=True, guide=["branch", "novelty"], guide_kwargs=[{"ratio": 0.1}, {"scale": 0.2}]
    )
    guide = resolve_guide(args.guide, args.guide_kwargs)
    assert [type(part) for part in guide.guides] == [BranchGuide, NoveltyGuide] and guide.guides[1].scale == 0.2
    written = SAGEGRPOConfig(
        "unused", bf16=False, use_cpu=True, guide='["branch", "novelty"]', guide_kwargs="[{}, {}]"
    )
    assert written.guide == ["branch", "novelty"] and written.guide_kwargs == [{}, {}]


@pytest.mark.parametrize(
    "guide, kwargs, message",
    [
        (["branch"], None, "there must be two or more"),
        (["branch", "none"], None, "'none' is no guide that could be multiplied"),
        (["branch", "token"], [{}], "give a list of as many mappings"),
        (["branch", "token"], {"ratio": 1}, "give a list of as many mappings"),
        (["branch", "tokn"], None, "Did you mean 'token'"),
    ],
)
def test_mistakes_name_the_setting(guide, kwargs, message):
    with pytest.raises(ValueError, match=message):
        resolve_guide(guide, kwargs)


def test_a_value_of_the_wrong_type_names_the_setting():
    with pytest.raises(TypeError, match="`guide_kwargs` is {'ratio': 'x'}, which guide 'branch' does not take"):
        resolve_guide("branch", {"ratio": "x"})
