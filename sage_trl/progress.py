"""One progress bar that shows how training goes, in place of a printed dictionary per logging step."""

from transformers import ProgressCallback

# Key of the log -> its short name beside the bar
SHOWN = {"loss": "loss", "reward": "reward", "sage/group_pass": "group pass"}


class SAGEProgressCallback(ProgressCallback):
    """
    A [`~transformers.ProgressCallback`] whose bar shows loss, reward and group pass (the share of prompts with at
    least one correct completion). Everything else goes to the trackers and `trainer_state.json` alone.
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None:
            shown = {short: f"{logs[key]:.3f}" for key, short in SHOWN.items() if key in logs}
            if shown:  # the log of an evaluation has other keys, and leaves the training figures in place
                self.training_bar.set_postfix(shown)
