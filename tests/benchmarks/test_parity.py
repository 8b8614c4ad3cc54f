import pytest
from engines import engine, zero_engine

from benchmarks.parity import DRIFT, LAYOUT_CASES, launch, metric_difference, weight_difference

CASES = ["full branch k3 scripted", "lora branch sequence scripted", "lora token k3"]


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    return launch("DDP", CASES, tmp_path_factory.mktemp("ddp"))


def assert_same(left, right):
    assert weight_difference(left, right) < 2e-5  # of steps of 1e-4 by Adam, which divides rounding by tiny gradients
    assert metric_difference(left, right) < 2e-5


def test_one_process_trains_as_two(ddp, tmp_path):
    alone = launch("1 process", CASES[:2], tmp_path)
    for case in CASES[:2]:
        assert case in LAYOUT_CASES
        assert_same(alone[case], ddp[case])
        assert len(alone[case].logs) == 4 and any(entry["loss"] for entry in alone[case].logs)


def test_noise_repeats_and_is_its_process_s_own(ddp, tmp_path):
    again, first = launch("DDP", CASES[2:], tmp_path)[CASES[2]], ddp[CASES[2]]
    assert weight_difference(again, first) == 0 == metric_difference(again, first)
    assert again.seeds == first.seeds and len(first.seeds) == 2
    assert not set(first.seeds[0]) & set(first.seeds[1])


@zero_engine
@pytest.mark.parametrize("engine", ["ZeRO-2", "ZeRO-3", "ZeRO-3, no zero3_init"])
def test_zero_trains_as_ddp(engine, ddp, tmp_path):
    found = launch(engine, CASES, tmp_path)
    for case in CASES:
        assert_same(found[case], ddp[case])


@engine
def test_importance_weights_leave_the_guide_alone(tmp_path):
    case = "full token k3 vllm"
    corrected = launch("1 process", [case], tmp_path / "corrected")[case].logs
    plain = launch("1 process", [f"{case} uncorrected"], tmp_path / "plain")[f"{case} uncorrected"].logs
    weights = {name for name in corrected[0] if name.startswith("sampling/importance_sampling_ratio")}
    assert weights and not weights & plain[0].keys()
    # The same completions at the first step, whose gradients the weights change
    shaped = {name: value for name, value in corrected[0].items() if name.startswith(("sage/", "kl", "entropy"))}
    assert len(shaped) > 5 and shaped == {name: plain[0][name] for name in shaped}
    assert corrected[0]["grad_norm"] != plain[0]["grad_norm"]
    assert max(entry[DRIFT] for entry in corrected) < 2e-2
