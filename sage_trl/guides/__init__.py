"""Guides by name or import path. A guide of your own needs no registration: name its class in the recipe."""

from inspect import Parameter, isclass, signature
from typing import Any

from ..imports import load_object, nearest
from .base import SIGNAL_NAMES, GuideFunction, GuideSignals
from .branch import BranchGuide
from .novelty import NoveltyGuide
from .product import ProductGuide
from .random import RandomGuide
from .rollout import Rollout
from .schedule import CosineCycles
from .table import inspect
from .token import TokenGuide

GUIDES: dict[str, type[GuideFunction]] = {
    "branch": BranchGuide,
    "token": TokenGuide,
    "random": RandomGuide,
    "novelty": NoveltyGuide,
}

__all__ = [
    "GUIDES",
    "BranchGuide",
    "CosineCycles",
    "GuideFunction",
    "GuideSignals",
    "NoveltyGuide",
    "ProductGuide",
    "RandomGuide",
    "Rollout",
    "TokenGuide",
    "check_guide",
    "inspect",
    "resolve_guide",
]


def resolve_guide(
    guide: str | list[str], guide_kwargs: dict[str, Any] | list[dict[str, Any]] | None = None
) -> GuideFunction | None:
    """
    Builds the guide that a configuration names.

    Args:
        guide (`str` or `list[str]`):
            `"none"`, a built-in name, or an import path `package.module:Name` or `path/to/file.py:Name`. Of a list
            the guides are multiplied.
        guide_kwargs (`dict[str, Any]` or `list[dict[str, Any]]`, *optional*):
            Arguments of the guide's constructor; of a list of guides, a list of as many.

    Returns:
        [`GuideFunction`] or `None`: the guide, `None` for `"none"`.

    Raises:
        [`ValueError`], [`TypeError`], [`ImportError`]: with the setting, its value and what would be right.
    """
    if isinstance(guide, (list, tuple)):
        kwargs = guide_kwargs or [{}] * len(guide)
        if not isinstance(kwargs, (list, tuple)) or len(kwargs) != len(guide):
            raise ValueError(
                f"`guide` is {list(guide)} and `guide_kwargs` is {guide_kwargs!r}; give a list of as many mappings."
            )
        if "none" in guide:
            raise ValueError(f"`guide` is {list(guide)}; 'none' is no guide that could be multiplied.")
        return ProductGuide([resolve_guide(name, each) for name, each in zip(guide, kwargs, strict=True)])
    if not isinstance(guide, str):
        raise TypeError(f"`guide` is {guide!r}; it must be a name or an import path. 'none' is plain GRPO.")
    guide_kwargs = guide_kwargs or {}
    if not isinstance(guide_kwargs, dict):
        raise TypeError(f"`guide_kwargs` is {guide_kwargs!r}; it must be a mapping of names to values.")
    if guide == "none":
        if guide_kwargs:
            raise ValueError(f"`guide_kwargs` is {guide_kwargs} but `guide` is 'none'. Name a guide, or remove them.")
        return None
    cls = GUIDES.get(guide)
    if cls is None:
        if ":" not in guide:
            known = ["none", *GUIDES]
            raise ValueError(
                f"`guide` is '{guide}', which is no guide of this version.{nearest(guide, known)} Choose one of "
                f"{known}, or an import path 'package.module:ClassName' or 'path/to/file.py:ClassName'."
            )
        cls = load_object(guide, setting="guide")
        if not (isclass(cls) and issubclass(cls, GuideFunction)):
            raise TypeError(f"`guide` is '{guide}', which is {cls!r}, not a subclass of `sage_trl.GuideFunction`.")
    return check_guide(_construct(cls, guide, guide_kwargs))


def _construct(cls: type[GuideFunction], guide: str, guide_kwargs: dict[str, Any]) -> GuideFunction:
    parameters = signature(cls).parameters
    open_ended = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for name in guide_kwargs:
        if name not in known and not open_ended:
            raise ValueError(
                f"`guide_kwargs` sets '{name}', which guide '{guide}' does not take.{nearest(name, known)} "
                f"It takes {known}."
            )
    missing = [name for name in known if parameters[name].default is Parameter.empty and name not in guide_kwargs]
    if missing:
        raise ValueError(f"`guide_kwargs` must set {missing} for guide '{guide}'.")
    try:
        return cls(**guide_kwargs)
    except TypeError as error:  # a value of the wrong type
        raise TypeError(f"`guide_kwargs` is {guide_kwargs}, which guide '{guide}' does not take: {error}") from error


def check_guide(guide: GuideFunction) -> GuideFunction:
    """Returns `guide` if it is a guide whose signals exist, else raises."""
    if not isinstance(guide, GuideFunction):
        raise TypeError(f"`guide` is {guide!r}, not an instance of a subclass of `sage_trl.GuideFunction`.")
    if isinstance(guide.requires, str):
        raise TypeError(f"`requires` of guide {type(guide).__name__} is a string; make it a tuple of signal names.")
    for name in guide.requires:
        if name not in SIGNAL_NAMES:
            raise ValueError(
                f"Guide {type(guide).__name__} requires the signal '{name}', which this run does not compute."
                f"{nearest(name, SIGNAL_NAMES)} The signals are {list(SIGNAL_NAMES)}."
            )
    return guide
