"""Puts a comparison into a model's card on the Hub: table, picture, and figures that the Hub reads (`model-index`)."""

import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.repocard_data import eval_results_to_model_index

from .. import __version__
from ..evaluation.benchmarks import BENCHMARKS
from ..evaluation.comparison import OF_THE_WAY
from ..evaluation.curves import shown_ks
from ..hub import check_repository
from .compare import escape_markdown

FOLDER = "evaluation"  # in the model's repository
BEGIN, END = "<!-- sage-trl compare -->", "<!-- end of sage-trl compare -->"
KEPT = ("n", "seed", *OF_THE_WAY)  # of the settings, with each figure


def resolve_target(target: str, names: list[str]) -> tuple[str, str]:
    """The evaluation and the repository of `name=repository`. Raises [`ValueError`] for anything else."""
    name, _, repository = target.partition("=")
    if name not in names or not repository:
        raise ValueError(
            f"`--push_to_hub` is '{target}'; write name=user/model, with the name of the evaluation whose model it "
            f"is: one of {names}."
        )
    check_repository(repository, "--push_to_hub")
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
    last = text.rfind(END)
    first = text.rfind(BEGIN, 0, last) if last != -1 else -1
    if first != -1:
        return text[:first] + section + text[last + len(END) :]
    return f"{text.rstrip()}\n\n{section}\n"


def with_results(text: str, name: str, results: list[EvalResult]) -> str:
    """
    A card whose `model-index` has these results of a model, beside the others that it has. All else stays letter by
    letter, other models' results and unknown keys too.

    Args:
        text (`str`):
            The card.
        name (`str`):
            What the model is called where the card does not say.
        results (`list[EvalResult]`):
            The results.

    Returns:
        `str`: the card.

    Raises:
        [`ValueError`]: the card's `model-index` cannot be read.
    """
    opened = re.match(r"---[ \t]*\n(.*?)^---[ \t]*$", text, flags=re.DOTALL | re.MULTILINE)
    front = opened[1] if opened else ""
    # A key at the margin, and the lines that are indented, list items or empty below it
    block = re.search(r"^model-index:.*\n(?:[ \t-].*\n|\n)*", front, flags=re.MULTILINE)
    try:
        models = (yaml.safe_load(block[0])["model-index"] if block else None) or []
        own = models[0] if len(models) == 1 else next((each for each in models if each["name"] == name), None)
        kept = [each for each in (own or {}).get("results") or [] if not _same(each, results)]
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The card's `model-index` cannot be read: {error}. Mend it on the Hub.") from error
    if own is None:
        own = {"name": name}
        models = [*models, own]
    own["results"] = [*kept, *eval_results_to_model_index(own["name"], results)[0]["results"]]
    dumped = yaml.safe_dump({"model-index": models}, sort_keys=False, allow_unicode=True)
    if block:
        front = front[: block.start()] + dumped + front[block.end() :]
    else:
        front += dumped
    return f"---\n{front}---" + (text[opened.end() :] if opened else f"\n{text}")


def _same(entry: dict[str, Any], results: list[EvalResult]) -> bool:
    """Whether an entry of a `model-index` is about the benchmark and metrics of one of these."""
    places = {(each.dataset_type, each.dataset_name, each.metric_type) for each in results}
    kinds = {(entry["dataset"]["type"], entry["dataset"]["name"], each["type"]) for each in entry["metrics"]}
    return kinds <= places


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
        [`ValueError`]: there is no such model, or its card cannot be read.
    """
    api, title = HfApi(), repository.rpartition("/")[2]
    try:
        info = api.model_info(repository)
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"`--push_to_hub` names '{repository}', which is no model on the Hub, or one that this token may not see. "
            "Push the model first: `push_to_hub: true` in its recipe."
        ) from error
    card = f"---\nlibrary_name: transformers\n---\n\n# {title}\n"
    if any(each.rfilename == "README.md" for each in info.siblings):
        path = Path(api.hf_hub_download(repository, "README.md", revision=info.sha))
        card = path.read_bytes().decode("utf-8-sig")
    line_end = "\r\n" if "\r\n" in card else "\n"
    section = (
        f"## Evaluation\n\n![pass@k]({FOLDER}/pass_at_k.png)\n\nThis model is *{escape_markdown(name)}*. Made by "
        f"`sage-trl compare` of [sage-trl](https://huggingface.co/papers/2605.18864) {__version__}.\n\n{report}"
    )
    card = with_section(with_results(card.replace("\r\n", "\n"), title, eval_results(found[name])), section)
    files = {
        "README.md": card.replace("\n", line_end).encode("utf-8"),
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
