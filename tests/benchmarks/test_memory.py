import pytest

from benchmarks.memory import SHAPES, table


@pytest.fixture(scope="module")
def sizes():
    return {(kind, stage, gpus): parts for _, kind, stage, gpus, parts in table(["Qwen2.5-Math-1.5B"])}


def test_the_table_is_of_the_published_size(sizes):
    hidden, intermediate, layers, heads, kv_heads, vocabulary, _ = SHAPES["Qwen2.5-Math-1.5B"]
    kv = hidden // heads * kv_heads
    attention = 2 * hidden**2 + 2 * hidden * kv + hidden + 2 * kv  # with biases
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    parameters = vocabulary * hidden + layers * layer + hidden
    assert parameters == 1_543_714_304
    alone = sizes["full", 2, 1]
    assert (alone["weights"], alone["reference"]) == (2 * parameters, 2 * parameters)
    assert alone["optimizer"] == 12 * parameters and sizes["LoRA", 2, 1]["reference"] == 0


@pytest.mark.parametrize("kind", ["full", "LoRA"])
def test_more_gpus_never_take_more_on_each(sizes, kind):
    for stage in (2, 3):
        one, eight, many = (sizes[kind, stage, gpus]["peak"] for gpus in (1, 8, 64))
        assert one > eight > many
    assert sizes[kind, 3, 64]["peak"] < sizes[kind, 2, 64]["peak"]


def test_zero_3_shares_what_zero_2_leaves_whole(sizes):
    second, third = sizes["full", 2, 8], sizes["full", 3, 8]
    assert second["weights"] == 8 * third["weights"]
    assert second["optimizer"] == third["optimizer"] == sizes["full", 3, 1]["optimizer"] / 8
