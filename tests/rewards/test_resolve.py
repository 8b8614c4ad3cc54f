import pytest

from sage_trl.rewards import REWARDS, resolve_reward
from sage_trl.rewards.countdown import countdown_reward


def test_a_built_in_name_gives_its_function():
    assert resolve_reward("countdown") is countdown_reward


@pytest.mark.parametrize("name", REWARDS)
def test_every_built_in_name_loads(name):
    assert callable(resolve_reward(name))


def test_an_import_path_gives_its_function(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def length(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n")
    assert resolve_reward(f"{file}:length")(["abc"]) == [3.0]
    assert resolve_reward("sage_trl.rewards.countdown:countdown_reward") is countdown_reward


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("countdwn", ValueError, r"'countdwn'.*Did you mean 'countdown'\?.*Choose from \['countdown', "),
        ("sage_trl.rewards.countdown:reward", ImportError, "has no 'reward'"),
        ("no_such_module:reward", ImportError, "No module named 'no_such_module'"),
        ("sage_trl.rewards.countdown:SPACES", TypeError, "not a function"),
    ],
)
def test_a_wrong_name_is_refused_with_what_would_be_right(name, error, message):
    with pytest.raises(error, match=message):
        resolve_reward(name)
