"""The real engines, on the CPU where there is no GPU."""

import importlib.util
from collections.abc import Callable

import pytest

HAS_VLLM = importlib.util.find_spec("vllm") is not None
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


NEEDS_VLLM = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed: make test-engines")
NEEDS_DEEPSPEED = pytest.mark.skipif(not HAS_DEEPSPEED, reason="DeepSpeed is not installed: make test-engines")
# For the parameters of tests
ZERO_ENGINE = [pytest.mark.engine, NEEDS_DEEPSPEED]
ALL_ENGINES = [*ZERO_ENGINE, NEEDS_VLLM]


def engine(test: Callable) -> Callable:
    """Marks a test that needs vLLM."""
    return pytest.mark.engine(NEEDS_VLLM(test))


def zero_engine(test: Callable) -> Callable:
    """Marks a test that needs DeepSpeed."""
    return pytest.mark.engine(NEEDS_DEEPSPEED(test))


def keep_plain_weights() -> None:
    """
    Makes vLLM's CPU engine take weights while it runs, as it does on a GPU: it would pack those of each linear layer
    and drop the original, which TRL writes to.
    """
    import torch
    from vllm.model_executor.layers import utils

    def dispatch(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch
