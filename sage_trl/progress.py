"""One progress bar that shows how training goes, in place of a printed dictionary per logging step."""

from transformers import ProgressCallback

# Key of the log -> its short name beside the bar
SHOWN = {"loss": "loss", "reward": "reward", "sage/group_pass": "group pass", "sage/q_mean": "q"}


class SAGEProgressCallback(ProgressCallback):
    """
    A [`~transformers.ProgressCallback`] whose bar shows loss, reward, group pass (the share of prompts with at least
    one correct completion) and the guide's mean. An evaluation leaves one line, pass@k included. Everything else goes
    to the trackers and `trainer_state.json` alone.
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None:
            # A figure of which a step had none, as the guide's mean without a valid token, is logged as None
            shown = {short: f"{logs[key]:.3f}" for key, short in SHOWN.items() if logs.get(key) is not None}
            if shown:
                self.training_bar.set_postfix(shown)
            evaluated = [f"{short} {logs[f'eval_{key}']:.3f}" for key, short in SHOWN.items() if f"eval_{key}" in logs]
            evaluated += [f"{key.removeprefix('eval_')} {value:.3f}" for key, value in logs.items() if "pass@" in key]
            if evaluated:
                self.training_bar.write(f"step {state.global_step}, evaluated: {', '.join(evaluated)}")
