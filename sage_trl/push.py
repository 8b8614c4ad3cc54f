"""Pushes what a run left in a folder to the Hub, also after a push that broke off.

    sage-trl push outputs/branch --repo user/name

Goes up: the adapter or model, the tokenizer, the card, the recipe and the trainer state (`sage_trl/hub.py` has the
list). Optimizer states stay unless `--with_optimizer` asks for the newest checkpoint. Paths and tokens stay always.
"""

import argparse
import sys
from pathlib import Path

from .launch import mistakes_as_one_line


def make_parser(prog: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Pushes what a run left in a folder to the Hub.")
    parser.add_argument("folder", type=Path, help="output folder of a run, one of its checkpoints, or a merged model")
    parser.add_argument("--repo", required=True, metavar="user/name", help="the repository, made if it is not there")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", help="branch to commit to, made if it is not there; default: main")
    parser.add_argument("--commit_message", default="Upload by sage-trl", help="subject of the commit")
    parser.add_argument(
        "--with_optimizer",
        action="store_true",
        help="push the newest whole checkpoint too, with its optimizer states, as last-checkpoint/; where FOLDER is "
        "a checkpoint, that one",
    )
    return parser


def push(options: argparse.Namespace) -> str:
    """Pushes as the options say, prints each file, and returns the repository's address."""
    from .checkpoints import WEIGHTS, newest_checkpoint, why_torn
    from .hub import check_repository, checkpoint_files, published_files, push_command, push_files, warn_of_local_base

    check_repository(options.repo, "--repo")
    if not options.folder.is_dir():
        raise FileNotFoundError(f"'{options.folder}' is no folder.")
    files = published_files(options.folder)
    if not WEIGHTS & files.keys():
        raise FileNotFoundError(f"'{options.folder}' holds no model and no adapter. Name a run's output folder.")
    if options.with_optimizer:
        checkpoint = newest_checkpoint(options.folder) if why_torn(options.folder) else options.folder
        if checkpoint is None:
            raise FileNotFoundError(
                f"`--with_optimizer` is set, but '{options.folder}' holds no whole checkpoint, and so no optimizer "
                "states. Leave it out."
            )
        files |= checkpoint_files(checkpoint, "last-checkpoint")
    for name, file in files.items():
        print(f"  {name} ({file.stat().st_size:,} bytes)")
    warn_of_local_base(files)
    target = (options.repo, options.private, options.revision)
    command = push_command(options.folder, *target, options.with_optimizer)
    return push_files(files, options.repo, command, options.commit_message, *target[1:])


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Pushes as the command line says. A mistake, or a push that failed, is one line and exit code 2."""
    options = make_parser(prog or "python -m sage_trl.push").parse_args(sys.argv[1:] if argv is None else argv)
    with mistakes_as_one_line(ValueError, OSError):
        address = push(options)
    print(f"Pushed to {address}")


if __name__ == "__main__":
    run()
