"""What TRL cannot write of a model card: which guide reshaped the anchor and how, and how the run is done again."""

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from . import __version__
from .recipe import SECRET

if TYPE_CHECKING:
    from .config import SAGEGRPOConfig
    from .guides import GuideFunction

PAPER = {
    "title": "SAGE: Shaping Anchors for Guided Exploration in RLVR of LLMs",
    "id": "2605.18864",
    "citation": """\
@inproceedings{lee2026sage,
    title     = {{SAGE: Shaping Anchors for Guided Exploration in RLVR of LLMs}},
    author    = {Chanuk Lee and Minki Kang and Sung Ju Hwang},
    year      = 2026,
    booktitle = {ICML},
    eprint    = {arXiv:2605.18864},
}""",
}
HEADING, RUN, VERSIONS = "### Method", "### Run", "### Framework versions"  # in this order
# What TRL's card says of a local base and of a model that is not pushed -> what this one says
CORRECTIONS = {
    "This model is a fine-tuned version of [None](https://huggingface.co/None)": (
        "This model is a fine-tuned version of a local model"
    ),
    'model="None"': 'model="path/to/this/folder"',
}


def describe_method(args: "SAGEGRPOConfig", guide: "GuideFunction | None") -> None:
    """
    Adds the method to the card in the output folder: the guide with its settings, the anchor and this software.

    A guide from a file is named by its class, and settings that hold a path are left out: a card is published, and
    where something lies on a disk is nobody's business.

    Args:
        args ([`SAGEGRPOConfig`]):
            The run's settings.
        guide ([`GuideFunction`] or `None`):
            The run's guide.
    """
    path = Path(args.output_dir) / "README.md"
    card = ModelCard.load(path)
    rows = {"guide": "none (plain GRPO)" if guide is None else f"`{type(guide).__name__}`"}
    if guide is not None:
        settings = {name: value for name, value in vars(guide).items() if name != "requires"}
        rows |= {f"guide `{name}`": f"`{value!r}`" for name, value in settings.items() if not _is_private(name, value)}
        rows |= {"`q_min`": f"`{args.q_min}`", "`q_max`": f"`{args.q_max}`"}
    rows |= {"`anchor`": f"`{args.anchor}`", "`beta`": f"`{args.beta}`", "`loss_type`": f"`{args.loss_type}`"}
    rows |= {"software": f"sage-trl {__version__}"}
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    text = card.text
    section = (
        f"{HEADING}\n\nGRPO whose KL anchor, the reference policy, is multiplied by a guide q "
        f"([SAGE](https://huggingface.co/papers/2605.18864)).\n\n| setting | value |\n| --- | --- |\n{table}\n\n"
    )
    card.text = _inserted(text, section)
    card.save(path)


def _inserted(text: str, section: str) -> str:
    """A card's text with a section before those that come after it."""
    marker = next((each for each in (RUN, VERSIONS) if each in text), None)
    if marker is None:
        return f"{text}\n\n{section}"
    before, _, after = text.partition(marker)
    return before + section + marker + after


def about_run(module: str, task: str | None, dataset_name: str | None) -> str:
    """
    The section that says how a run is done again. Where a dataset lies on a disk is not told.

    Args:
        module (`str`):
            What `accelerate launch -m` ran.
        task (`str` or `None`):
            Built-in task whose problems it was trained on.
        dataset_name (`str` or `None`):
            Dataset that it was trained on instead.
    """
    if task is not None:
        data = f"problems of the task `{task}`, generated from the seed in the recipe"
    elif _is_local(dataset_name):
        data = "a dataset that is not published"
    else:
        data = f"[{dataset_name}](https://huggingface.co/datasets/{dataset_name})"
    return (
        f"{RUN}\n\nAll settings are in [recipe.yaml](recipe.yaml), which runs as\n\n```bash\n"
        f"accelerate launch -m {module} --config recipe.yaml\n```\n\nIt was trained on {data}.\n\n"
    )


def describe_run(folder: str | Path, section: str) -> None:
    """Puts the section of [`about_run`] into the card in `folder`."""
    path = Path(folder) / "README.md"
    card = ModelCard.load(path)
    card.text = _inserted(card.text, section)
    card.save(path)


def correct_card(folder: str | Path) -> None:
    """
    Takes out of the card in `folder` what TRL writes of a local base model and of a model that is not pushed.

    Args:
        folder (`str` or `Path`):
            A folder with a card.
    """
    path = Path(folder) / "README.md"
    card = ModelCard.load(path)
    card.text = _corrected(card.text)
    card.save(path)
    drop_local_base(folder)


def _corrected(text: str) -> str:
    for wrong, right in CORRECTIONS.items():
        text = text.replace(wrong, right)
    return text


def drop_local_base(folder: str | Path) -> None:
    """
    Takes a base model that is a local folder out of the card in `folder`, where PEFT writes it whatever it is.

    Args:
        folder (`str` or `Path`):
            A folder that a model or adapter was saved to. Nothing happens where it holds no card.
    """
    path = Path(folder) / "README.md"
    if not path.is_file():
        return
    card = ModelCard.load(path)
    if card.data.base_model is None or not _is_local(card.data.base_model):
        return
    card.data.base_model = None
    card.data.tags = [tag for tag in card.data.tags or [] if not tag.startswith("base_model:")]
    card.save(path)


def _is_local(model_name: str) -> bool:
    if Path(model_name).exists():
        return True
    try:
        validate_repo_id(model_name)
    except HFValidationError:
        return True
    return False


def _is_private(name: str, value: Any) -> bool:
    """Whether a setting is a secret by its name, or holds one or a path."""
    if SECRET.fullmatch(name):
        return True
    if isinstance(value, dict):
        return any(_is_private(str(key), each) for key, each in value.items())
    if isinstance(value, (list, tuple, set)):
        return any(_is_private("", each) for each in value)
    return isinstance(value, PurePath) or (isinstance(value, str) and ("/" in value or "\\" in value))
