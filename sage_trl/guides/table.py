"""A guide at work, as a table to look at in a notebook."""

from typing import TYPE_CHECKING

from .base import GuideFunction, GuideSignals

if TYPE_CHECKING:
    import pandas
    import torch


def inspect(guide: GuideFunction, signals: GuideSignals, q_min: float = 0.6, q_max: float = 1.4) -> "pandas.DataFrame":
    """
    What a guide does to each token.

    Example:

    ```python
    table = inspect(BranchGuide(threshold=0.8), signals)
    table.sort_values("q").tail()  # the tokens it raises most
    table.groupby("completion")["log_q"].sum()
    ```

    Args:
        guide ([`GuideFunction`]):
            The guide.
        signals ([`GuideSignals`]):
            What it sees.
        q_min (`float`, *optional*, defaults to `0.6`):
            Lower clamp, at most 1.
        q_max (`float`, *optional*, defaults to `1.4`):
            Upper clamp, at least 1.

    Returns:
        `pandas.DataFrame`: a row for each valid token, in order. `completion` and `position` count from 0;
        `surprisal`, `ref_surprisal`, `entropy` and `ref_entropy` are in nats; `value` is the guide's before the clamp,
        `q` after it, and `log_q` its logarithm. `token_id`, `token` and the entropies are there if the signals have
        them.

    Raises:
        [`TypeError`], [`ValueError`]: as [`~sage_trl.anchor.evaluate_guide`].
    """
    import pandas

    from ..anchor import guide_values  # which imports this package

    values = guide_values(guide, signals)
    signals = signals.prepared()
    rows, positions = signals.mask.nonzero(as_tuple=True)
    q = values.clamp(q_min, q_max)
    columns: dict[str, torch.Tensor | None] = {
        "token_id": signals.completion_ids,
        "surprisal": -signals.policy_logps,
        "ref_surprisal": -signals.ref_logps,
        "entropy": signals.entropies,
        "ref_entropy": signals.ref_entropies,
        "value": values,
        "q": q,
        "log_q": q.log(),
    }
    table = pandas.DataFrame({"completion": rows.cpu().numpy(), "position": positions.cpu().numpy()})
    for name, column in columns.items():
        if column is not None:
            table[name] = column[signals.mask].cpu().numpy()
    if signals.completion_ids is not None and signals.tokenizer is not None:
        texts = {number: signals.tokenizer.decode([number]) for number in table["token_id"].unique()}
        table.insert(3, "token", table["token_id"].map(texts))
    return table
