"""Pictures of pass@k."""

from pathlib import Path
from typing import Any

MARKED = (1, 4, 16, 64, 256, 1024)
# Colour-blind safe (Okabe and Ito); marker and dash tell the lines apart in grey too
LOOKS = (
    {"color": "#0072B2", "marker": "o", "linestyle": "--"},
    {"color": "#D55E00", "marker": "^", "linestyle": "-"},
    {"color": "#009E73", "marker": "s", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#555555", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#E69F00", "marker": "P", "linestyle": (0, (1, 1))},
)


def shown_ks(ks: list[int]) -> list[int]:
    """Those of a table: 1, 4, 16 ... and the largest."""
    return sorted({k for k in ks if k in MARKED} | {ks[0], ks[-1]})


def draw_curves(results: dict[str, Any], path: str | Path) -> None:
    """
    Draws pass@k of every benchmark over k, with bands.

    Args:
        results (`dict`):
            What `results.json` holds.
        path (`str` or `Path`):
            The picture.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    ticks: set[int] = set()
    for number, (name, found) in enumerate(results["benchmarks"].items()):
        ks, look = [int(k) for k in found["pass_at_k"]], LOOKS[number % len(LOOKS)]
        figures = list(found["pass_at_k"].values())
        low, high = zip(*(figure["problems"] for figure in figures), strict=True)
        axes.fill_between(ks, low, high, color=look["color"], alpha=0.13, linewidth=0)
        axes.plot(ks, [figure["value"] for figure in figures], label=name, markersize=4, **look)
        ticks |= set(shown_ks(ks))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [str(k) for k in sorted(ticks)])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("k, samples per problem")
    axes.set_ylabel("pass@k")
    axes.set_title("Bands: 95 % interval over problems", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
