"""A guide at work on some completions: the page of `sage-trl guide`, and its short form for a terminal."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from ..dry_run import describe_guide
from ..guides.schedule import schedules_of
from .page import INK, picture, render, write

if TYPE_CHECKING:
    import pandas

    from ..config import SAGEGRPOConfig
    from ..guides import GuideFunction
    from ..observe import Observation

LITTLE, MUCH = 0.001, 0.05  # shares of tokens: touched at all, and clamped
UP, DOWN = "#D55E00", "#0072B2"
# Column of the table -> its name in a token's figures
SHOWN = {
    "surprisal": "surprisal",
    "ref_surprisal": "  reference",
    "entropy": "entropy",
    "ref_entropy": "  reference",
    "q": "q",
    "log_q": "log q",
}


@dataclass
class GuideView:
    """
    What is shown of a guide.

    Args:
        guide ([`GuideFunction`]):
            The guide.
        table (`pandas.DataFrame`):
            From [`~sage_trl.guides.inspect`].
        seen ([`~sage_trl.observe.Observation`]):
            The completions.
        args ([`SAGEGRPOConfig`]):
            The recipe's settings.
        model, ref (`str`):
            What the policy and the reference are.
        step (`int`):
            Step that is shown.
        max_steps (`int` or `None`):
            Steps of the run, where they are known.
        guide_remarks (`list[str]`):
            What the guide itself and the command have to say.
    """

    guide: "GuideFunction"
    table: "pandas.DataFrame"
    seen: "Observation"
    args: "SAGEGRPOConfig"
    model: str
    ref: str
    step: int
    max_steps: int | None
    guide_remarks: list[str]

    @cached_property
    def touched(self) -> float:
        return float((self.table["q"] != 1).mean())

    @cached_property
    def clamped(self) -> tuple[float, float]:
        """Shares of tokens whose value is below `q_min` and above `q_max`."""
        values, q = self.table["value"], self.table["q"]
        return float((values < q).mean()), float((values > q).mean())

    @cached_property
    def log_q_sums(self) -> np.ndarray:
        return self.table.groupby("completion")["log_q"].sum().to_numpy()

    @cached_property
    def scale(self) -> float:
        """The log q that has the fullest colour."""
        return float(self.table["log_q"].abs().max()) or 0.01

    @property
    def columns(self) -> list[str]:
        """The table's columns that are shown of a token."""
        return [name for name in SHOWN if name in self.table]

    @property
    def title(self) -> str:
        return f"Guide {describe_guide(self.guide)}"

    @property
    def subtitle(self) -> str:
        steps = f"step {self.step} of {self.max_steps}" if self.max_steps else "the first step of a run"
        return f"Policy: {self.model}. Reference: {self.ref}. At {steps}."

    @cached_property
    def remarks(self) -> list[str]:
        found = list(self.guide_remarks)
        below, above = self.clamped
        if self.touched < LITTLE and not found:
            found.append(
                f"q is other than 1 on {percent(self.touched)} of the tokens: this guide will do "
                f"{'next to nothing' if self.touched else 'nothing'} to this model."
            )
        if below + above >= MUCH:
            sides = [f"{percent(below)} at q_min {self.args.q_min:g}"] * (below > 0)
            sides += [f"{percent(above)} at q_max {self.args.q_max:g}"] * (above > 0)
            found.append(f"{percent(below + above)} of values are clamped: {' and '.join(sides)}.")
        if self.args.mask_truncated_completions and any(self.seen.cut_off):
            found.append(
                f"{sum(self.seen.cut_off)} of {len(self.seen.cut_off)} completions are cut off: training leaves them "
                "out (`mask_truncated_completions`), though they are shown and counted here."
            )
        if all(self.seen.cut_off):
            found.append(
                f"No completion came to its end within `max_completion_length` {self.args.max_completion_length}."
            )
        return found

    @cached_property
    def figures(self) -> list[tuple[str, str]]:
        seen, q, sums = self.seen, self.table["q"], self.log_q_sums
        below, above = self.clamped
        lines = [
            ("completions", f"{len(sums)} of {len(seen.prompts)} problems, {len(q):,} tokens"),
            ("tokens touched", f"{percent(self.touched)} have q other than 1"),
            (
                "clamped",
                f"{percent(below)} at q_min {self.args.q_min:g}, {percent(above)} at q_max {self.args.q_max:g}",
            ),
            ("q", f"mean {q.mean():.4f}, from {q.min():.4f} to {q.max():.4f}"),
            ("log q of a completion", f"mean {sums.mean():+.3f} nats, from {sums.min():+.3f} to {sums.max():+.3f}"),
            ("entropy", quantiles(self.table["entropy"])),
            ("surprisal", quantiles(self.table["surprisal"])),
            ("cut off", f"{sum(seen.cut_off)} of {len(sums)} completions"),
        ]
        if seen.correct is not None:
            lines.append(("correct", f"{sum(seen.correct)} of {len(sums)} completions"))
        settings = f"{self.args.anchor}, beta {self.args.beta:g}"
        return [*lines, ("anchor", f"{settings}; temperature {self.args.temperature:g}")]

    def facts(self, index: int) -> list[str | Markup]:
        """What is said of one completion."""
        rows = self.table[self.table["completion"] == index]
        parts = [Markup("<b>log q {:+.3f}</b>").format(rows["log_q"].sum()), f"{len(rows)} tokens"]
        parts.append(f"{percent(float((rows['q'] != 1).mean()))} touched")
        if self.seen.rewards is not None:
            parts.append(f"reward {self.seen.rewards[index]:.2f}")
            parts.append("correct" if self.seen.correct[index] else "not correct")
        return [*parts, "cut off"] if self.seen.cut_off[index] else parts


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def quantiles(values: "pandas.Series") -> str:
    half, most, nearly_all = values.quantile([0.5, 0.9, 0.99], interpolation="lower")
    return (
        f"half below {half:.2f}, 90 % below {most:.2f}, 99 % below {nearly_all:.2f}, at most {values.max():.2f} nats"
    )


