"""Rows of a batch, from every process and back."""

from typing import TYPE_CHECKING

from .anchor import credited_advantages, group_baseline

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


def gather_rows(accelerator: "Accelerator", tensor: "torch.Tensor") -> "torch.Tensor":
    """The rows of all processes, whose longest completions differ."""
    return accelerator.gather(accelerator.pad_across_processes(tensor, dim=1))


def own_rows(accelerator: "Accelerator", gathered: "torch.Tensor", like: "torch.Tensor") -> "torch.Tensor":
    """This process's rows again, as long as its own completions `like`."""
    start = accelerator.process_index * len(like)
    rows = gathered[start : start + len(like)]
    return rows if rows.dim() == 1 else rows[:, : like.size(1)]


def credit_groups(
    accelerator: "Accelerator",
    advantages: "torch.Tensor",
    credit: "torch.Tensor",
    mask: "torch.Tensor",
    group_size: int,
    beta: float,
) -> tuple["torch.Tensor", float]:
    """
    Adds the anchor's credit to the advantages, against the baseline of each prompt's group, which can span processes.

    Args:
        accelerator (`Accelerator`):
            Of the run.
        advantages (`torch.Tensor` of shape `(B,)`):
            The reward's.
        credit (`torch.Tensor` of shape `(B, T)`):
            From [`~sage_trl.anchor.sequence_credit`].
        mask (`torch.Tensor` of shape `(B, T)`):
            Non-zero where a token counts.
        group_size (`int`):
            Completions of one prompt.
        beta (`float`):
            Coefficient of the KL of whole completions.

    Returns:
        `tuple[torch.Tensor, float]`: advantages of shape `(B, T)`, and the mean KL(policy || anchor) of a completion
        in nats over all processes.
    """
    counted, everyones = accelerator.gather((mask != 0).any(1).float()), gather_rows(accelerator, credit)
    baseline = own_rows(accelerator, group_baseline(everyones, counted, group_size), credit)
    kl = -(everyones[:, 0] * counted).sum() / counted.sum().clamp(min=1)
    return credited_advantages(advantages, credit, baseline, beta), kl.item()
