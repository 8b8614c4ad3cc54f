"""The real engines, on the CPU where there is no GPU."""

import importlib.util

import pytest

HAS_VLLM = importlib.util.find_spec("vllm") is not None


def engine(test):
    """Marks a test that needs vLLM."""
    reason = "vLLM is not installed: make test-engines"
    return pytest.mark.engine(pytest.mark.skipif(not HAS_VLLM, reason=reason)(test))


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
