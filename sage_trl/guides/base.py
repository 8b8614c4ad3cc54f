"""What a guide sees and what it returns: the one small interface that every guide, built-in or yours, implements."""

import dataclasses
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from .rollout import Rollout


@dataclass
class GuideSignals:
    """
    What a guide may look at while one micro-batch's loss is computed. B is the number of completions, T the longest of
    them in tokens. Log-probabilities and entropies are in nats. A guide gets all floating-point signals detached and
    in float32, whatever the model's dtype.

    Args:
        policy_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probability of each completion token under the policy.
        ref_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probability of each completion token under the reference policy.
        mask (`torch.Tensor` of shape `(B, T)`):
            Non-zero where a token counts: neither padding nor a tool's output.
        entropies (`torch.Tensor` of shape `(B, T)`, *optional*):
            Entropy of the policy's distribution that each token was drawn from.
        ref_entropies (`torch.Tensor` of shape `(B, T)`, *optional*):
            The same under the reference. Present only where the guide lists it in `requires`.
        completion_ids (`torch.Tensor` of shape `(B, T)`, *optional*):
            Token ids of the completions, padded on the right.
        prompt_ids (`torch.Tensor` of shape `(B, P)`, *optional*):
            Token ids of the prompts, padded on the left.
        advantages (`torch.Tensor` of shape `(B,)` or `(B, T)`, *optional*):
            The advantages that the loss uses. They come from rewards: a guide that reads them makes q depend on r.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            The tokenizer of the ids.
        step (`int`, *optional*, defaults to `0`):
            Optimizer steps done.
        max_steps (`int`, *optional*, defaults to `1`):
            Optimizer steps of the whole run.
        generator (`torch.Generator`, *optional*):
            The only source of noise that a guide may use: seeded by (seed, step, micro-batch, process).
        extra (`dict[str, torch.Tensor]`, *optional*):
            This micro-batch's rows of what the guide's own `prepare` returned, shapes `(B,)` or `(B, T)`.
    """

    policy_logps: torch.Tensor
    ref_logps: torch.Tensor
    mask: torch.Tensor
    entropies: torch.Tensor | None = None
    ref_entropies: torch.Tensor | None = None
    completion_ids: torch.Tensor | None = None
    prompt_ids: torch.Tensor | None = None
    advantages: torch.Tensor | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    step: int = 0
    max_steps: int = 1
    generator: torch.Generator | None = None
    extra: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def randn(self) -> torch.Tensor:
        """Standard normal noise of shape `(B, T)`, float32, drawn from `generator`."""
        return self._draw(torch.randn)

    def rand(self) -> torch.Tensor:
        """Uniform noise in `[0, 1)` of shape `(B, T)`, float32, drawn from `generator`."""
        return self._draw(torch.rand)

    def _draw(self, sampler) -> torch.Tensor:
        if self.generator is None:
            raise ValueError(
                "The guide draws noise, but `generator` of its signals is None, and a guide never touches a global "
                "generator. Set `generator=torch.Generator().manual_seed(...)`."
            )
        noise = sampler(self.mask.shape, generator=self.generator, device=self.generator.device, dtype=torch.float32)
        return noise.to(self.mask.device)

    def prepared(self) -> "GuideSignals":
        """A copy as guides get it: floating-point signals detached and in float32, the mask boolean."""
        changes = {
            field.name: value.detach().float()
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor) and value.is_floating_point()
        }
        return dataclasses.replace(self, **(changes | {"mask": self.mask != 0}))

    def of_part(self, index: int) -> "GuideSignals":
        """A copy for one guide of a product, with that guide's part of `extra`."""
        prefix = f"{index}."
        own = {name[len(prefix) :]: value for name, value in self.extra.items() if name.startswith(prefix)}
        return dataclasses.replace(self, extra=own)


SIGNAL_NAMES = tuple(field.name for field in dataclasses.fields(GuideSignals) if field.name != "extra")


class GuideFunction:
    """
    A positive function q(x, y) that reshapes the anchor of the KL term: the reference `ref` becomes `q * ref`.

    A subclass implements `__call__` and says in `requires` which signals it reads. Masking, detaching, clamping to
    `[q_min, q_max]` and checking are done around it by [`~sage_trl.anchor.evaluate_guide`]. Settings are constructor
    arguments, kept under their own names as attributes: they are what a recipe's `guide_kwargs` sets and what the
    model card prints.

    Attributes:
        requires (`tuple[str, ...]`):
            Names of the [`GuideSignals`] that the guide reads. `"ref_entropies"` is computed only where it is listed.
        depends_on_token (`bool`):
            Whether q depends on anything but the state that a token is drawn in: the prompt and the tokens before it.
            A guide of the state alone has no effect with `anchor="token"`, where it is refused; see `docs/anchor.md`.
        looks_ahead (`bool`):
            Whether q of a token depends on later tokens, as one that is normalised over the completion does. With
            `anchor="sequence"` a token is then credited with `log q` of earlier tokens too, at some more variance.
    """

    depends_on_token: bool = True
    looks_ahead: bool = True
    requires: tuple[str, ...] = ("policy_logps", "ref_logps", "entropies")

    def prepare(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """
        Looks at a whole generation batch, once, before the loss sees parts of it. Optional: a guide that does not
        override this costs nothing here.

        Args:
            rollout ([`Rollout`]):
                All processes' completions with their rewards, groups together.

        Returns:
            `dict[str, torch.Tensor]`: tensors of shape `(N,)` or `(N, T)`. Their rows travel with the completions
            through shuffling and splitting, and reach `__call__` as `signals.extra`.
        """
        return {}

    @property
    def prepares(self) -> bool:
        return type(self).prepare is not GuideFunction.prepare

    @property
    def parts(self) -> "list[GuideFunction]":
        """The guides that this one is the product of: itself, where it is none."""
        return [self]

    def remarks(self, signals: GuideSignals) -> list[str]:
        """
        What a user should know who looks at this guide on a model, in words. Optional; `sage-trl guide` shows it.

        Args:
            signals ([`GuideSignals`]):
                Signals of some completions, as `__call__` gets them.

        Returns:
            `list[str]`: such as that a threshold is out of reach.
        """
        return []

    def __call__(self, signals: GuideSignals) -> torch.Tensor:
        """
        Values of the guide.

        Args:
            signals ([`GuideSignals`]):
                What is known about the micro-batch.

        Returns:
            `torch.Tensor` of shape `(B, T)`: q, finite and positive wherever `signals.mask` is true. 1 leaves a
            token's anchor as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement `__call__(self, signals)`.")

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "requires")
        return f"{type(self).__name__}({settings})"


def check_source(source: str) -> str:
    """Returns `source` if it names a model a guide can look at, else raises."""
    if source not in ("policy", "ref"):
        raise ValueError(f"`source` is {source!r}; it must be 'policy' or 'ref'.")
    return source
