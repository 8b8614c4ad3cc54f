"""A comparison of evaluations as a page, as Markdown, and as rows for LaTeX."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ..evaluation.comparison import BANDS
from ..evaluation.curves import draw_on, literal, shown_ks
from ..evaluation.results import counted, percent_cell
from .page import INK, picture, render, write

MANY = 1_000_000  # problems, beyond which nobody wants to know
LATEX = {each: f"\\{each}" for each in "_&%#${}"}
LATEX |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}


def _renamed(found: Any, change: Callable[[str], str]) -> Any:
    """The comparison with other names of models and benchmarks."""
    names = {name for each in found["benchmarks"].values() for name in each["pass_at_k"]} | set(found["benchmarks"])

    def walk(part: Any) -> Any:
        if isinstance(part, dict):
            return {change(key) if key in names else key: walk(value) for key, value in part.items()}
        if isinstance(part, list):
            return [walk(value) for value in part]
        return change(part) if isinstance(part, str) and part in names else part

    return walk(found) | {"notes": [change(note) for note in found["notes"]]}


def describe_pair(pair: dict[str, Any], ks: list[int]) -> dict[str, Any]:
    """Rows and sentences about two models, for every form of the report."""
    rows = [_row(k, pair["difference"][str(k)]) for k in ks]
    return {"ours": pair["ours"], "theirs": pair["theirs"], "rows": rows, "sentences": _sentences(pair)}


def _row(k: int, found: dict[str, Any]) -> dict[str, Any]:
    low, high = found["interval"]
    if low <= 0 <= high:
        words = "no difference seen"
        if found["problems_to_settle"] is not None:
            # Two figures of it: the rest is noise
            about = float(f"{found['problems_to_settle']:.1e}")
            count = f"about {about:,.0f}" if about <= MANY else f"more than {MANY:,}"
            words += f"; one of this size would take {count} problems to see"
    else:
        words = "higher" if found["value"] > 0 else "lower"
        if found["p_holm"] > 0.05:
            words += ", but the test does not say so" if found["p"] > 0.05 else ", but not by Holm's correction"
    return {
        "k": k,
        "value": f"{100 * found['value']:+.1f}",
        "interval": f"{100 * low:+.1f} to {100 * high:+.1f}",
        "p": f"{found['p_holm']:.3f}" if found["p_holm"] >= 0.001 else "< 0.001",
        "counts": f"{found['won']}, {found['lost']}",
        "words": words,
    }


def _sentences(pair: dict[str, Any]) -> list[str]:
    ours, theirs, found = pair["ours"], pair["theirs"], pair["crossing"]
    said = []
    for solver, other, what in ((ours, theirs, "expanded"), (theirs, ours, "shrunk")):
        counts = pair["support"][what]
        bands = ", ".join(f"{count} {band}" for band, count in counts["bands"].items() if count)
        by_band = f" By how often the base solves them: {bands}." if bands else ""
        solved = counted(counts["count"], "problem") + (" is" if counts["count"] == 1 else " are")
        said.append(
            f"{solved} solved by {solver} and never by {other}; chance alone would give "
            f"{counts['by_noise']:.1f} if both were equally good at each.{by_band}"
        )
    if found["k"] is None:
        said.append(
            f"The curves do not cross; in {100 * found['share']:.0f} % of the resamples of the problems they do."
        )
    else:
        low, high = found["interval"]
        said.append(
            f"The curves cross at k = {found['k']} (95 % interval {low} to {high}, over the "
            f"{100 * found['share']:.0f} % of resamples in which they do)."
        )
    return said


def describe(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Each benchmark in words and cells."""
    described = []
    for name, found in comparison["benchmarks"].items():
        models = list(found["pass_at_k"])
        ks = shown_ks([int(k) for k in found["pass_at_k"][models[0]]])
        samples = ", ".join(f"{model} {count}" for model, count in found["samples"].items())
        described.append(
            {
                "name": name,
                "about": f"{counted(found['problems'], 'problem')}; samples of each: {samples}.",
                "ks": ks,
                "table": [(model, [percent_cell(found["pass_at_k"][model][str(k)]) for k in ks]) for model in models],
                "pairs": [describe_pair(pair, ks) for pair in found["pairs"]],
            }
        )
    return described


def escape_markdown(text: str) -> str:
    """A name that may stand in a cell or a heading."""
    return "".join(f"\\{each}" if each in r"\|`*<>[]" else each for each in " ".join(text.split()))


def markdown(comparison: dict[str, Any]) -> str:
    """The report without its pictures, for a model card."""
    comparison = _renamed(comparison, escape_markdown)
    lines = [line for note in comparison["notes"] for line in (f"**{note}**", "")]
    for each in describe(comparison):
        lines += [f"### {each['name']}", "", each["about"], ""]
        lines += ["| pass@k, % | " + " | ".join(map(str, each["ks"])) + " |", "| --- |" + " --- |" * len(each["ks"])]
        lines += [f"| {model} | {' | '.join(cells)} |" for model, cells in each["table"]]
        for pair in each["pairs"]:
            lines += ["", f"{pair['ours']} less {pair['theirs']}, in points, on the same problems:", ""]
            lines += [
                "| k | difference | 95 % interval | p, Holm | won, lost | |",
                "| --- | --- | --- | --- | --- | --- |",
            ]
            lines += [
                f"| {row['k']} | {row['value']} | {row['interval']} | {row['p']} | {row['counts']} | {row['words']} |"
                for row in pair["rows"]
            ]
            lines += ["", " ".join(pair["sentences"])]
        lines.append("")
    return "\n".join(lines)