def write_page(view: GuideView, path: str | Path) -> None:
    """
    Writes the page.

    Args:
        view ([`GuideView`]):
            What to show.
        path (`str` or `Path`):
            The file.
    """
    completions = [
        {"facts": view.facts(index), "tokens": tokens_of(rows, view.columns, view.scale)}
        for index, rows in view.table.groupby("completion")
    ]
    prompts = [{"text": text, "completions": []} for text in view.seen.prompts]
    for completion, prompt in zip(completions, view.seen.prompt_of, strict=True):
        prompts[prompt]["completions"].append(completion)
    html = render(
        "guide.html",
        title=view.title,
        subtitle=view.subtitle,
        remarks=view.remarks,
        figures=view.figures,
        pictures=pictures_of(view),
        prompts=prompts,
        scale=view.scale,
        names=[SHOWN[name] for name in view.columns],
    )
    write(path, html)


def tokens_of(rows: "pandas.DataFrame", columns: list[str], scale: float) -> list[dict[str, Any]]:
    shades = (100 * rows["log_q"].abs() / scale).round().astype(int)
    sides = np.where(rows["log_q"] > 0, "u", "d")
    figures = rows[columns].map("{:.3f}".format).agg(" ".join, axis=1)
    return [
        {
            "text": text.replace("\n", "⏎\n"),
            "look": Markup(f' class={side} style="--a:{shade}"') if shade else "",
            "figures": numbers,
        }
        for text, side, shade, numbers in zip(rows["token"], sides, shades, figures, strict=True)
    ]


def pictures_of(view: GuideView) -> list[tuple[Markup, str]]:
    found = [(histogram(view), "q before the clamp on the tokens that are touched. Dashed: q_min and q_max.")]
    found.append((entropies(view), "Entropy of the policy where each token was drawn."))
    schedules = schedules_of(view.guide)
    if schedules:
        found.append((curves(view, schedules), "Strength over the run. The line is the step that is shown."))
    return found


def histogram(view: GuideView) -> Markup:
    values = view.table["value"].to_numpy()
    values = values[values != 1]
    low, high = view.args.q_min, view.args.q_max
    if len(values):
        low, high = min(low, np.quantile(values, 0.001)), max(high, np.quantile(values, 0.999))
    with picture() as (_, axes, made):
        bins = np.linspace(low - 0.02, high + 0.02, 61)
        counts, edges = np.histogram(values.clip(bins[0], bins[-1]), bins)
        colours = [UP if edge >= 1 else DOWN for edge in edges[:-1]]
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours)
        for bound in (view.args.q_min, view.args.q_max):
            axes.axvline(bound, color=INK, linestyle="--", linewidth=1)
        axes.set_xlabel("q")
        axes.set_ylabel("tokens")
        if not len(values):
            axes.text(0.5, 0.5, "no token is touched", ha="center", transform=axes.transAxes)
    return made[0]


