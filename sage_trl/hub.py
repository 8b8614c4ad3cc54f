"""Publishing to the Hugging Face Hub: which files of a run go up, what is taken out of them, and what an error means.

The client repeats requests for files and their modes by itself, but not those that create a repository, look at it or
make a commit. These are repeated here: a commit whose answer was lost is made once all the same, since the client
leaves out files that the repository has already.
"""

import fnmatch
import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from .fingerprint import BASE_RECORD

# Weights, and what says how to read them. A repository keeps those of one model alone: beside a model that is cut into
# files an older whole one would be loaded, and an adapter would be applied to what it was merged into
MODEL_FILES = (
    *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json", "config.json", BASE_RECORD),
)
# What is uploaded of a folder, and no other file of it: the model, tokenizer, card, recipe and trainer state
PUBLISHED = (
    *MODEL_FILES,
    *("generation_config.json", "tokenizer*.json", "*.jinja", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*processor_config.json", "README.md", "LICENSE*"),
    *("recipe.yaml", "sage_prompt.json", "trainer_state.json"),
)
WITHHELD = ("training_args.bin",)  # the settings with local paths; resuming does not need them
# Where a path may stand: of an absolute one the last part goes up
PATHS = {
    "adapter_config.json": "base_model_name_or_path",
    "config.json": "_name_or_path",
    "tokenizer_config.json": "name_or_path",
    "trainer_state.json": "best_model_checkpoint",
}
TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{30,}")
REPEATED = (409, 429, 500, 502, 503, 504)
WAITS = (1, 2, 4, 8, 16)  # seconds before each new try
NOT_REPEATED_BY_CLIENT = re.compile(r"/api/repos/create$|/api/models/[^/]+/[^/]+(/(commit|branch|revision)/.*)?$")
logger = logging.getLogger(__name__)


class PushError(OSError):
    """A push that did not come to its end, with what to do in one line."""


def check_repository(name: str, setting: str) -> None:
    """Raises [`ValueError`] unless a repository's name has the form `user/name`."""
    try:
        validate_repo_id(name)
        is_valid = name.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"`{setting}` is '{name}', which is no name of a repository on the Hub. Write user/name, of letters, "
            "digits, '-', '_' and '.'."
        )


def published_files(folder: str | Path) -> dict[str, Path]:
    """The files of a folder that are uploaded, by their name in the repository. Folders within it stay here."""
    files = sorted(file for file in Path(folder).iterdir() if file.is_file())
    return {file.name: file for file in files if _matches(file.name, PUBLISHED)}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for each in patterns)


def warn_of_local_base(files: dict[str, Path]) -> None:
    """Says so where an adapter goes up whose base is a folder of this machine."""
    if "adapter_config.json" not in files:
        return
    base = json.loads(files["adapter_config.json"].read_text(encoding="utf-8"))["base_model_name_or_path"]
    if base is not None and Path(base).is_dir():
        logger.warning(
            f"The adapter's base is the folder '{Path(base).name}', which nobody else has: push the base too and name "
            "its repository in adapter_config.json, or push what `sage-trl merge` makes of both."
        )


def checkpoint_files(folder: str | Path, path_in_repo: str) -> dict[str, Path]:
    """All files of a checkpoint that a run needs to go on from it, optimizer states too."""
    files = sorted(file for file in Path(folder).rglob("*") if file.is_file() and file.name not in WITHHELD)
    return {f"{path_in_repo}/{file.relative_to(folder).as_posix()}": file for file in files}


def as_published(file: Path) -> Path | bytes:
    """A file as it goes up, without a local path. Raises [`ValueError`] for one with a token."""
    if file.suffix not in (".json", ".yaml", ".md", ".jinja", ".txt"):
        return file
    content = file.read_bytes()
    if TOKEN.search(content):
        raise ValueError(
            f"'{file}' holds what looks like an access token of the Hub. Take it out before it is pushed."
        )
    key = PATHS.get(file.name)
    if key is None:
        return file
    from .recipe import portable

    settings = json.loads(content)
    if settings.get(key) == portable(settings.get(key)):
        return file
    return json.dumps(settings | {key: portable(settings[key])}, indent=2, ensure_ascii=False).encode()


def push_command(
    folder: str | Path,
    repository: str,
    private: bool | None = None,
    revision: str | None = None,
    with_optimizer: bool = False,
) -> str:
    """What completes a push that broke off."""
    words = ["sage-trl", "push", str(folder), "--repo", repository]
    words += ["--private"] if private else []
    words += ["--revision", revision] if revision else []
    words += ["--with_optimizer"] if with_optimizer else []
    return shlex.join(words)


