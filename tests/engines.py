"""The real engines, on the CPU where there is no GPU."""

import importlib.util
from collections.abc import Callable

import pytest

HAS_VLLM = importlib.util.find_spec("vllm") is not None
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


def _needs(found: bool, name: str) -> Callable:
    reason = f"{name} is not installed: make test-engines"
    return lambda test: pytest.mark.engine(pytest.mark.skipif(not found, reason=reason)(test))


engine = _needs(HAS_VLLM, "vLLM")
zero_engine = _needs(HAS_DEEPSPEED, "DeepSpeed")


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
