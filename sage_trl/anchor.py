"""
The anchor of the KL term, in log space: `log ref` becomes `log ref + log q`.

Pure tensor functions: nothing here knows a trainer. B is the number of completions, T the longest in tokens;
log-probabilities are in nats; the mask is non-zero where a token counts. The method is SAGE's (arXiv 2605.18864);
`docs/anchor.md` says what the resulting KL term optimises.
"""

import torch

from .guides.base import GuideFunction, GuideSignals
from .guides.rollout import Rollout


def evaluate_guide(guide: GuideFunction, signals: GuideSignals, q_min: float, q_max: float) -> torch.Tensor:
    """
    Evaluates a guide safely: the values that reshape the anchor.

    Args:
        guide ([`GuideFunction`]):
            The guide.
        signals ([`GuideSignals`]):
            What it sees. Left as it is.
        q_min (`float`):
            Lower clamp, at most 1.
        q_max (`float`):
            Upper clamp, at least 1.

    Returns:
        `torch.Tensor` of shape `(B, T)`: q in float32, detached, in `[q_min, q_max]`, and 1 where the mask is 0.

    Raises:
        [`TypeError`], [`ValueError`]: the guide returns no tensor, the wrong shape, or values that are not finite and
        positive on valid tokens.
    """
    return guide_values(guide, signals).clamp(q_min, q_max)


def guide_values(guide: GuideFunction, signals: GuideSignals) -> torch.Tensor:
    """[`evaluate_guide`] before the clamp. Shape `(B, T)`."""
    signals = signals.prepared()
    tensors = {name: value for name, value in vars(signals).items() if isinstance(value, torch.Tensor)}
    versions = {name: value._version for name, value in tensors.items()}
    name, shape = type(guide).__name__, tuple(signals.mask.shape)
    missing = [signal for signal in guide.requires if getattr(signals, signal) is None]
    if missing:
        raise ValueError(f"Guide {name} requires the signals {missing}, which are None.")
    with torch.no_grad():
        values = guide(signals)
    # They share memory with what the loss goes on to use
    changed = [signal for signal, value in tensors.items() if value._version != versions[signal]]
    if changed:
        raise ValueError(
            f"Guide {name} changed the signals {changed} in place at step {signals.step}. Copy them first."
        )
    if not isinstance(values, torch.Tensor):
        raise TypeError(f"Guide {name} returned {type(values).__name__} at step {signals.step}, not a tensor.")
    if tuple(values.shape) != shape:
        raise ValueError(
            f"Guide {name} returned shape {tuple(values.shape)} at step {signals.step}; it must be (B, T) = {shape}."
        )
    values = torch.where(signals.mask, values.detach().float(), 1.0)
    num_bad = int((~(torch.isfinite(values) & (values > 0))).sum())
    if num_bad:
        raise ValueError(
            f"Guide {name} returned {num_bad} values that are not finite and positive among the "
            f"{int(signals.mask.sum())} valid tokens of a micro-batch at step {signals.step}. A guide multiplies a "
            "probability: keep it positive, for example with `.clamp(min=0.1)`."
        )
    return values


def prepared_extras(guide: GuideFunction, rollout: Rollout) -> dict[str, torch.Tensor]:
    """
    What a guide makes of a generation batch, checked.

    Args:
        guide ([`GuideFunction`]):
            The guide.
        rollout ([`Rollout`]):
            The batch.

    Returns:
        `dict[str, torch.Tensor]`: detached tensors of shape `(N,)` or `(N, T)`.

    Raises:
        [`TypeError`], [`ValueError`]: the guide returned anything else.
    """
    with torch.no_grad():
        made = guide.prepare(rollout)
    shapes, name = (tuple(rollout.mask.shape[:1]), tuple(rollout.mask.shape)), type(guide).__name__
    if not isinstance(made, dict) or not all(isinstance(value, torch.Tensor) for value in made.values()):
        raise TypeError(f"`prepare` of guide {name} must return a dict of tensors at step {rollout.step}.")
    for key, value in made.items():
        if tuple(value.shape) not in shapes:
            raise ValueError(
                f"`prepare` of guide {name} returned '{key}' of shape {tuple(value.shape)} at step {rollout.step}; it "
                f"must be (N,) = {shapes[0]} or (N, T) = {shapes[1]}."
            )
    return {key: value.detach() for key, value in made.items()}


