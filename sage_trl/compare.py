"""Compares evaluations of the same problems.

    sage-trl compare base=outputs/eval/base grpo=outputs/eval/grpo sage=outputs/eval/sage --output outputs/report

Writes a page, Markdown for a model card, a picture, and everything as JSON. The first evaluation is the base.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .evaluation.comparison import compare, match
from .evaluation.curves import draw_panels
from .evaluation.results import RESULTS, counted
from .evaluation.settings import parse_ks
from .launch import mistakes_as_one_line


def make_parser(prog: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Compares evaluations of the same problems.")
    parser.add_argument("evaluations", nargs="+", metavar="name=folder", help="what `sage-trl eval` wrote, by a name")
    parser.add_argument("--output", type=Path, default=Path("outputs/report"), help="folder of the report")
    parser.add_argument("--k", help="numbers of tries, separated by commas; default: those of the evaluations")
    parser.add_argument("--latex", action="store_true", help="print rows for a LaTeX table as well")
    parser.add_argument(
        "--push_to_hub",
        metavar="name=user/model",
        help="add the report to the card of this model on the Hub, which is the one that was evaluated by that name",
    )
    return parser


def load(evaluations: list[str]) -> dict[str, dict[str, Any]]:
    """Contents of each `results.json` by the evaluation's name."""
    found: dict[str, dict[str, Any]] = {}
    for each in evaluations:
        name, equals, folder = each.partition("=")
        if not (name and equals and folder):
            raise ValueError(f"'{each}' is no evaluation; write name=folder.")
        if name in found:
            raise ValueError(f"two evaluations are called '{name}'.")
        path = Path(folder) / RESULTS
        if not path.is_file():
            raise FileNotFoundError(
                f"'{folder}' has no {RESULTS}: it is no evaluation, or one that has not come to its end."
            )
        found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_report(found: dict[str, dict[str, Any]], folder: Path, ks: list[int] | None = None) -> dict[str, Any]:
    """
    Compares evaluations and writes the report.

    Args:
        found (`dict[str, dict]`):
            Contents of each `results.json` by the evaluation's name; the first is the base.
        folder (`Path`):
            Where `index.html`, `report.md`, `pass_at_k.png` and `compare.json` go.
        ks (`list[int]`, *optional*):
            Numbers of tries. Defaults to all those of the evaluations that no number of samples falls short of.

    Returns:
        `dict`: what `compare.json` holds.
    """
    from .reports.compare import markdown, write_page

    ks = ks or sorted({int(k) for each in found.values() for b in each["benchmarks"].values() for k in b["pass_at_k"]})
    comparison = compare(found, ks)
    rates = {
        name: {
            each.name: each.correct / each.n
            for each in match(name, {model: results["benchmarks"][name] for model, results in found.items()})
        }
        for name in comparison["benchmarks"]
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(comparison, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(comparison), encoding="utf-8")
    write_page(comparison, rates, folder / "index.html")
    panels = {
        f"{name}, {counted(each['problems'], 'problem')}": each["pass_at_k"]
        for name, each in comparison["benchmarks"].items()
    }
    draw_panels(panels, folder / "pass_at_k.png")
    return comparison


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Compares as the command line says. A mistake is one line and exit code 2."""
    options = make_parser(prog or "python -m sage_trl.compare").parse_args(sys.argv[1:] if argv is None else argv)
    from .reports.compare import latex, markdown
    from .reports.publish import push_comparison, resolve_target

    with mistakes_as_one_line(ValueError, OSError):
        ks = None if options.k is None else parse_ks(options.k)
        found = load(options.evaluations)
        target = None if options.push_to_hub is None else resolve_target(options.push_to_hub, list(found))
        comparison = write_report(found, options.output, ks)
    report = markdown(comparison)
    print(report)
    if options.latex:
        print(latex(comparison))
    print(f"Report: {options.output / 'index.html'}")
    if target is not None:
        with mistakes_as_one_line(ValueError, OSError):
            address = push_comparison(target[1], target[0], found, report, options.output)
        print(f"Pushed to {address}")


if __name__ == "__main__":
    run()
