"""Samples with vLLM: continuous batching, prompts that samples share, adapters as they are.

Every completion is a request with a seed of its own. An engine in this process schedules a batch the same way every
time, so a run that goes on after a stop ends as if it had not been stopped.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tqdm import tqdm

from ..sampling import end_tokens, until_end
from ..seeds import derive_seed
from .backends import Request, Sampling, ignore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import LLM
    from vllm.lora.request import LoRARequest

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM has room
# What an adapter may have that vLLM refuses, or passes over without a word, and what stands for not having it
UNSUPPORTED = {
    "modules_to_save": None,
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}


class VLLMBackend:
    """
    Samples with vLLM.

    Args:
        llm (`vllm.LLM`):
            The engine.
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        sampling ([`Sampling`]):
            How to sample.
        ends (`list[int]`):
            The tokens that end a completion.
        adapter (`vllm.lora.request.LoRARequest`, *optional*):
            An adapter that the engine puts on its model.
    """

    def __init__(
        self,
        llm: "LLM",
        tokenizer: "PreTrainedTokenizerBase",
        sampling: Sampling,
        ends: list[int],
        adapter: "LoRARequest | None" = None,
    ):
        self.llm, self.tokenizer, self.sampling, self.ends, self.adapter = llm, tokenizer, sampling, ends, adapter

    @classmethod
    def load(
        cls,
        model: str,
        adapter: str | None,
        tokenizer: "PreTrainedTokenizerBase",
        sampling: Sampling,
        max_model_len: int,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        trust_remote_code: bool = False,
    ) -> "VLLMBackend":
        """
        Starts an engine.

        Args:
            model (`str`):
                Whole model, by Hub id or folder.
            adapter (`str` or `None`):
                LoRA adapter on it.
            tokenizer (`PreTrainedTokenizerBase`):
                The model's tokenizer.
            sampling ([`Sampling`]):
                How to sample.
            max_model_len (`int`):
                Tokens of the longest prompt and completion together.
            dtype (`str`, *optional*, defaults to `"auto"`):
                Numbers of the weights; `"auto"` for those of the model's files.
            tensor_parallel_size (`int`, *optional*, defaults to `1`):
                Devices that share the model.
            gpu_memory_utilization (`float`, *optional*, defaults to `0.9`):
                Share of a GPU's memory that the engine takes.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether to run code that comes with the model.

        Returns:
            [`VLLMBackend`]: ready to sample.

        Raises:
            [`ImportError`]: vLLM is not installed.
            [`ValueError`]: the adapter has something that vLLM does not do.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ImportError(
                "`backend` is 'vllm', which is not installed: pip install 'sage-trl[vllm]', or set `backend` to "
                "'transformers'."
            )
        from transformers import AutoConfig, GenerationConfig

        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        rank = None if adapter is None else check_adapter(adapter)
        take_own_devices(tensor_parallel_size)
        if tensor_parallel_size == 1:  # in a process of its own the engine's schedule depends on when requests arrive
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM
        from vllm.lora.request import LoRARequest
        from vllm.platforms import current_platform

        llm = LLM(
            model=model,
            # vLLM's own "auto" makes float16 of float32
            dtype=str(config.get_text_config().dtype or "auto").removeprefix("torch.") if dtype == "auto" else dtype,
            max_model_len=max_model_len,
            enable_prefix_caching=True,
            # A prompt read in parts draws a number for each and takes it back, which a CPU's generator cannot
            **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
            enable_lora=adapter is not None,
            **({} if rank is None else {"max_lora_rank": rank}),
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
            trust_remote_code=trust_remote_code,
        )
        try:
            ends = end_tokens(GenerationConfig.from_pretrained(model), tokenizer)
        except OSError:  # a model without such settings: its configuration has them
            ends = end_tokens(GenerationConfig.from_model_config(config), tokenizer)
        request = None if adapter is None else LoRARequest("adapter", 1, adapter)
        return cls(llm, tokenizer, sampling, ends, request)

    def generate(self, requests: list[Request], ended: Callable[[int], None] = ignore) -> list[list[int]]:
        import torch
        from vllm import SamplingParams

        # What is cached from earlier batches would depend on where a run was stopped
        self.llm.reset_prefix_cache()
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):  # an engine in this process draws from the global generators as well
            outputs = self.llm.generate(
                [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
                [
                    SamplingParams(
                        seed=derive_seed(*request.place),
                        temperature=self.sampling.temperature,
                        top_p=self.sampling.top_p,
                        top_k=self.sampling.top_k,
                        min_p=self.sampling.min_p,
                        max_tokens=self.sampling.max_tokens,
                        stop_token_ids=self.ends,
                        detokenize=False,
                    )
                    for request in requests
                ],
                use_tqdm=lambda *args, **settings: _Told(ended, *args, **settings),
                lora_request=self.adapter,
            )
        return [until_end(list(output.outputs[0].token_ids), self.ends) for output in outputs]


class _Told(tqdm):
    """A progress bar that is not shown: vLLM tells it what has ended, and it passes that on."""

    def __init__(self, ended: Callable[[int], None], *args, **settings):
        self.ended = ignore if args else ended  # with arguments it counts prompts that are read
        self.nowhere = open(os.devnull, "w", encoding="utf-8")
        super().__init__(*args, **settings | {"file": self.nowhere})

    def update(self, n=1):
        self.ended(n)
        return super().update(n)

    def close(self):
        super().close()
        self.nowhere.close()


def check_adapter(adapter: str) -> int:
    """The rank to make room for. Raises [`ValueError`] where the adapter has something that vLLM does not do."""
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(adapter)
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    found = [f"peft_type '{kind}'"] if kind != "LORA" else []
    for name, without in UNSUPPORTED.items():
        value = getattr(config, name, without)
        if value != without and value:
            found.append(f"{name} {value!r}")
    rank = getattr(config, "r", 0)
    if not found and rank > RANKS[-1]:
        found.append(f"r {rank}")
    if found:
        raise ValueError(
            f"the adapter '{adapter}' has {', '.join(found)}, which vLLM cannot load. Set `backend` to 'transformers'."
        )
    return next(room for room in RANKS if rank <= room)


def take_own_devices(count: int) -> None:
    """
    Under a launcher every process has an engine of its own: it gets the devices that are its share, which has to be
    said before CUDA starts.
    """
    import torch

    if "LOCAL_RANK" not in os.environ or not torch.cuda.is_available():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    os.environ["CUDA_VISIBLE_DEVICES"] = share_of(visible.split(","), int(os.environ["LOCAL_RANK"]), count)


def share_of(devices: list[str], process: int, count: int) -> str:
    """The devices of one process, as CUDA_VISIBLE_DEVICES. Raises [`ValueError`] where there are too few."""
    own = devices[process * count : (process + 1) * count]
    if len(own) < count:
        raise ValueError(
            f"process {process} of this machine needs {count} GPUs (`tensor_parallel_size`), and of the "
            f"{len(devices)} there are it has {len(own)}. Launch at most {len(devices) // count} processes."
        )
    return ",".join(own)
