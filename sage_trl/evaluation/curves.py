"""Pictures of pass@k."""

from pathlib import Path

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


def literal(text: str) -> str:
    """A name in a picture, in which a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def draw_on(axes, figures: dict[str, dict[str, dict]]) -> None:
    """
    Draws pass@k over k with bands, a line for each name.

    Args:
        axes (`matplotlib.axes.Axes`):
            Where to draw.
        figures (`dict[str, dict[str, dict]]`):
            By name and k, each with `value` and the interval `problems`.
    """
    from matplotlib.ticker import PercentFormatter

    ticks: set[int] = set()
    for number, (name, by_k) in enumerate(figures.items()):
        ks, look = [int(k) for k in by_k], LOOKS[number % len(LOOKS)]
        low, high = zip(*(figure["problems"] for figure in by_k.values()), strict=True)
        axes.fill_between(ks, low, high, color=look["color"], alpha=0.13, linewidth=0)
        values = [figure["value"] for figure in by_k.values()]
        axes.plot(
            ks,
            values,
            label=literal(name),
            markersize=4,
            markevery=[ks.index(k) for k in shown_ks(ks)],
            **look,
        )
        ticks |= set(shown_ks(ks))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [str(k) for k in sorted(ticks)])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("k, samples per problem")
    axes.set_ylabel("pass@k")
    axes.legend(frameon=False, loc="lower right")


def draw_panels(panels: dict[str, dict[str, dict[str, dict]]], path: str | Path) -> None:
    """
    Draws a picture of panels side by side.

    Args:
        panels (`dict[str, dict]`):
            What [`draw_on`] takes, by the panel's title.
        path (`str` or `Path`):
            The picture.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(7.2, 4.4 * columns), 4.4 * rows), layout="constrained")
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (title, figures) in zip(every, panels.items(), strict=False):
        draw_on(axes, figures)
        axes.grid(alpha=0.25)
        axes.set_title(f"{literal(title)}; bands: 95 % interval over problems", fontsize=10)
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=150)
