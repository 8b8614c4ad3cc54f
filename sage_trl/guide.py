"""Shows what a recipe's guide does to a model's completions, before a run is paid for.

    sage-trl guide --config recipes/countdown/sage_branch.yaml

Samples completions of some of the recipe's problems (or reads some), lets the policy and the reference score them,
evaluates the guide as the trainer does, and writes one HTML page that needs no network. The terminal shows it in
short.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trl import ModelConfig

from .arguments import GuideArguments
from .config import SAGEGRPOConfig
from .data.load import ANSWER_COLUMNS, PROBLEM_COLUMNS, find_column, holds_messages, load_rows
from .data.prompts import control_markers, load_prompt_format, make_prompt
from .guides import GuideFunction, inspect, resolve_guide
from .launch import load_tokenizer, mistakes_as_one_line, quiet_dependencies
from .observe import COMPLETION_COLUMNS, load_models, observe
from .recipe import RecipeParser, portable
from .reports.guide import GuideView, print_view, write_page
from .train import load_split


def choose_rows(
    script_args: GuideArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig
) -> list[dict[str, Any]]:
    """Rows with a `prompt`; from a file, with what else it has, else from the recipe's training data."""
    if script_args.prompts is None:
        dataset = load_split(script_args, training_args, model_args, "train")
        count = min(script_args.num_prompts, len(dataset))
        return list(dataset.shuffle(seed=training_args.seed).select(range(count)))
    path = script_args.prompts
    if not Path(path).is_file():
        raise FileNotFoundError(f"`prompts` is '{path}', and there is no such file.")
    as_text = {*PROBLEM_COLUMNS, *ANSWER_COLUMNS, *COMPLETION_COLUMNS}
    as_text |= {name for name in (script_args.problem_column, script_args.answer_column) if name is not None}
    rows = load_rows(path, None, "train", setting="prompts", as_text=as_text)
    if rows.unparsed:
        number, why = next(iter(rows.unparsed.items()))
        raise ValueError(f"'{path}', {rows.unit} {number}: {why}.")
    column = find_column(rows, path, "problem_column", script_args.problem_column, PROBLEM_COLUMNS)
    problems = rows.columns[column][: script_args.num_prompts]
    for number, problem in zip(rows.numbers, problems, strict=False):
        if problem is None or not str(problem).strip():
            raise ValueError(f"'{path}', {rows.unit} {number}: it has no problem in column '{column}'.")
    if not holds_messages(problems):
        form = script_args.prompt_format or "plain"
        markers = control_markers(load_tokenizer(training_args, model_args), form)
        problems = [make_prompt(str(problem), form, markers) for problem in problems]
    others = {name: name for name in rows.names if name not in (column, "prompt")}
    if script_args.answer_column is not None:
        answer = find_column(rows, path, "answer_column", script_args.answer_column, ANSWER_COLUMNS)
        others |= {"answer": answer}
    return [
        {"prompt": prompt} | {name: rows.columns[source][i] for name, source in others.items()}
        for i, prompt in enumerate(problems)
    ]


def is_of_this_run(script_args: GuideArguments, model_args: ModelConfig) -> bool:
    """Whether the policy is what training left, and not what the recipe starts from."""
    name = script_args.model
    return name not in (None, model_args.model_name_or_path) and (Path(name) / "trainer_state.json").is_file()


def place_in_run(script_args: GuideArguments, args: SAGEGRPOConfig, model: str | None) -> tuple[int, int | None]:
    """The step to show and the steps of the run, `None` where nobody knows them."""
    record = {}
    if model is not None:
        record = json.loads((Path(model) / "trainer_state.json").read_text(encoding="utf-8"))
    max_steps = record.get("max_steps") or (args.max_steps if args.max_steps > 0 else None)
    step = script_args.step if script_args.step is not None else record.get("global_step", 0)
    if script_args.step is None and max_steps:
        step = min(step, max_steps - 1)  # the last one that a run trains with
    if step and not max_steps:
        raise ValueError(f"`step` is {step}, and the recipe has no `max_steps` to measure it by. Set `max_steps`.")
    if max_steps and step >= max_steps:
        raise ValueError(
            f"`step` is {step}, and the run has {max_steps} (`max_steps`), of which {max_steps - 1} is last."
        )
    return step, max_steps


def make_parser(prog: str | None = None) -> RecipeParser:
    return RecipeParser(
        (GuideArguments, SAGEGRPOConfig, ModelConfig),
        any_device=True,
        prog=prog,
        usage="%(prog)s --config recipe.yaml [--model MODEL] [--prompts FILE] [--step N] [--output PAGE]",
        description="Shows what a recipe's guide does to a model's completions. Every setting of the recipe can be "
        "overridden.",
    )


def run(argv: list[str] | None = None, prog: str | None = None) -> None:
    """Makes the page as the command line says. A mistake in the settings is one line and exit code 2."""
    quiet_dependencies()
    with mistakes_as_one_line(ValueError, TypeError, ImportError, OSError):
        arguments = make_parser(prog or "python -m sage_trl.guide").parse_run(sys.argv[1:] if argv is None else argv)
        script_args, training_args, model_args = arguments
        guide = resolve_guide(training_args.guide, training_args.guide_kwargs)
        if guide is None:
            raise ValueError("`guide` is 'none': this recipe has no guide to look at. Set `guide`.")
        view = make_view(guide, *arguments)
    write_page(view, script_args.output)
    print_view(view)
    print(f"\nPage: {script_args.output}")


def make_view(
    guide: GuideFunction, script_args: GuideArguments, training_args: SAGEGRPOConfig, model_args: ModelConfig
) -> GuideView:
    """Runs the models and puts together what is shown."""
    name = script_args.model or model_args.model_name_or_path
    trained, start = is_of_this_run(script_args, model_args), model_args.model_name_or_path
    step, max_steps = place_in_run(script_args, training_args, name if trained else None)
    models = load_models(script_args, training_args, model_args, start if trained else None)
    tokenizer = load_tokenizer(training_args, model_args)
    rows = choose_rows(script_args, training_args, model_args)
    seen = observe(guide, rows, models, tokenizer, (script_args, training_args), step, max_steps or 1)
    table = inspect(guide, seen.signals, training_args.q_min, training_args.q_max)
    remarks = guide.remarks(seen.signals.prepared())
    trained_with = load_prompt_format(name) if Path(name).is_dir() else None
    if trained_with not in (None, script_args.prompt_format):
        remarks.append(
            f"The model was trained with `prompt_format` '{trained_with}', and the recipe says "
            f"'{script_args.prompt_format}'."
        )
    ref = "the policy itself, as at the start of a run"
    if models.ref is not None:
        ref = portable(script_args.ref_model or start)
    elif models.adapted:
        ref = "the policy without its adapter"
    return GuideView(guide, table, seen, training_args, portable(name), ref, step, max_steps, remarks)


if __name__ == "__main__":
    run()
