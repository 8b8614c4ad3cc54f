"""The command `sage-trl`.

    sage-trl train --config recipes/countdown/sage_branch.yaml --learning_rate 1e-4

Help answers at once: torch and trl load when a command runs.
"""

import argparse
import sys

from . import __version__


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sage-trl", description="Train language models with SAGE.")
    parser.add_argument("--version", action="version", version=f"sage-trl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    commands.add_parser(
        "train",
        add_help=False,
        help="train from a recipe: sage-trl train --config recipe.yaml [--setting value ...]; several processes: "
        "accelerate launch -m sage_trl.train with the same arguments",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    # What follows the command belongs to the command's own parser
    parser = make_parser()
    command = parser.parse_args(argv[:1]).command
    if command == "train":
        from .train import run

        run(argv[1:], prog="sage-trl train")


if __name__ == "__main__":
    main()
