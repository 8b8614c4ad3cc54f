"""What a trainer pushes to the Hub while it trains and when it is done: the files of `sage_trl/hub.py` and no others.

Transformers' own uploads the whole output folder, the settings with local paths in it, and a push that fails in the
background is never heard of. Here it is a warning that names the command to complete it, and the run goes on.
"""

import logging
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from accelerate.utils import is_peft_model

from .card import correct_card, describe_run, drop_local_base
from .fingerprint import describe_base, save_base_record
from .hub import (
    check_repository,
    checkpoint_files,
    create_repository,
    published_files,
    push_command,
    push_files,
    warn_of_local_base,
)

# What is about the run: its newest stands in the output folder, and goes up with each checkpoint's weights
RECORDS = ("README.md", "recipe.yaml", "sage_prompt.json")
STAGE = ".push"  # in the output folder
logger = logging.getLogger(__name__)


class PublishingMixin:
    """
    For a [`~transformers.Trainer`]: takes the place of its pushes. The settings mean what they mean there:
    `push_to_hub`, `hub_model_id`, `hub_strategy`, `hub_private_repo`, `hub_revision`, `hub_always_push`, `hub_token`.
    """

    push_in_progress: Future | None = None
    about_run: str | None = None  # section of the card, of a run from a recipe

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        # Now, since the base may be another one by the time that its adapter is saved
        is_adapter = is_peft_model(model) and self.args.should_save
        revision = (self.args.model_init_kwargs or {}).get("revision")
        self._base_record = describe_base(model.get_base_model(), revision) if is_adapter else None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository, so that what cannot be pushed is known before anything is trained."""
        if not self.is_world_process_zero():
            return
        args = self.args
        if args.hub_model_id is not None:
            check_repository(args.hub_model_id, "hub_model_id")
        self.hub_model_id = create_repository(
            args.hub_model_id or Path(args.output_dir).absolute().name,
            args.hub_private_repo if private is None else private,
            args.hub_revision,
            token or args.hub_token,
        )
        self._pushes = ThreadPoolExecutor(max_workers=1)  # one after the other

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> "str | Future | None":
        """
        Saves the model with its card, and pushes it.

        Args:
            commit_message (`str`, *optional*, defaults to `"End of training"`):
                Subject of the commit.
            blocking (`bool`, *optional*, defaults to `True`):
                Whether to wait for the push.
            token (`str`, *optional*, defaults to `args.hub_token`):
                Token of the Hub.
            revision (`str`, *optional*, defaults to `args.hub_revision`):
                Branch to commit to.
            private (`bool`, *optional*, defaults to `args.hub_private_repo`):
                Whether a new repository is private.
            **kwargs:
                Arguments of `create_model_card`.

        Returns:
            `str`: the repository's address; a `Future` of it without `blocking`; `None` on other processes.

        Raises:
            [`PushError`]: the push failed; all files are still here.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        self.create_model_card(**kwargs)
        return self.push_output(commit_message, blocking, token, revision)

    def push_output(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
    ) -> "str | Future | None":
        """Pushes the output folder as it is. Arguments are those of `push_to_hub`."""
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._finish_current_push()
        args, revision = self.args, revision or self.args.hub_revision
        files = published_files(args.output_dir)
        warn_of_local_base(files)
        push = self._pushes.submit(
            push_files,
            files,
            self.hub_model_id,
            push_command(args.output_dir, self.hub_model_id, args.hub_private_repo, revision),
            commit_message,
            args.hub_private_repo,
            revision,
            token or args.hub_token,
        )
        return push.result() if blocking else push

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        args, folder = self.args, Path(checkpoint_folder)
        if not self.is_world_process_zero() or args.hub_strategy == "end":
            return
        is_busy = self.push_in_progress is not None and not self.push_in_progress.done()
        if is_busy and not args.hub_always_push:
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        for name in RECORDS:  # a push of the checkpoint by itself has them, too
            if (Path(args.output_dir) / name).is_file():
                shutil.copy(Path(args.output_dir) / name, folder / name)
        try:
            stage = _staged(folder, Path(args.output_dir) / STAGE / folder.name)
        except OSError as error:
            logger.warning(f"{folder} is not pushed, since its files cannot be kept for it: {error}. The run goes on.")
            return
        files, with_checkpoint = published_files(stage), args.hub_strategy in ("checkpoint", "all_checkpoints")
        if with_checkpoint:
            files |= checkpoint_files(stage, "last-checkpoint" if args.hub_strategy == "checkpoint" else folder.name)
        target = (self.hub_model_id, args.hub_private_repo, args.hub_revision)
        command = push_command(folder, *target, with_checkpoint)
        message = f"Training in progress, step {self.state.global_step}"
        self.push_in_progress = self._pushes.submit(
            _push_stage, stage, files, target[0], command, message, *target[1:], args.hub_token
        )

    def _finish_current_push(self) -> None:
        if self.push_in_progress is not None:
            if not self.push_in_progress.done():
                logger.info("Waiting for the push of a checkpoint to end.")
            self.push_in_progress.result()
            shutil.rmtree(Path(self.args.output_dir) / STAGE, ignore_errors=True)

    def create_model_card(self, *args, **kwargs):
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            correct_card(self.args.output_dir)
            if self.about_run is not None:
                describe_run(self.args.output_dir, self.about_run)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = output_dir or self.args.output_dir
            drop_local_base(folder)
            if (Path(folder) / "adapter_config.json").is_file() and self._base_record is not None:
                save_base_record(folder, self._base_record)


def _staged(folder: Path, stage: Path) -> Path:
    """The files of a checkpoint at a place where `save_total_limit` does not delete them while they are sent."""
    shutil.rmtree(stage, ignore_errors=True)  # of a run that was killed
    shutil.copytree(folder, stage, copy_function=_link)
    return stage


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _push_stage(stage: Path, files: dict[str, Path], *rest) -> None:
    try:
        push_files(files, *rest)
    except (OSError, ValueError) as error:
        logger.warning(f"{error} The run goes on.")
    finally:
        shutil.rmtree(stage, ignore_errors=True)  # what stays goes when the last push has ended
