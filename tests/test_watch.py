import logging

import pytest

from sage_trl import BranchGuide
from sage_trl.watch import PATIENCE, IdleGuideWatch


def warnings_of(caplog) -> list[str]:
    return [record.message for record in caplog.records if "sage/active_frac" in record.message]


def steps(watch, shares):
    for step, share in enumerate(shares):
        watch.see(step, share)


@pytest.fixture
def watch(caplog, make_trainer):
    make_trainer()  # accelerate's logger wants its state
    caplog.set_level(logging.WARNING)
    return IdleGuideWatch(BranchGuide(threshold=9.0))


def test_it_warns_once_after_twenty_idle_steps(watch, caplog):
    steps(watch, [0.0] * PATIENCE)
    assert warnings_of(caplog) == []
    steps(watch, [0.0005] * 3 * PATIENCE)
    (warning,) = warnings_of(caplog)
    assert "below 0.1 % for 20 steps" in warning and "threshold=9.0" in warning


def test_a_guide_at_work_now_and_then_is_left_alone(watch, caplog):
    steps(watch, ([0.0] * (PATIENCE - 1) + [0.01]) * 4)
    assert warnings_of(caplog) == []


def test_a_micro_batch_without_a_valid_token_says_nothing(watch, caplog):
    steps(watch, [float("nan")] * 3 * PATIENCE)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(("threshold", "expected"), [(50.0, 1), (0.1, 0)])
def test_a_run_whose_guide_never_fires_is_told(make_trainer, caplog, threshold, expected):
    trainer = make_trainer(guide="branch", guide_kwargs={"threshold": threshold}, max_steps=PATIENCE + 6)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert len(warnings_of(caplog)) == expected