def entropies(view: GuideView) -> Markup:
    with picture() as (_, axes, made):
        axes.hist(view.table["entropy"], bins=60, color="#808890")
        axes.set_yscale("log")
        axes.set_xlabel("entropy, nats")
        axes.set_ylabel("tokens, log scale")
        for part in view.guide.parts:
            if hasattr(part, "threshold"):
                axes.axvline(part.threshold, color=UP, linestyle="--", linewidth=1.2)
                axes.annotate(
                    " threshold", (part.threshold, 1), xycoords=("data", "axes fraction"), va="top", color=UP
                )
    return made[0]


def curves(view: GuideView, schedules: dict) -> Markup:
    steps = view.max_steps or 1000
    with picture() as (_, axes, made):
        at = np.unique(np.linspace(0, steps - 1, min(steps, 800)).round().astype(int))
        where = at if view.max_steps else 100 * at / steps
        looks = zip(schedules.items(), (UP, DOWN, "#009E73", "#CC79A7") * 8, ("-", "--", "-.", ":") * 8, strict=False)
        for (name, schedule), colour, dash in looks:
            line = [schedule.value(int(step), steps) for step in at]
            axes.plot(where, line, color=colour, linestyle=dash, label=name)
        axes.axvline(view.step, color=INK, linewidth=1)
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("step" if view.max_steps else "% of the run")
        axes.legend(frameon=False, loc="upper right")
    return made[0]


def print_view(view: GuideView, shown: int = 2, tokens: int = 400) -> None:
    """
    Prints it in short: figures, remarks, the tokens whose q is farthest from 1, and some completions in colour.

    Args:
        view ([`GuideView`]):
            What to show.
        shown (`int`, *optional*, defaults to `2`):
            How many completions.
        tokens (`int`, *optional*, defaults to `400`):
            How many tokens of each.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(view.title, style="bold"), Text(view.subtitle, style="dim"), sep="\n")
    facts = Table.grid(padding=(0, 2))
    for name, value in view.figures:
        facts.add_row(Text(name, style="dim"), Text(value))
    console.print(facts)
    if view.touched:
        farthest = view.table.loc[view.table["log_q"].abs().sort_values(ascending=False, kind="stable").index[:8]]
        top = Table(title="Tokens whose q is farthest from 1", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in ("token", *(name.replace("_", " ") for name in view.columns)):
            top.add_column(name, justify="left" if name == "token" else "right")
        for _, row in farthest.iterrows():
            top.add_row(Text(repr(row["token"])), *(f"{row[name]:.3f}" for name in view.columns))
        console.print("", top)
    for index, rows in list(view.table.groupby("completion"))[:shown]:
        console.print("", Text(" · ".join(str(part) for part in _plain(view.facts(index))), style="dim"))
        text = Text()
        for token, log_q in zip(rows["token"][:tokens], rows["log_q"], strict=False):
            text.append(printable(token), style=_shade(log_q / view.scale))
        console.print(text.append(" [...]", style="dim") if len(rows) > tokens else text)
    for remark in view.remarks:
        console.print("", Text(remark, style="bold yellow"))


def printable(text: str) -> str:
    """Without what would control the terminal."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def _plain(facts: list[str | Markup]) -> list[str]:
    return [fact.striptags() if isinstance(fact, Markup) else fact for fact in facts]


def _shade(strength: float) -> str:
    """Background between the terminal's own and the colour of a side, on a dark ground as on a light one."""
    if abs(strength) < 0.02:
        return ""
    red, green, blue = (0xD5, 0x5E, 0x00) if strength > 0 else (0x00, 0x72, 0xB2)
    amount = 0.35 + 0.65 * abs(strength)
    return "black on #" + "".join(f"{round(255 - amount * (255 - part)):02x}" for part in (red, green, blue))
