"""The bar's figures, and the line that an evaluation leaves."""

import io

from tqdm import tqdm
from transformers import TrainerControl, TrainerState

from sage_trl.progress import SAGEProgressCallback


def show(logs):
    callback = SAGEProgressCallback()
    output = io.StringIO()
    callback.training_bar = tqdm(total=10, file=output)
    callback.training_bar.write = lambda line: output.write(f"\n{line}\n")
    callback.on_log(None, TrainerState(global_step=3), TrainerControl(), logs=logs)
    callback.training_bar.refresh()
    return output.getvalue()


def test_the_bar_shows_loss_reward_group_pass_and_q():
    shown = show({"loss": 0.25, "reward": 0.5, "sage/group_pass": 0.75, "sage/q_mean": 1.125, "kl": 3.0})
    assert "loss=0.250, reward=0.500, group pass=0.750, q=1.125" in shown and "3.0" not in shown


def test_a_figure_that_a_step_had_not_is_left_out():
    assert "loss=0.250]" in show({"loss": 0.25, "sage/q_mean": None})


def test_an_evaluation_leaves_a_line():
    shown = show({"eval_loss": 0.1, "eval_reward": 0.5, "eval_sage/group_pass": 0.75})
    assert "step 3, evaluated: loss 0.100, reward 0.500, group pass 0.750" in shown
