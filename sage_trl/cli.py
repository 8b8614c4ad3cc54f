"""The command `sage-trl`.

    sage-trl train --config recipes/countdown/sage_branch.yaml --learning_rate 1e-4

Help answers at once: torch and trl load when a command runs.
"""

import argparse
import importlib
import sys

from . import __version__

RECIPE = "--config recipe.yaml [--setting value ...]"
# Name of the command and of its module -> what it does, and what it takes
COMMANDS = {
    "train": ("train by GRPO or SAGE from a recipe", RECIPE),
    "sft": ("teach a base model to reason in a prompt format, before that", RECIPE),
    "eval": ("evaluate a model by pass@k", "--model MODEL --benchmarks NAME,NAME [--setting value ...]"),
    "compare": ("compare evaluations of the same problems", "name=folder name=folder [--output FOLDER]"),
    "push": ("push what a run left to the Hub, or complete a push", "FOLDER --repo user/name"),
    "merge": ("merge an adapter into the model it was trained on", "FOLDER --output FOLDER [--base MODEL]"),
    "guide": ("show what a recipe's guide does to a model's completions, as a page", RECIPE),
}
LAUNCHED = ("train", "sft", "eval")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sage-trl", description="Train language models with SAGE, and evaluate them."
    )
    parser.add_argument("--version", action="version", version=f"sage-trl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (what, takes) in COMMANDS.items():
        launched = f"; several processes: accelerate launch -m sage_trl.{name} with the same arguments"
        commands.add_parser(
            name, add_help=False, help=f"{what}: sage-trl {name} {takes}{launched if name in LAUNCHED else ''}"
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