def shape_anchor(ref_logps: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The anchor's log-probabilities `ref_logps + log q`, a new tensor. Shapes `(B, T)`."""
    return ref_logps + q.log()


def sequence_credit(
    policy_logps: torch.Tensor, ref_logps: torch.Tensor, q: torch.Tensor, mask: torch.Tensor, looks_ahead: bool
) -> torch.Tensor:
    """
    What each token is credited with, in nats: `C_t = sum_{u >= t} (ref_u + log q_u - policy_u)`, the rest of its
    completion. Where the guide looks ahead `sum_{u < t} log q_u` is added, since the token has a part in that as well.
    `-C_0` is an unbiased estimate of KL(policy || q ref) of whole completions.

    Args:
        policy_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probabilities of the tokens under the policy that drew them.
        ref_logps (`torch.Tensor` of shape `(B, T)`):
            Those under the reference.
        q (`torch.Tensor` of shape `(B, T)`):
            The guide, 1 where the mask is 0.
        mask (`torch.Tensor` of shape `(B, T)`):
            Non-zero where a token counts.
        looks_ahead (`bool`):
            Whether q of a token depends on later tokens.

    Returns:
        `torch.Tensor` of shape `(B, T)`: float32, detached, 0 after a completion's end.
    """
    valid = mask != 0
    anchor = shape_anchor(ref_logps.detach().float(), q)
    credit = _rest(torch.where(valid, anchor - policy_logps.detach().float(), 0.0))
    if looks_ahead:
        log_q = torch.where(valid, q.log(), 0.0)
        credit = torch.where(_rest(valid.int()) > 0, credit + log_q.cumsum(-1) - log_q, 0.0)
    return credit


def _rest(values: torch.Tensor) -> torch.Tensor:
    """Sum of each row from every position to its end. Shapes `(B, T)`."""
    return values.flip(-1).cumsum(-1).flip(-1)


def group_baseline(credit: torch.Tensor, counted: torch.Tensor, group_size: int) -> torch.Tensor:
    """
    Mean of the credit over each prompt's group, position by position. A completion that has ended counts as 0, so that
    each one's own share in its baseline is the same at every position: the gradient keeps its direction.

    Args:
        credit (`torch.Tensor` of shape `(N, T)`):
            C of each completion, groups together.
        counted (`torch.Tensor` of shape `(N,)`):
            Whether a completion has a token that counts; the others (truncated ones, with
            `mask_truncated_completions`) are left out.
        group_size (`int`):
            Completions of one prompt.

    Returns:
        `torch.Tensor` of shape `(N, T)`: the mean of the group, 0 for one of which none counts.
    """
    groups = credit.view(-1, group_size, credit.size(-1))
    weights = counted.view(-1, group_size, 1).float()
    means = (groups * weights).sum(1) / weights.sum(1).clamp(min=1)
    return means.repeat_interleave(group_size, dim=0)


def credited_advantages(
    advantages: torch.Tensor, credit: torch.Tensor, baseline: torch.Tensor, beta: float
) -> torch.Tensor:
    """
    Advantages of the objective `E[r] - beta * KL(policy || anchor)`: `A_t = A + beta * (C_t - b_t)`.

    Args:
        advantages (`torch.Tensor` of shape `(B,)`):
            The reward's.
        credit (`torch.Tensor` of shape `(B, T)`):
            C, from [`sequence_credit`].
        baseline (`torch.Tensor` of shape `(B, T)`):
            b, from [`group_baseline`].
        beta (`float`):
            Coefficient of the KL of whole completions.

    Returns:
        `torch.Tensor` of shape `(B, T)`.
    """
    return advantages.unsqueeze(1) + beta * (credit - baseline)


def k3_kl(policy_logps: torch.Tensor, anchor_logps: torch.Tensor) -> torch.Tensor:
    """
    Schulman's k3 estimate of KL(policy || anchor) per token: `exp(d) - d - 1` with `d = anchor_logps - policy_logps`.
    Shapes `(B, T)`.
    """
    difference = anchor_logps - policy_logps
    return difference.exp() - difference - 1


def anchor_statistics(
    policy_logps: torch.Tensor,
    ref_logps: torch.Tensor,
    mask: torch.Tensor,
    values: torch.Tensor,
    q: torch.Tensor,
) -> torch.Tensor:
    """
    Sums and extremes from which [`summarize_statistics`] makes the metrics of all processes.

    Args:
        policy_logps, ref_logps, mask (`torch.Tensor` of shape `(B, T)`):
            As in [`GuideSignals`].
        values (`torch.Tensor` of shape `(B, T)`):
            The guide's values before the clamp.
        q (`torch.Tensor` of shape `(B, T)`):
            The guide's values after it.

    Returns:
        `torch.Tensor` of shape `(1, 9)`, float32: one fixed-size row, whatever the data, so that it can be gathered.
    """
    valid = mask != 0
    sums = [
        valid.sum(),
        torch.where(valid, q, 0.0).sum(),
        (valid & (q != 1)).sum(),
        (valid & (values != q)).sum(),
        q.log().sum(),  # q is 1 where the mask is 0
        torch.where(valid, k3_kl(policy_logps.detach().float(), ref_logps.float()), 0.0).sum(),
        torch.full((), q.size(0)),
    ]
    extremes = [torch.where(valid, q, torch.inf).amin(), torch.where(valid, q, -torch.inf).amax()]
    return torch.stack([value.to(q.device, torch.float32) for value in sums + extremes]).unsqueeze(0)


def summarize_statistics(rows: torch.Tensor) -> dict[str, float]:
    """
    Metrics from the rows of [`anchor_statistics`] of all processes, shape `(P, 9)`. NaN without a valid token.
    """
    rows = rows.cpu().double()
    tokens, q_sum, active, clamped, log_q_sum, kl_sum, completions = rows[:, :7].sum(0)
    low, high = rows[:, 7].amin(), rows[:, 8].amax()
    metrics = {
        "q_mean": q_sum / tokens,
        "q_min": low if tokens > 0 else torch.nan,
        "q_max": high if tokens > 0 else torch.nan,
        "active_frac": active / tokens,
        "clamped_frac": clamped / tokens,
        "log_q_sum": log_q_sum / completions,
        "kl_ref": kl_sum / tokens,
    }
    return {name: float(value) for name, value in metrics.items()}
