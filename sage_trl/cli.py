"""The command `sage-trl`.

    sage-trl train --config recipes/countdown/sage_branch.yaml --learning_rate 1e-4

Help answers at once: torch and trl load when a command runs.
"""

import argparse
import importlib
import sys

from . import __version__

# Name of the command and of its module -> what it does
COMMANDS = {
    "train": "train by GRPO or SAGE from a recipe",
    "sft": "teach a base model to reason in a prompt format, before that",
    "eval": "evaluate a model by pass@k",
    "compare": "compare evaluations of the same problems",
    "guide": "show what a recipe's guide does to a model's completions, as a page",
}
LAUNCHED = ("train", "sft", "eval")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sage-trl", description="Train language models with SAGE.")
    parser.add_argument("--version", action="version", version=f"sage-trl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, what in COMMANDS.items():
        launched = f"; several processes: accelerate launch -m sage_trl.{name} with the same arguments"
        more = launched if name in LAUNCHED else ""
        commands.add_parser(
            name,
            add_help=False,
            help=f"{what}: sage-trl {name} --config recipe.yaml [--setting value ...]{more}",
        )
    return parser


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    # What follows the command belongs to the command's own parser
    parser = make_parser()
    command = parser.parse_args(argv[:1]).command
    run = importlib.import_module(f"sage_trl.{command}").run
    run(argv[1:], prog=f"sage-trl {command}")


if __name__ == "__main__":
    main()