def push_files(
    files: dict[str, Path],
    repository: str,
    command: str,
    commit_message: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """
    Uploads files in one commit, into a repository that is created if need be. Those that are there already are not
    sent again, so a push that broke off is completed by another one.

    Args:
        files (`dict[str, Path]`):
            Local files by their names in the repository.
        repository (`str`):
            `user/name`.
        command (`str`):
            What completes this push if it fails, for the error message.
        commit_message (`str`):
            Subject of the commit.
        private (`bool`, *optional*):
            Whether a new repository is private.
        revision (`str`, *optional*):
            Branch to commit to, made if it is not there.
        token (`str`, *optional*):
            Token of the Hub, instead of the one that the user is logged in with.

    Returns:
        `str`: the repository's address.

    Raises:
        [`PushError`]: the push failed; all files are still here.
        [`ValueError`]: a file holds an access token.
    """
    contents = {name: as_published(file) for name, file in files.items()}
    api = HfApi(token=token)
    create_repository(repository, private, revision, token, command)

    def commit():
        there = [each.rfilename for each in api.model_info(repository, revision=revision).siblings]
        api.create_commit(
            repository,
            [
                *(CommitOperationAdd(name, content) for name, content in contents.items()),
                *(CommitOperationDelete(name) for name in there if _is_outdated(name, files)),
            ],
            commit_message=commit_message,
            revision=revision,
        )

    with _as_push_error(repository, command):
        _persist(commit)
    return f"https://huggingface.co/{repository}"


def _is_outdated(name: str, files: dict[str, Path]) -> bool:
    """Whether what a repository holds must go when these files come."""
    if _matches(name, MODEL_FILES):
        return name not in files and any(_matches(each, MODEL_FILES) for each in files)
    folder = "last-checkpoint/"
    return name.startswith(folder) and name not in files and any(each.startswith(folder) for each in files)


def create_repository(
    repository: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    command: str | None = None,
) -> str:
    """
    Creates a repository and its branch unless they are there.

    Args:
        repository (`str`):
            `user/name`; without a user it is the token's.
        private (`bool`, *optional*):
            Whether a new repository is private.
        revision (`str`, *optional*):
            The branch.
        token (`str`, *optional*):
            Token of the Hub, instead of the one that the user is logged in with.
        command (`str`, *optional*):
            What completes the push that this begins, for the error message.

    Returns:
        `str`: `user/name`.

    Raises:
        [`PushError`]: the Hub does not do it.
    """
    api = HfApi(token=token)
    with _as_push_error(repository, command):
        name = _persist(lambda: api.create_repo(repository, private=private, exist_ok=True)).repo_id
        if revision not in (None, "main") and not revision.startswith("refs/"):
            _persist(lambda: api.create_branch(name, branch=revision, exist_ok=True))
    return name


def _persist(do: Callable) -> Any:
    """Repeats what the client does not, while the Hub is busy or the connection breaks."""
    for wait in WAITS:
        try:
            return do()
        except HTTPError as error:
            is_answer = isinstance(error, HfHubHTTPError)
            request = error.response.request if is_answer else error.request
            if not NOT_REPEATED_BY_CLIENT.search(request.url.path):
                raise
            if is_answer and error.response.status_code not in REPEATED:
                raise
            logger.warning(f"The Hub: {_reason(error)}. Trying again in {wait} s.")
            time.sleep(wait)
    return do()


@contextmanager
def _as_push_error(repository: str, command: str | None) -> Iterator[None]:
    try:
        yield
    except (HTTPError, OSError, RuntimeError) as error:
        # The client wraps what went wrong with a large file
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        what = "pushed" if command else "made ready for a push"
        completion = f" Nothing is lost here; to complete the push: {command}" if command else ""
        raise PushError(
            f"'{repository}' was not {what}: {_reason(cause)}. {_remedy(cause, repository)}{completion}"
        ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, HfHubHTTPError):
        said = f" ({error.server_message})" if error.server_message else ""
        return f"the Hub answered {error.response.status_code}{said}"
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'the connection broke off'}"


def _remedy(error: BaseException, repository: str) -> str:
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    user = repository.partition("/")[0]
    return {
        401: "No valid token: run `hf auth login`, or set HF_TOKEN.",
        403: f"The token may not write to '{user}': make one with the role 'write' at "
        "https://huggingface.co/settings/tokens and run `hf auth login`; `hf auth whoami` tells whose it is.",
        404: "There is no such repository, or the token may not see it: check the name, and run `hf auth login`.",
        409: "Somebody else commits to it at the moment.",
        413: "The files are too large for the Hub.",
        429: "The Hub's rate limit is reached: wait some minutes.",
    }.get(status) or (
        "HF_HUB_OFFLINE is set: unset it."
        if isinstance(error, OfflineModeIsEnabled)
        else "The Hub could not be reached or does not work at the moment: wait, and check the network."
    )
