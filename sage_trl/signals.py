"""Leaves a checkpoint when a cluster asks for its machine back (SIGTERM) and ends as a run that did what it should.

A handler only takes note of the signal: it can arrive anywhere, also within a step that other processes wait in. After
each step all processes tell each other whether one has come, by one number each whatever the answer, so that all of
them save after the same step, also where the signal reached only some.
"""

import signal
from typing import TYPE_CHECKING

from transformers import TrainerCallback

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class SaveOnSignal(TrainerCallback):
    """
    Saves a checkpoint after the step in which SIGTERM came, on whichever process, and stops training.

    Before training and after its end the signal does what it did before. In a script of your own:
    `trainer.add_callback(SaveOnSignal())`.

    Attributes:
        stopped (`bool`):
            Whether training was stopped for a signal, before its end.
    """

    def __init__(self):
        self.stopped = False
        self._came = False
        self._before = None

    def on_train_begin(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **kwargs):
        self.stopped = self._came = False
        self._before = signal.signal(signal.SIGTERM, self._take_note)

    def _take_note(self, number, frame):
        self._came = True

    def on_step_end(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **kwargs):
        import torch
        from accelerate.utils import reduce

        came = reduce(torch.tensor([float(self._came)], device=args.device), reduction="sum")
        if came.item() > 0 and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **kwargs):
        signal.signal(signal.SIGTERM, self._before)
