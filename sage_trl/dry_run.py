"""What a run would do, before it is paid for: everything but the weights is loaded, nothing is trained.

No engine is started, neither vLLM nor DeepSpeed, trackers and the Hub are left alone, and no GPU is needed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from .checks import is_main_process, missing_extras, uses_fsdp, zero_stage
from .data.prompts import prompt_text
from .empty import empty_models, missing_weights
from .guides.schedule import CosineCycles, schedules_of
from .memory import estimate, shape_of

if TYPE_CHECKING:
    from transformers import TrainingArguments
    from trl import SFTTrainer

    from .guides import GuideFunction
    from .trainer import SAGEGRPOTrainer

GIB = 1024**3
SHOWN_PROMPTS = 2
# Points of the run at which a guide's settings are shown
POINTS = (0.0, 0.03, 0.06, 0.125, 0.25, 0.5, 0.75, 1.0)


def rehearse(build_trainer: Callable, describe: Callable, arguments: tuple) -> None:
    """
    Builds the trainer of a run and prints what it would do.

    Args:
        build_trainer (`Callable`):
            Builds it from the arguments.
        describe (`Callable`):
            Takes the trainer and whether it would generate with vLLM, returns lines by title.
        arguments (`tuple`):
            Script arguments, training arguments and model arguments.
    """
    _, training_args, model_args = arguments
    missing = missing_extras(training_args, model_args)
    uses_vllm = getattr(training_args, "use_vllm", False)
    if uses_vllm:
        training_args.use_vllm = False
    leave_the_world_alone(training_args)
    with empty_models():
        trainer = build_trainer(*arguments)
    missing += missing_weights(model_args.model_name_or_path)
    if is_main_process():
        print(render(describe(trainer, uses_vllm) | {"Missing on this machine": missing}))
    trainer.end()


def leave_the_world_alone(training_args: "TrainingArguments") -> None:
    """Takes out what would be seen outside this process."""
    training_args.report_to = []
    training_args.push_to_hub = False
    training_args.save_strategy = "no"


def render(sections: dict[str, list[str]]) -> str:
    lines = ["", "Dry run: everything but the weights was loaded, nothing was trained."]
    for title, body in sections.items():
        if body:
            lines += ["", title, *(f"  {line}" for line in body)]
    return "\n".join(lines)


def describe_training(trainer: "SAGEGRPOTrainer", uses_vllm: bool) -> dict[str, list[str]]:
    """
    Says what a run would do.

    Args:
        trainer ([`SAGEGRPOTrainer`]):
            The trainer, built.
        uses_vllm (`bool`):
            Whether the run would generate with vLLM.

    Returns:
        `dict[str, list[str]]`: lines by title.
    """
    args, steps = trainer.args, max_steps(trainer)
    names = [getattr(reward, "__name__", repr(reward)) for reward in trainer.reward_funcs]
    weights = args.reward_weights or [1.0] * len(names)
    prompts, longest = describe_prompts(trainer)
    engine = "vLLM, " + args.vllm_mode if uses_vllm else "transformers"
    return {
        "Model": describe_model(trainer),
        "Batch": describe_batch(trainer, steps),
        "Generation": [
            f"{engine}; temperature {args.temperature}, top-p {args.top_p}, min-p "
            f"{args.min_p}; up to {args.max_completion_length} tokens"
        ],
        "Evaluation": describe_evaluation(trainer),
        "Rewards": [f"{weight:g} x {name}" for name, weight in zip(names, weights, strict=True)],
        "Anchor": describe_anchor(trainer, steps),
        "Prompts, as the model sees them": prompts,
        "Memory per device, estimated": describe_memory(
            trainer,
            tokens=longest + args.max_completion_length,
            has_reference=trainer.ref_model is not None,
            generated=0 if uses_vllm else args.per_device_train_batch_size * args.steps_per_generation,
            vllm_share=args.vllm_gpu_memory_utilization if uses_vllm and args.vllm_mode == "colocate" else None,
            vllm_sleeps=args.vllm_enable_sleep_mode,
        ),
    }


def describe_sft(trainer: "SFTTrainer", uses_vllm: bool = False) -> dict[str, list[str]]:
    """The same of the supervised stage."""
    args, steps = trainer.args, max_steps(trainer)
    per_step, one_step = describe_step(args, "texts")
    texts, longest = describe_texts(trainer)
    return {
        "Model": describe_model(trainer),
        "Batch": [
            one_step,
            f"whole run: {steps:,} steps, {steps * per_step:,} texts = "
            f"{steps * per_step / len(trainer.train_dataset):.2f} epochs of {len(trainer.train_dataset):,} rows",
            describe_optimizer(args, steps),
        ],
        "Texts, as the model sees them": texts,
        "Memory per device, estimated": describe_memory(trainer, tokens=longest),
    }


def describe_texts(trainer: "SFTTrainer") -> tuple[list[str], int]:
    """Some texts, of each how much the loss is taken over, and the number of tokens of the longest of all."""
    counts = list(map(len, trainer.train_dataset["input_ids"]))
    lines = [f"{len(counts):,} texts of {min(counts)} to {max(counts)} tokens"]
    for row in trainer.train_dataset.select(range(min(SHOWN_PROMPTS, len(counts)))):
        learnt = int((trainer.data_collator([row])["labels"] != -100).sum())
        text = trainer.processing_class.decode(row["input_ids"])
        lines += [f"--- {len(row['input_ids'])} tokens, the last {learnt} learnt", *_shortened(text).splitlines()]
    return lines, max(counts)


def max_steps(trainer) -> int:
    """Optimizer steps of the whole run."""
    if trainer.args.max_steps > 0:
        return trainer.args.max_steps
    per_epoch = max(1, len(trainer.get_train_dataloader()) // trainer.args.gradient_accumulation_steps)
    return int(per_epoch * trainer.args.num_train_epochs)


def describe_model(trainer) -> list[str]:
    shape = shape_of(trainer.model)
    base = trainer.model.get_base_model() if shape.has_adapter else trainer.model
    what = "an adapter of" if shape.has_adapter else "all of"
    return [
        f"{type(base).__name__}: {shape.parameters:,} parameters in {next(base.parameters()).dtype}".replace(
            "torch.", ""
        ),
        f"trained: {what} {shape.trained:,} parameters",
    ]


def describe_evaluation(trainer: "SAGEGRPOTrainer") -> list[str]:
    """What is measured on the evaluation schedule."""
    args = trainer.args
    if args.eval_strategy == "no":
        return []
    when = f"every {args.eval_steps:g} steps" if args.eval_strategy == "steps" else "every epoch"
    if trainer.monitor is None:
        return [f"loss and rewards of {len(trainer.eval_dataset):,} prompts, {when}"]
    settings = trainer.monitor.settings
    return [
        f"pass@k of {each.name}, {len(each.rows):,} x {settings.n} completions, "
        f"k = {', '.join(map(str, settings.ks))}, {when}"
        for each in trainer.monitor.benchmarks
    ]


def describe_batch(trainer: "SAGEGRPOTrainer", steps: int) -> list[str]:
    args = trainer.args
    per_step, one_step = describe_step(args, "completions")
    prompts = per_step / args.num_generations
    rows = len(trainer.train_dataset)
    generated = args.generation_batch_size
    every = args.steps_per_generation / args.gradient_accumulation_steps * args.num_iterations
    return [
        one_step,
        f"          {prompts:g} prompt{'s' if prompts != 1 else ''} x {args.num_generations} completions",
        f"generated at once: {generated} completions of {generated // args.num_generations} prompts, every {every:g} "
        f"step{'s' if every != 1 else ''}",
        f"whole run: {steps:,} steps, {steps * per_step:,} completions, "
        f"{steps * prompts / args.num_iterations:,.0f} prompts = "
        f"{steps * prompts / args.num_iterations / rows:.2f} epochs of {rows:,} rows",
        describe_optimizer(args, steps),
    ]


def describe_step(args: "TrainingArguments", what: str) -> tuple[int, str]:
    """How many rows one optimizer step takes, and how that comes about."""
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return per_step, (
        f"one step: {per_step} {what} = {args.per_device_train_batch_size} per device x "
        f"{args.gradient_accumulation_steps} accumulated x {args.world_size} "
        f"process{'es' if args.world_size > 1 else ''}"
    )


def describe_optimizer(args: "TrainingArguments", steps: int) -> str:
    schedule, optimizer = (getattr(value, "value", value) for value in (args.lr_scheduler_type, args.optim))
    warmup = args.get_warmup_steps(steps)
    return f"learning rate {args.learning_rate:g}, {schedule}, {warmup} steps of warm-up; {optimizer}"


def describe_anchor(trainer: "SAGEGRPOTrainer", steps: int) -> list[str]:
    if trainer.args.beta == 0:
        return [f"none (beta 0); loss {trainer.args.loss_type}"]
    lines = [f"{trainer.args.anchor}, beta {trainer.args.beta:g}; loss {trainer.args.loss_type}"]
    guide = trainer.guide
    if guide is None:
        return [*lines, "guide: none, so the anchor is the reference itself"]
    bounds = f"[{trainer.args.q_min:g}, {trainer.args.q_max:g}]"
    lines.append(f"guide: {describe_guide(guide)}, q kept within {bounds}")
    schedules = schedules_of(guide)
    if schedules:
        width = max(14, *map(len, schedules))
        at = sorted({min(steps - 1, round(point * steps)) for point in POINTS})
        lines.append("".join([f"{'step':>{width}}", *(f"{step:>9}" for step in at)]))
        for name, schedule in schedules.items():
            lines.append("".join([f"{name:>{width}}", *(f"{schedule.value(step, steps):>9.4f}" for step in at)]))
    return lines


def describe_guide(guide: "GuideFunction") -> str:
    """A guide with its settings."""
    parts = []
    for part in guide.parts:
        settings = {name: value for name, value in vars(part).items() if name != "requires"}
        shown = (
            f"{name}={value if isinstance(value, CosineCycles) else repr(value)}" for name, value in settings.items()
        )
        parts.append(f"{type(part).__name__}({', '.join(shown)})")
    return " x ".join(parts)


def describe_prompts(trainer) -> tuple[list[str], int]:
    """Some prompts with their answers, and the number of tokens of the longest of all."""
    dataset, tokenizer = trainer.train_dataset, trainer.processing_class
    template = getattr(trainer.args, "chat_template_kwargs", None)
    texts = [prompt_text(prompt, tokenizer, template) for prompt in dataset["prompt"]]
    counts = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    lines = [f"{len(texts):,} prompts of {min(counts)} to {max(counts)} tokens"]
    for index in range(min(SHOWN_PROMPTS, len(dataset))):
        row = dataset[index]
        what = f", answer {row['answer']}" if row.get("answer") is not None else ""
        lines += [f"--- {counts[index]} tokens{what}", *texts[index].splitlines()]
    return lines, max(counts)


def _shortened(text: str, limit: int = 600) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n[... {len(text) - limit:,} characters ...]\n{text[-half:]}"


def estimate_memory(trainer, tokens: int, stage: int, processes: int, deepspeed: bool, **more) -> dict[str, float]:
    """Bytes by part, and the `"peak"`, of each of so many processes under a stage of ZeRO."""
    args = trainer.args
    return estimate(
        shape_of(trainer.model),
        rows=args.per_device_train_batch_size,
        tokens=tokens,
        compute_bytes=2 if args.bf16 or args.fp16 else 4,
        optimizer=str(getattr(args.optim, "value", args.optim)),
        checkpointing=args.gradient_checkpointing,
        zero_stage=stage,
        processes=processes,
        deepspeed=deepspeed,
        **more,
    )


def describe_memory(trainer, tokens: int, **more) -> list[str]:
    args, stage = trainer.args, zero_stage()
    parts = estimate_memory(trainer, tokens, stage, args.world_size, stage > 0 and not uses_fsdp(), **more)
    how = f"{args.per_device_train_batch_size} rows of {tokens:,} tokens"
    if stage:
        sharing = "FSDP" if uses_fsdp() else f"ZeRO-{stage}"
        how += f", {sharing} over {args.world_size} process{'es' if args.world_size > 1 else ''}"
    lines = [f"{name:<12}{_size(size)}" for name, size in parts.items() if size]
    return [*lines, f"for {how}; the formulas are in sage_trl/memory.py"]


def _size(size: float) -> str:
    return f"{size / GIB:10.1f} GiB" if size >= GIB else f"{size / GIB * 1024:10.1f} MiB"
