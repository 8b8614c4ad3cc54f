"""Settings of SAGE: TRL's `GRPOConfig` plus the anchor and its guide."""

import math
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from .guides import resolve_guide
from .imports import nearest
from .recipe import parse_mapping

ANCHORS = ("k3",)


@dataclass
class SAGEGRPOConfig(GRPOConfig):
    """
    Configuration of [`SAGEGRPOTrainer`].

    Only the settings that SAGE adds, or whose default it changes, are listed here. For the others see
    [`~trl.GRPOConfig`].

    Parameters:
        guide (`str`, *optional*, defaults to `"none"`):
            Guide that reshapes the anchor: `"none"` (plain GRPO), `"branch"`, `"token"`, `"random"`, or an import path
            `package.module:ClassName` or `path/to/file.py:ClassName` of a [`GuideFunction`] of your own.
        guide_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the guide's constructor.
        q_min (`float`, *optional*, defaults to `0.6`):
            Lower clamp of the guide's values, above 0 and at most 1.
        q_max (`float`, *optional*, defaults to `1.4`):
            Upper clamp of the guide's values, at least 1.
        anchor (`str`, *optional*, defaults to `"k3"`):
            Estimator of the KL term to the reshaped anchor. `"k3"` is the paper's; `docs/anchor.md` says what it
            optimises.
        beta (`float`, *optional*, defaults to `0.05`):
            KL coefficient. At `0.0` there is no anchor, so no guide can be set, and no reference model is loaded.
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`):
            Whether TRL multiplies the KL term by the importance ratio. That makes it another estimator, under which a
            guide of the state alone has no effect in expectation, so it is refused together with a guide.
        pass_reward (`str`, *optional*):
            Name of the reward function that says whether a completion is correct, for the metric `sage/group_pass`.
            Defaults to the first one.
        pass_threshold (`float`, *optional*, defaults to `0.5`):
            A completion counts as correct when that reward is above this value.
    """

    _argument_group_name = "training, anchor and guide"

    guide: str = field(
        default="none",
        metadata={
            "help": "Guide that reshapes the anchor: 'none' (plain GRPO), 'branch', 'token', 'random', or an import "
            "path 'package.module:ClassName' or 'path/to/file.py:ClassName'."
        },
    )
    guide_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Arguments of the guide's constructor: a mapping in YAML, JSON on the command line."},
    )
    q_min: float = field(default=0.6, metadata={"help": "Lower clamp of the guide's values, in (0, 1]."})
    q_max: float = field(default=1.4, metadata={"help": "Upper clamp of the guide's values, at least 1."})
    anchor: str = field(
        default="k3",
        metadata={"help": "Estimator of the KL term to the reshaped anchor. 'k3' is the paper's. See docs/anchor.md."},
    )
    beta: float = field(
        default=0.05,
        metadata={"help": "KL coefficient. 0.0 means no anchor: no guide, and no reference model is loaded."},
    )
    use_bias_correction_kl: bool = field(
        default=False,
        metadata={
            "help": "Whether TRL multiplies the KL term by the importance ratio. Refused together with a guide, since "
            "a guide of the state alone would then have no effect in expectation. See docs/anchor.md."
        },
    )
    pass_reward: str | None = field(
        default=None,
        metadata={"help": "Reward function that says what is correct, for sage/group_pass. Default: the first one."},
    )
    pass_threshold: float = field(
        default=0.5,
        metadata={"help": "A completion counts as correct when `pass_reward` is above this value."},
    )

    def __post_init__(self):
        self.guide_kwargs = parse_mapping(self.guide_kwargs, "guide_kwargs")
        super().__post_init__()
        if self.anchor not in ANCHORS:
            raise ValueError(
                f"`anchor` is '{self.anchor}'.{nearest(str(self.anchor), ANCHORS)} It must be one of {list(ANCHORS)}."
            )
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise ValueError(f"`beta` is {self.beta}; a KL coefficient must be finite and at least 0.")
        if not 0 < self.q_min <= 1:
            raise ValueError(
                f"`q_min` is {self.q_min}; it must be above 0 (q multiplies a probability) and at most 1 (so that a "
                "token the guide leaves alone stays alone)."
            )
        if not (math.isfinite(self.q_max) and self.q_max >= 1):
            raise ValueError(
                f"`q_max` is {self.q_max}; it must be finite and at least 1, so that a token the guide leaves alone "
                "stays alone."
            )
        # Built here only to be checked: a typo must not cost the loading of a 7B model.
        if resolve_guide(self.guide, self.guide_kwargs) is not None:
            self.check_anchor_takes_guide(f"`guide` is '{self.guide}'")

    def check_anchor_takes_guide(self, what: str) -> None:
        """
        Raises unless these settings have an anchor that a guide can reshape.

        Args:
            what (`str`):
                How the guide was given, to open the message with.
        """
        if self.beta == 0:
            raise ValueError(
                f"{what} but `beta` is 0, so there is no anchor that a guide could reshape. Set `beta` above 0, or "
                "`guide` to 'none'."
            )
        if self.use_bias_correction_kl:
            raise ValueError(
                f"{what} but `use_bias_correction_kl` is True, which turns anchor '{self.anchor}' into another "
                "estimator under which a guide of the state alone has exactly zero expected effect. Set it to False; "
                "see docs/anchor.md."
            )
