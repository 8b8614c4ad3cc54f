"""Puts a comparison into a model's card on the Hub: table, picture, and figures that the Hub reads (`model-index`)."""

from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCard
from huggingface_hub.errors import RepositoryNotFoundError

from .. import __version__
from .benchmarks import BENCHMARKS
from .curves import shown_ks

FOLDER = "evaluation"  # in the model's repository
BEGIN, END = "<!-- sage-trl compare -->", "<!-- end of sage-trl compare -->"
KEPT = ("n", "temperature", "top_p", "top_k", "max_tokens", "prompt_format", "seed", "backend", "dtype")


def resolve_target(target: str, names: list[str]) -> tuple[str, str]:
    """The evaluation and the repository of `name=repository`. Raises [`ValueError`] for anything else."""
    name, _, repository = target.partition("=")
    if name not in names or not repository:
        raise ValueError(
            f"`--push_to_hub` is '{target}'; write name=user/model, with the name of the evaluation whose model it "
            f"is: one of {names}."
        )
    return name, repository


def eval_results(results: dict[str, Any]) -> list[EvalResult]:
    """
    An evaluation's pass@k as the Hub's `model-index` has it.

    Args:
        results (`dict`):
            Contents of a `results.json`.

    Returns:
        `list[EvalResult]`: one for each benchmark and k of a table, values in [0, 1].
    """
    settings = {name: results["settings"][name] for name in KEPT if name in results["settings"]}
    found = []
    for name, each in results["benchmarks"].items():
        known = BENCHMARKS.get(name)
        place = {"dataset_type": name} if known is None else {"dataset_type": known.path, "dataset_split": known.split}
        for k in shown_ks([int(k) for k in each["pass_at_k"]]):
            figure = each["pass_at_k"][str(k)]
            low, high = (round(end, 4) for end in figure["problems"])
            arguments = settings | {"n": each["samples"], "problems": each["problems"], "interval_95": [low, high]}
            found.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_name=name,
                    metric_type=f"pass@{k}",
                    metric_name=f"pass@{k}",
                    metric_value=round(figure["value"], 4),
                    metric_args=arguments,
                    **place,
                )
            )
    return found


def with_section(text: str, section: str) -> str:
    """The card's text with the section at its end, or in the place of the one that it has."""
    section = f"{BEGIN}\n{section.strip()}\n{END}"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return before + section + after
    return f"{text.rstrip()}\n\n{section}\n"


def push_comparison(repository: str, name: str, found: dict[str, dict[str, Any]], report: str, folder: Path) -> str:
    """
    Adds a comparison to a model's card, in one commit with its picture and `compare.json`. What the card says
    otherwise stays, and an earlier comparison is replaced.

    Args:
        repository (`str`):
            The model's id on the Hub.
        name (`str`):
            The evaluation that is this model's.
        found (`dict[str, dict]`):
            Contents of each `results.json` by the evaluation's name.
        report (`str`):
            The comparison as Markdown.
        folder (`Path`):
            Where [`~sage_trl.compare.write_report`] wrote.

    Returns:
        `str`: the model's address.

    Raises:
        [`ValueError`]: there is no such model.
    """
    api = HfApi()
    try:
        info = api.model_info(repository)
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"`--push_to_hub` names '{repository}', which is no model on the Hub, or one that this token may not see. "
            "Push the model first: `push_to_hub: true` in its recipe."
        ) from error
    if any(each.rfilename == "README.md" for each in info.siblings):
        card = ModelCard.load(api.hf_hub_download(repository, "README.md", revision=info.sha))
    else:
        card = ModelCard(f"---\nlibrary_name: transformers\n---\n\n# {repository.rpartition('/')[2]}\n")
    new = eval_results(found[name])
    replaced = {(each.dataset_type, each.dataset_name, each.metric_type) for each in new}
    kept = [
        each
        for each in card.data.eval_results or []
        if (each.dataset_type, each.dataset_name, each.metric_type) not in replaced
    ]
    card.data.eval_results = [*kept, *new]
    card.data.model_name = card.data.model_name or repository.rpartition("/")[2]
    made = " ".join(f"{each}=..." for each in found)
    section = (
        f"## Evaluation\n\n![pass@k]({FOLDER}/pass_at_k.png)\n\nThis model is *{name}*. Made by "
        f"`sage-trl compare {made}` of [sage-trl](https://huggingface.co/papers/2605.18864) {__version__}.\n\n{report}"
    )
    card.text = with_section(card.text, section)
    files = {
        "README.md": str(card).encode("utf-8"),
        f"{FOLDER}/pass_at_k.png": (folder / "pass_at_k.png").read_bytes(),
        f"{FOLDER}/compare.json": (folder / "compare.json").read_bytes(),
    }
    api.create_commit(
        repository,
        [CommitOperationAdd(path, content) for path, content in files.items()],
        commit_message="Add an evaluation by pass@k",
        parent_commit=info.sha,
    )
    return f"https://huggingface.co/{repository}"
