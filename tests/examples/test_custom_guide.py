import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_guide.py"


def test_it_trains_two_steps_and_acts(tmp_path):
    steps = runpy.run_path(str(EXAMPLE))["main"](str(tmp_path))
    assert len(steps) == 2
    for entry in steps:
        assert entry["sage/active_frac"] > 0.9 and 1.0 <= entry["sage/q_min"] < entry["sage/q_max"] <= 1.4 + 1e-6
