import pytest

from benchmarks.anchor import measure, world


@pytest.mark.parametrize("anchor", ["k3", "token", "sequence"])
def test_what_an_estimator_converges_to(anchor):
    found = measure(anchor, beta=0.5, seeds=1, steps=3000)
    if anchor == "sequence":
        assert found["token"] == pytest.approx(1, abs=1e-4) and found["state"] == pytest.approx(1, abs=1e-4)
        assert found["distance"] < 1e-10
    else:
        assert 0.3 < found["token"] < 0.95
        assert found["distance"] > 1e-3
        assert found["state"] == pytest.approx(0, abs=1e-3) if anchor == "token" else found["state"] < -0.05


def test_a_world_is_its_seed():
    (first, rewards, guides), (again, *_) = world(3), world(3)
    assert (first == again).all() and 0 < rewards.mean() < 1
    assert guides["state"].shape == guides["token"].shape == (64, 3)
