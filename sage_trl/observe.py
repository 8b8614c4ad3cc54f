"""What a guide sees of a model's completions outside training: sampled or read, scored, and judged."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm
from trl import ModelConfig, get_quantization_config

from .anchor import prepared_extras
from .arguments import GuideArguments
from .checks import check_model
from .config import SAGEGRPOConfig
from .data.load import ANSWER_COLUMNS
from .data.prompts import prompt_text
from .guides import GuideFunction, GuideSignals, Rollout
from .launch import model_init_kwargs
from .loading import load_model, split_adapter
from .recipe import parse_mapping
from .rewards import resolve_reward
from .sampling import end_tokens, pad_rows, sample, score, until_end
from .seeds import derive_generator, derive_seed
from .train import set_reward_limits

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

COMPLETION_COLUMNS = ("completion", "completions")


@dataclass
class Observation:
    """
    Completions of some problems, and what a guide sees of them.

    Args:
        signals ([`GuideSignals`]):
            Of all completions, those of one problem together.
        prompts (`list[str]`):
            The prompts as the model sees them.
        prompt_of (`list[int]`):
            Number of each completion's prompt.
        rewards (`list[float]` or `None`):
            Weighted reward of each completion.
        correct (`list[bool]` or `None`):
            Whether `pass_reward` is above `pass_threshold`.
        cut_off (`list[bool]`):
            Whether a completion has no end token.
    """

    signals: GuideSignals
    prompts: list[str]
    prompt_of: list[int]
    rewards: list[float] | None
    correct: list[bool] | None
    cut_off: list[bool]


@dataclass
class Models:
    """A policy and its reference, which may be the same weights."""

    policy: "PreTrainedModel"
    ref: "PreTrainedModel | None"  # a model of its own
    adapted: bool  # else the policy without its adapter, where it has one

    def score_ref(self, *args) -> tuple[torch.Tensor, torch.Tensor]:
        if self.ref is not None:
            return score(self.ref, *args)
        with self.policy.disable_adapter() if self.adapted else nullcontext():
            return score(self.policy, *args)


def load_models(
    script_args: GuideArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig, start: str | None = None
) -> Models:
    """Policy and reference; `start` is the reference of a whole model that a run left, if the user names none."""
    from peft import PeftModel

    name = script_args.model or model_args.model_name_or_path
    check_model(name, setting="model")
    base, adapter = split_adapter(name)
    model_args.model_name_or_path = base  # whose tokenizer is used
    kwargs = {
        **model_init_kwargs(training_args, model_args),
        **parse_mapping(training_args.model_init_kwargs, "model_init_kwargs"),
        "quantization_config": get_quantization_config(model_args),
    }

    policy = load_model(base, "model", **kwargs).to(training_args.device)
    wanted = script_args.ref_model if adapter else script_args.ref_model or start
    ref = None
    if wanted not in (None, base):
        ref = load_model(wanted, "ref_model", **kwargs).to(training_args.device)
    if adapter:
        policy = PeftModel.from_pretrained(policy, adapter).eval()
    return Models(policy, ref, adapted=adapter is not None)


def given_completions(row: dict[str, Any]) -> list[str] | None:
    """The completions that come with a row."""
    given = next((row[name] for name in COMPLETION_COLUMNS if row.get(name) is not None), None)
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`prompts`: a row's completion is {given!r}; it must be a text or a list of texts.")
    return texts


def observe(
    guide: GuideFunction,
    rows: list[dict[str, Any]],
    models: Models,
    tokenizer: "PreTrainedTokenizerBase",
    arguments: tuple[GuideArguments, SAGEGRPOConfig],
    step: int,
    max_steps: int,
) -> Observation:
    """Samples or reads completions, scores them, and collects what the guide sees."""
    script_args, args = arguments
    num_samples = script_args.num_samples or (args.num_generations if guide.prepares else 4)
    template = parse_mapping(args.chat_template_kwargs, "chat_template_kwargs")
    generation = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if (value := getattr(args, name)) is not None
    } | parse_mapping(args.generation_kwargs, "generation_kwargs")
    prompts, prompt_ids, completions, scores, groups = [], [], [], [], []
    device, ends = models.policy.device, end_tokens(models.policy.generation_config, tokenizer)
    for index, row in enumerate(tqdm(rows, desc="problems", unit="problem", disable=args.disable_tqdm)):
        text = prompt_text(row["prompt"], tokenizer, template)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        given = given_completions(row)
        if given is not None:
            found = [tokenizer(each, add_special_tokens=False)["input_ids"] for each in given]
            # It ends where sampling would end it; one that is too long for the run is cut off there, without an end
            found = [until_end([*each, ends[0]], ends)[: args.max_completion_length] for each in found]
        else:
            seed = derive_seed(args.seed, index)
            found = sample(
                models.policy,
                tokenizer,
                ids,
                num_samples,
                seed,
                args.max_completion_length,
                **generation,
            )
        completion_ids, mask = pad_rows(found, tokenizer.pad_token_id or 0, device)
        given_to = (ids, completion_ids, mask, args.temperature)
        scores.append((*score(models.policy, *given_to), *models.score_ref(*given_to)))
        prompts.append(text)
        prompt_ids.append(ids)
        completions += found
        groups += [index] * len(found)
    completion_ids, mask = pad_rows(completions, tokenizer.pad_token_id or 0, device)
    width = mask.size(1)
    logps, entropies, ref_logps, ref_entropies = (
        torch.cat([torch.nn.functional.pad(part, (0, width - part.size(1))) for part in parts])
        for parts in zip(*scores, strict=True)
    )
    signals = GuideSignals(
        policy_logps=logps,
        ref_logps=ref_logps,
        mask=mask,
        entropies=entropies,
        ref_entropies=ref_entropies,
        completion_ids=completion_ids,
        prompt_ids=pad_rows([prompt_ids[i] for i in groups], tokenizer.pad_token_id or 0, device, side="left")[0],
        tokenizer=tokenizer,
        step=step,
        max_steps=max_steps,
        generator=derive_generator(device, args.seed, step, 1),
    )
    cut_off = [each[-1] not in ends for each in completions]
    rewards, correct = judge(script_args, args, [rows[group] for group in groups], completions, tokenizer)
    if guide.prepares:
        if rewards is None:
            raise ValueError(
                f"{type(guide).__name__} sees rewards, and '{script_args.prompts}' lacks the columns that "
                f"{script_args.reward_funcs} judge by, such as 'answer'."
            )
        if len({groups.count(group) for group in groups}) > 1:
            raise ValueError(f"`prompts`: {type(guide).__name__} needs as many completions of every problem.")
        size = len(groups) // len(rows)
        weighted, passed = (torch.tensor(each, device=device) for each in (rewards, correct))
        whole = torch.tensor([not each for each in cut_off], device=device).unsqueeze(1)
        counted = mask & whole if args.mask_truncated_completions else mask
        rollout = Rollout(completion_ids, counted, weighted, passed, size, tokenizer, step, max_steps)
        signals.extra = prepared_extras(guide, rollout)
    return Observation(signals, prompts, groups, rewards, correct, cut_off)


def can_judge(reward: Callable, row: dict) -> bool:
    """Whether a row of a file has the columns that a reward function needs."""
    given = ("prompts", "completions", "completion_ids")
    needed = {
        name
        for name, parameter in signature(reward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in given
    }
    return needed <= set(row) and any(name in row for name in (*ANSWER_COLUMNS, *needed))


def judge(
    script_args: GuideArguments, args: SAGEGRPOConfig, rows: list[dict], completions: list[list[int]], tokenizer
) -> tuple[list[float] | None, list[bool] | None]:
    """Weighted rewards of completions and which of them are correct; `None` for problems of a file without answers."""
    rewards = [resolve_reward(name) for name in script_args.reward_funcs]
    if script_args.prompts is not None and not all(can_judge(reward, rows[0]) for reward in rewards):
        return None, None
    set_reward_limits(script_args)
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", *COMPLETION_COLUMNS)}
    found = [
        reward(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=completions,
            **columns,
        )
        for reward in rewards
    ]
    table = np.array([[np.nan if value is None else value for value in each] for each in found], dtype=float)
    weights = np.array(args.reward_weights or [1.0] * len(found))
    names = script_args.reward_funcs
    passing = table[names.index(args.pass_reward) if args.pass_reward in names else 0]
    return np.nansum(table * weights[:, None], axis=0).tolist(), (passing > args.pass_threshold).tolist()
