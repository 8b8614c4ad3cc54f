"""What every page has in common: its frame, and pictures that follow its colours."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# A colour that no picture uses otherwise: it becomes the text's own, in light and dark
INK = "#010203"


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled in. Everything that is no [`Markup`] is escaped."""
    environment = Environment(
        loader=PackageLoader("sage_trl.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def write(path: str | Path, html: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # A token may decode to half a character, which UTF-8 has no bytes for
    Path(path).write_bytes(html.encode("utf-8", errors="replace"))


@contextmanager
def picture(width: float = 5.2, height: float = 2.6) -> Iterator[tuple[Any, Any, list[Markup]]]:
    """
    A matplotlib figure, its axes, and a list that holds it as SVG afterwards.

    Args:
        width, height (`float`):
            Size in inches; the page scales it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = {"svg.fonttype": "none", "svg.hashsalt": "sage", "font.size": 9, **dict.fromkeys(names, INK)}
    made: list[Markup] = []
    with rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_visible(False)
        yield figure, axes, made
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = buffer.getvalue()
    made.append(Markup(svg[svg.index("<svg") :].replace(INK, "currentColor")))
