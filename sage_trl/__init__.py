"""SAGE for the Hugging Face ecosystem: GRPO whose KL anchor is reshaped by a pluggable guide (arXiv 2605.18864)."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Name -> module. Resolved on first use (PEP 562): `import sage_trl` must not cost the import of torch and trl.
_EXPORTS = {
    "SAGEGRPOConfig": "config",
    "SAGEGRPOTrainer": "trainer",
    "GuideFunction": "guides",
    "GuideSignals": "guides",
    "BranchGuide": "guides",
    "TokenGuide": "guides",
    "RandomGuide": "guides",
    "NoveltyGuide": "guides",
    "ProductGuide": "guides",
    "Rollout": "guides",
    "evaluate_guide": "anchor",
}

__all__ = [
    "BranchGuide",
    "GuideFunction",
    "GuideSignals",
    "NoveltyGuide",
    "ProductGuide",
    "RandomGuide",
    "Rollout",
    "SAGEGRPOConfig",
    "SAGEGRPOTrainer",
    "TokenGuide",
    "__version__",
    "evaluate_guide",
]

if TYPE_CHECKING:
    from .anchor import evaluate_guide
    from .config import SAGEGRPOConfig
    from .guides import (
        BranchGuide,
        GuideFunction,
        GuideSignals,
        NoveltyGuide,
        ProductGuide,
        RandomGuide,
        Rollout,
        TokenGuide,
    )
    from .trainer import SAGEGRPOTrainer


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
