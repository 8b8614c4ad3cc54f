"""pass@k while a model is trained, by the run's own engine and without touching the run.

Nothing is drawn from a global generator and no model is loaded, so a run that is watched ends in the same weights, to
the bit, as one that is not. Every evaluation uses the same seeds: what changes between two of them is the policy.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from ..sampling import end_tokens
from .backends import Backend, Sampling, check_positions
from .benchmarks import load_benchmarks
from .monitor_settings import PassAtK
from .pass_at_k import pass_at_k
from .results import FAILED
from .runner import encode_prompts, run_benchmark
from .settings import BATCH_SIZES
from .transformers_backend import TransformersBackend
from .vllm_backend import VLLMBackend

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from vllm import LLM

    from ..config import SAGEGRPOConfig


def without_dataset(more: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """
    A trainer's arguments after the first three, with an empty `eval_dataset` where there is none: transformers asks
    for one wherever there is an evaluation schedule.
    """
    if len(more) > 1:
        return (more[0], {} if more[1] is None else more[1], *more[2:]), kwargs
    return more, kwargs if kwargs.get("eval_dataset") is not None else kwargs | {"eval_dataset": {}}


@contextmanager
def keep_base_weights(model: "PreTrainedModel") -> Iterator[None]:
    """
    Puts the weights below adapters back as they were. An engine is given a model with its adapter merged, and taking
    the adapter out again leaves what rounding leaves.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
    kept = [
        (layer, name, weight, weight.detach().to("cpu", copy=True))
        for layer in layers
        for name, weight in layer.named_parameters(recurse=False)
    ]
    yield
    with torch.no_grad():
        for layer, name, weight, values in kept:
            setattr(layer, name, weight)  # of a quantized layer merging makes another
            weight.copy_(values)


class PassAtKMonitor:
    """
    Measures pass@k of a model that is being trained.

    Args:
        settings ([`PassAtK`]):
            What is measured.
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        model (`PreTrainedModel`):
            The model.
        sampling ([`Sampling`]):
            How the run samples.
        chat_template_kwargs (`dict`, *optional*):
            Arguments of the chat template.
        show_progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.

    Raises:
        [`ValueError`]: a benchmark is not to be had, its problems need a `prompt_format`, or a completion has no room.
    """

    def __init__(
        self,
        settings: PassAtK,
        tokenizer: "PreTrainedTokenizerBase",
        model: "PreTrainedModel",
        sampling: Sampling,
        chat_template_kwargs: dict[str, Any] | None = None,
        show_progress: bool = True,
    ):
        self.settings, self.tokenizer, self.sampling = settings, tokenizer, sampling
        self.generation_config = model.generation_config
        self.benchmarks = load_benchmarks(settings.benchmarks, settings.num_problems)
        if settings.prompt_format is None and any(
            "prompt" not in row for each in self.benchmarks for row in each.rows
        ):
            raise ValueError(
                f"`eval_pass_at_k` names the benchmarks '{settings.benchmarks}' and no `prompt_format`: say how a "
                "problem is put to the model, as in training. 'plain' puts it as it is."
            )
        form = settings.prompt_format or "plain"
        self.prompts = [encode_prompts(each, tokenizer, form, chat_template_kwargs) for each in self.benchmarks]
        longest = max(len(ids) for each in self.prompts for ids in each)
        check_positions(model.config, longest, sampling.max_tokens)
        self.progress = partial(tqdm, leave=False, disable=not show_progress)

    @classmethod
    def of(
        cls, args: "SAGEGRPOConfig", tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel"
    ) -> "PassAtKMonitor | None":
        """As a run's settings say; `None` where they ask for none."""
        if args.eval_pass_at_k is None:
            return None
        return cls(
            PassAtK.of(args.eval_pass_at_k),
            tokenizer,
            model,
            Sampling(args.temperature, args.top_p, args.top_k, args.max_completion_length, args.min_p or 0.0),
            args.chat_template_kwargs,
            show_progress=args.process_index == 0 and not args.disable_tqdm,
        )

    def measure_model(self, model: "PreTrainedModel", accelerator: "Accelerator") -> dict[str, float]:
        """Measures a model in this process, as [`PassAtKMonitor.measure`]."""
        backend = TransformersBackend(model, self.tokenizer, self.sampling)
        return self.measure(backend, self.settings.batch_size or BATCH_SIZES["transformers"], accelerator)

    def measure_vllm(self, llm: "LLM", accelerator: "Accelerator", sharing: int = 1) -> dict[str, float]:
        """Measures the model of an engine, as [`PassAtKMonitor.measure`], and leaves nothing in its cache."""
        ends = end_tokens(self.generation_config, self.tokenizer)
        backend = VLLMBackend(llm, self.tokenizer, self.sampling, ends)
        found = self.measure(backend, self.settings.batch_size or BATCH_SIZES["vllm"], accelerator, sharing)
        llm.reset_prefix_cache()
        return found

    def measure(
        self, backend: Backend, batch_size: int, accelerator: "Accelerator", sharing: int = 1
    ) -> dict[str, float]:
        """
        Samples and judges, every process its share of the problems.

        Args:
            backend ([`~sage_trl.evaluation.backends.Backend`]):
                The engine.
            batch_size (`int`):
                Completions sampled at once.
            accelerator (`Accelerator`):
                Of the run.
            sharing (`int`, *optional*, defaults to `1`):
                How many processes share one engine, and so work through the same problems.

        Returns:
            `dict[str, float]`: `pass@k` of each k and `unjudged`, the share of completions that no verdict was reached
            on and that count as wrong. Where there are several benchmarks, each one's name stands before them.
        """
        found = {}
        shard = (accelerator.process_index // sharing, accelerator.num_processes // sharing)
        for problems, prompt_ids in zip(self.benchmarks, self.prompts, strict=True):
            batches: list[list[dict[str, Any]]] = []
            run_benchmark(
                problems,
                prompt_ids,
                backend,
                self.tokenizer,
                batches,
                self.sampling,
                self.settings.n,
                seed=self.settings.seed,
                batch_size=batch_size,
                shard=shard,
                planned_for=shard[1],
                progress=self.progress,
            )
            verdicts = Counter((row["problem"], row["verdict"]) for batch in batches for row in batch)
            own = [verdicts[row["id"], "right"] for row in problems.rows]
            own.append(sum(count for (_, verdict), count in verdicts.items() if verdict in FAILED))
            # As long as there are problems, whatever each process had to do
            counts = torch.tensor(own, device=accelerator.device) * (accelerator.process_index % sharing == 0)
            *right, failed = accelerator.reduce(counts, reduction="sum").tolist()
            before = f"{problems.name}_" if len(self.benchmarks) > 1 else ""
            for k in self.settings.ks:
                found[f"{before}pass@{k}"] = float(np.mean(pass_at_k(self.settings.n, right, k)))
            found[f"{before}unjudged"] = failed / (self.settings.n * len(right))
        return found
