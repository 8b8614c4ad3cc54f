"""Settings of SAGE: TRL's `GRPOConfig` plus the anchor and its guide."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from .checks import uses_fsdp
from .guides import GuideFunction, check_guide, resolve_guide
from .imports import nearest
from .recipe import parse_json, parse_mapping

logger = logging.getLogger(__name__)

ANCHORS = ("k3", "token", "sequence")
DEFAULT_BETA = 0.05
# With `sequence` beta multiplies the KL of a whole completion, so its default falls with the length: 0.1 at 16 tokens
SEQUENCE_BETA = 1.6


@dataclass
class SAGEGRPOConfig(GRPOConfig):
    """
    Configuration of [`SAGEGRPOTrainer`].

    Only the settings that SAGE adds, or whose default it changes, are listed here. For the others see
    [`~trl.GRPOConfig`].

    Parameters:
        guide (`str`, *optional*, defaults to `"none"`):
            Guide that reshapes the anchor: `"none"` (plain GRPO), `"branch"`, `"token"`, `"random"`, `"novelty"`, or
            an import path `package.module:ClassName` or `path/to/file.py:ClassName` of a [`GuideFunction`] of your
            own. A list of them is multiplied, with `guide_kwargs` a list of as many mappings.
        guide_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the guide's constructor.
        q_min (`float`, *optional*, defaults to `0.6`):
            Lower clamp of the guide's values, above 0 and at most 1.
        q_max (`float`, *optional*, defaults to `1.4`):
            Upper clamp of the guide's values, at least 1.
        anchor (`str`, *optional*, defaults to `"k3"`):
            Estimator of the KL term to the reshaped anchor: `"k3"` (the paper's) and `"token"` add it to the loss,
            `"sequence"` credits it to the advantages, which gives the exact gradient of SAGE's objective.
            `docs/anchor.md` says what each optimises.
        beta (`float`, *optional*):
            KL coefficient: of the KL per token for `"k3"` and `"token"`, by default 0.05; of the KL of a whole
            completion for `"sequence"`, by default `1.6 / max_completion_length`. At `0.0` there is no anchor, so no
            guide can be set, and no reference model is loaded.
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`):
            Whether TRL multiplies the KL term by the importance ratio. That is the estimator `"token"`, which sets
            it; with another anchor it is refused together with a guide.
        pass_reward (`str`, *optional*):
            Name of the reward function that says whether a completion is correct, for the metric `sage/group_pass`.
            Defaults to the first one.
        pass_threshold (`float`, *optional*, defaults to `0.5`):
            A completion counts as correct when that reward is above this value.
        eval_pass_at_k (`dict[str, Any]`, *optional*):
            Pass@k to log as `eval/pass@k` on the evaluation schedule, measured by the run's own engine without
            touching the run: the arguments of [`~sage_trl.evaluation.monitor_settings.PassAtK`], such as
            `{"benchmarks": "amc23", "n": 16}`.
    """

    _argument_group_name = "training, anchor and guide"

    guide: str = field(
        default="none",
        metadata={
            "help": "Guide that reshapes the anchor: 'none' (plain GRPO), 'branch', 'token', 'random', 'novelty', or "
            "an import path 'package.module:ClassName' or 'path/to/file.py:ClassName'. A list of them is multiplied; "
            'on the command line as JSON: \'["branch", "novelty"]\'.'
        },
    )
    guide_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of the guide's constructor: a mapping in YAML, JSON on the command line; of a list of "
            "guides a list of mappings."
        },
    )
    q_min: float = field(default=0.6, metadata={"help": "Lower clamp of the guide's values, in (0, 1]."})
    q_max: float = field(default=1.4, metadata={"help": "Upper clamp of the guide's values, at least 1."})
    anchor: str = field(
        default="k3",
        metadata={
            "help": "Estimator of the KL term to the reshaped anchor: 'k3' (the paper's), 'token' or 'sequence' (the "
            "exact gradient of SAGE's objective). See docs/anchor.md."
        },
    )
    beta: float | None = field(
        default=None,
        metadata={
            "help": "KL coefficient. Default: 0.05 per token, or 1.6 / max_completion_length of the whole completion "
            "with `anchor` 'sequence'. 0.0 means no anchor: no guide, and no reference model is loaded."
        },
    )
    use_bias_correction_kl: bool = field(
        default=False,
        metadata={
            "help": "Whether TRL multiplies the KL term by the importance ratio: what `anchor` 'token' sets. Refused "
            "together with a guide under another anchor. See docs/anchor.md."
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
    eval_pass_at_k: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Pass@k to log as eval/pass@k on the evaluation schedule: a mapping of benchmarks, n, k, "
            "num_problems, prompt_format, batch_size and seed, such as {benchmarks: amc23, n: 16}; JSON on the "
            "command line."
        },
    )

    def __post_init__(self):
        if isinstance(self.guide, str) and self.guide.startswith("["):  # a list on the command line
            self.guide = parse_json(self.guide, "guide")
        if isinstance(self.guide, list):
            self.guide_kwargs = parse_json(self.guide_kwargs, "guide_kwargs")
        else:
            self.guide_kwargs = parse_mapping(self.guide_kwargs, "guide_kwargs")
        if self.anchor not in ANCHORS:
            raise ValueError(
                f"`anchor` is '{self.anchor}'.{nearest(str(self.anchor), ANCHORS)} It must be one of {list(ANCHORS)}."
            )
        if self.beta is None:
            length = self.max_completion_length or 512
            self.beta = SEQUENCE_BETA / length if self.anchor == "sequence" else DEFAULT_BETA
        self.use_bias_correction_kl = self.use_bias_correction_kl or self.anchor == "token"
        if self.eval_pass_at_k and self.per_device_eval_batch_size == 8 and self.num_generations_eval is None:
            # TRL's check of what no test split is there for
            self.per_device_eval_batch_size = math.lcm(8, self.num_generations)
        super().__post_init__()
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
        if not math.isfinite(self.pass_threshold):
            raise ValueError(f"`pass_threshold` is {self.pass_threshold}; it must be a finite number.")
        self.check_anchor()
        self.eval_pass_at_k = parse_mapping(self.eval_pass_at_k, "eval_pass_at_k") or None
        if self.eval_pass_at_k is not None:
            self.check_pass_at_k()
        # Built here only to be checked: a typo must not cost the loading of a 7B model.
        guide = resolve_guide(self.guide, self.guide_kwargs)
        if guide is not None:
            self.check_anchor_takes_guide(f"`guide` is '{self.guide}'", guide)

    @classmethod
    def of(cls, args: "SAGEGRPOConfig | None", model: Any) -> "SAGEGRPOConfig":
        """The settings that a trainer was given, or a model's default ones. Raises if they are another class's."""
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            return cls(f"{name.rstrip('/').split('/')[-1]}-SAGE")
        if not isinstance(args, cls):
            raise TypeError(f"`args` is a {type(args).__name__}; SAGEGRPOTrainer takes a `sage_trl.SAGEGRPOConfig`.")
        return args

    def pass_column(self, names: list[str]) -> int:
        """Which of the reward functions of these names says whether a completion is correct."""
        wanted = self.pass_reward or names[0]
        if wanted not in names:
            raise ValueError(
                f"`pass_reward` is '{wanted}', which is no reward function of this run.{nearest(wanted, names)} They "
                f"are {names}."
            )
        return names.index(wanted)

    def check_pass_at_k(self) -> None:
        """Raises if pass@k cannot be measured as the run samples, or would never be."""
        from .evaluation.monitor_settings import PassAtK

        PassAtK.of(self.eval_pass_at_k)
        if self.eval_strategy == "no":
            raise ValueError(
                "`eval_pass_at_k` is set and `eval_strategy` is 'no', so it would never be measured. Set "
                "`eval_strategy` to 'steps' and `eval_steps` to how often."
            )
        unable = {
            "repetition_penalty": self.repetition_penalty != 1.0 and self.repetition_penalty,
            "generation_kwargs": self.generation_kwargs,
            "use_transformers_continuous_batching": self.use_transformers_continuous_batching,
            "vllm_mode": self.use_vllm and self.vllm_mode != "colocate" and self.vllm_mode,
            "fsdp": not self.use_vllm and uses_fsdp(),
            "vllm_enable_sleep_mode": self.use_vllm and self.vllm_enable_sleep_mode,
        }
        for name, value in unable.items():
            if value:
                raise ValueError(
                    f"`eval_pass_at_k` is set and `{name}` is {value!r}, which it cannot follow. Take one of them "
                    "out; `sage-trl eval` measures checkpoints."
                )
        if self.max_completion_length is None:
            raise ValueError(
                "`eval_pass_at_k` is set and `max_completion_length` is None: its samples need a longest length. Set "
                "it, as to 512."
            )
        if not (self.use_vllm or self.ds3_gather_for_generation):
            raise ValueError(
                "`eval_pass_at_k` is set and `ds3_gather_for_generation` is False: every process samples its own "
                "share, and needs whole weights for it. Set it to True."
            )

    def check_anchor(self) -> None:
        """Raises if the anchor's estimator does not go with another setting, and warns of a `beta` for another one."""
        if self.anchor == "k3" or self.beta == 0:
            return
        if self.importance_sampling_level != "token":
            raise ValueError(
                f"`anchor` is '{self.anchor}' and `importance_sampling_level` is '{self.importance_sampling_level}': "
                "one ratio for a whole completion cannot credit single tokens. Set it to 'token', or `anchor` to 'k3'."
            )
        if self.anchor == "token":
            return
        if self.use_bias_correction_kl:
            raise ValueError(
                "`anchor` is 'sequence' and `use_bias_correction_kl` is True, but there is no KL term in the loss to "
                "correct. Set it to False."
            )
        if self.loss_type in ("vespo", "luspo"):
            raise ValueError(
                f"`anchor` is 'sequence' and `loss_type` is '{self.loss_type}', which weighs whole completions and "
                "cannot credit single tokens. Set it to 'dr_grpo', 'dapo', 'bnpo', 'grpo' or 'cispo'."
            )
        length = self.max_completion_length or 512
        if self.beta * length > 20 * SEQUENCE_BETA:
            logger.warning(
                f"`beta` is {self.beta:g} with `anchor` 'sequence', where it multiplies the KL of a whole completion. "
                f"At 0.02 nats per token, {length} tokens make {0.02 * length:.0f} nats, and the term "
                f"{0.02 * length * self.beta:.1f} against rewards of about 1. The default for this length is "
                f"{SEQUENCE_BETA / length:.2g}."
            )

    def settle_guide(self, guide: GuideFunction | None) -> GuideFunction | None:
        """The guide of a run: that of these settings, or `guide`, given beside them. Raises if there are two."""
        if guide is None:
            return resolve_guide(self.guide, self.guide_kwargs)
        if self.guide != "none":
            raise ValueError(
                f"A guide is given both as the argument `guide` ({guide!r}) and in the configuration (`guide` is "
                f"'{self.guide}'). Give one."
            )
        self.check_anchor_takes_guide(f"`guide` is {check_guide(guide)!r}", guide)
        return guide

    def check_anchor_takes_guide(self, what: str, guide: GuideFunction) -> None:
        """
        Raises unless these settings have an anchor that this guide can reshape.

        Args:
            what (`str`):
                How the guide was given, to open the message with.
            guide ([`GuideFunction`]):
                The guide.
        """
        if self.beta == 0:
            raise ValueError(
                f"{what} but `beta` is 0, so there is no anchor that a guide could reshape. Set `beta` above 0, or "
                "`guide` to 'none'."
            )
        if self.anchor == "k3" and self.use_bias_correction_kl:
            raise ValueError(
                f"{what} but `use_bias_correction_kl` is True, which turns anchor 'k3' into 'token', an estimator "
                "under which a guide of the state alone has exactly zero expected effect. Set `anchor` to 'token' if "
                "that is what you want, else this to False; see docs/anchor.md."
            )
        if self.anchor == "token" and not guide.depends_on_token:
            raise ValueError(
                f"{what} but `anchor` is 'token', under which a guide of the state alone has exactly zero expected "
                "effect: log q(s) times the sum of grad pi(v | s) over v, and that sum is zero. Set `anchor` to "
                "'sequence' or 'k3'; see docs/anchor.md."
            )