def latex(comparison: dict[str, Any]) -> str:
    """Rows of a table: a model, and pass@k of each benchmark at the k that are shown, in percent."""
    described = describe(comparison)
    head = [f"{each['name']} @{k}" for each in described for k in each["ks"]]
    lines = ["% " + " & ".join(["model", *head])]
    for index, (model, _) in enumerate(described[0]["table"]):
        cells = [cell.partition(" ")[0] for each in described for cell in each["table"][index][1]]
        escaped = "".join(LATEX.get(character, character) for character in model)
        lines.append(" & ".join([escaped, *cells]) + r" \\")
    return "\n".join(lines)


def write_page(comparison: dict[str, Any], correct: dict[str, dict[str, np.ndarray]], path: str | Path) -> None:
    """
    Writes the page.

    Args:
        comparison (`dict`):
            From [`~sage_trl.evaluation.comparison.compare`].
        correct (`dict[str, dict[str, np.ndarray]]`):
            Pass rate of every problem, by benchmark and model.
        path (`str` or `Path`):
            The file.
    """
    described = describe(comparison)
    for each in described:
        found = comparison["benchmarks"][each["name"]]
        each["curves"] = curves(found["pass_at_k"])
        for pair, shown in zip(found["pairs"], each["pairs"], strict=True):
            rates = correct[each["name"]]
            shown["pictures"] = [
                (
                    scatter(rates[pair["theirs"]], rates[pair["ours"]], pair["theirs"], pair["ours"]),
                    "Pass rate of each problem. Above the line the one on the vertical axis is better.",
                ),
                (
                    alluvial(pair["flow"], pair["theirs"], pair["ours"]),
                    "Problems by how often they are solved: never, up to 10 %, up to 90 %, above.",
                ),
            ]
    models = list(next(iter(comparison["benchmarks"].values()))["pass_at_k"])
    html = render(
        "compare.html",
        title=f"{', '.join(models[:-1])} and {models[-1]}",
        subtitle=f"pass@k on the same problems. Base: {comparison['base']}. Intervals by the paired bootstrap over "
        "problems.",
        notes=comparison["notes"],
        benchmarks=described,
    )
    write(path, html)


def curves(figures: dict[str, dict[str, dict]]) -> Markup:
    with picture(6.4, 3.6) as (_, axes, made):
        draw_on(axes, figures)
    return made[0]


def scatter(before: np.ndarray, after: np.ndarray, x_name: str, y_name: str) -> Markup:
    with picture(4.2, 3.4) as (_, axes, made):
        points, counts = np.unique(np.stack([before, after], axis=1), axis=0, return_counts=True)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
        axes.scatter(*points.T, s=14 * counts, color="#3A93CC", alpha=0.6, linewidths=0)
        axes.set_xlabel(literal(x_name))
        axes.set_ylabel(literal(y_name))
        axes.set_aspect("equal")
    return made[0]


def alluvial(flow: list[list[int]], x_name: str, y_name: str) -> Markup:
    """Problems of each band on the left, where they go on the right."""
    table, colours = np.array(flow), ("#808890", "#E69F00", "#56B4E9", "#0072B2")
    gap = 0.04 * table.sum()
    left = np.concatenate([[0], np.cumsum(table.sum(1) + gap)[:-1]])
    right = np.concatenate([[0], np.cumsum(table.sum(0) + gap)[:-1]])
    with picture(4.2, 3.4) as (_, axes, made):
        steps = np.linspace(0, 1, 40)
        smooth = steps**2 * (3 - 2 * steps)
        for side, starts, sizes in ((0.0, left, table.sum(1)), (1.0, right, table.sum(0))):
            for start, size, name in zip(starts, sizes, BANDS.values(), strict=True):
                if size:
                    at = (side - 0.02, start + size / 2) if side == 0 else (side + 0.02, start + size / 2)
                    axes.text(*at, f"{name}: {size}", ha="right" if side == 0 else "left", va="center")
        starts_left, starts_right = left.astype(float).copy(), right.astype(float).copy()
        for i, row in enumerate(table):
            for j, count in enumerate(row):
                low = starts_left[i] + (starts_right[j] - starts_left[i]) * smooth
                axes.fill_between(steps, low, low + count, color=colours[i], alpha=0.6, linewidth=0)
                starts_left[i] += count
                starts_right[j] += count
        axes.set_xlim(-0.55, 1.55)
        axes.set_xticks([0, 1], [literal(x_name), literal(y_name)])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return made[0]
