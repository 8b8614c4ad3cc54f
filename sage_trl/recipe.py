"""Reads a run from a YAML recipe and the command line. One message per mistake, before anything heavy loads.

The parser is TRL's. What this adds: a misspelt setting is answered with the nearest known one, wherever it stands; a
setting that stands twice in a recipe is refused; and mistakes are exceptions rather than a page of usage.
"""

import dataclasses
import json
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml
from trl import TrlParser

from . import __version__
from .imports import nearest

# A name within a mapping that holds a secret
SECRET = re.compile(r"(?:.*_)?(?:token|api_?key|secret|password|credential)", re.IGNORECASE)
# Secrets, and what is about one run rather than about how to run it
NOT_OF_THE_RECIPE = {"hub_token", "push_to_hub_token", "dry_run", "resume_from_checkpoint", "config"}


class RecipeParser(TrlParser):
    """
    [`~trl.TrlParser`] that names the nearest known setting, and raises [`ValueError`] instead of printing usage.

    Args:
        dataclass_types (iterable of dataclasses):
            The settings. Their field names are the keys of a recipe.
        any_device (`bool`, *optional*, defaults to `False`):
            Whether what is run works without an accelerator whatever the recipe says, as a dry run does.
        **kwargs:
            Arguments of [`argparse.ArgumentParser`].
    """

    def __init__(self, dataclass_types: Iterable[type], any_device: bool = False, **kwargs):
        self.any_device = any_device
        # Abbreviations would let a misspelt flag pass as another setting
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.given: set[str] = set()  # names that the recipe or the command line sets

    def error(self, message: str):
        raise ValueError(message)

    def parse_run(self, args: list[str]) -> tuple:
        """
        Parses `--config recipe.yaml --setting value ...`; the command line wins.

        Args:
            args (`list[str]`):
                The command line, without the program.

        Returns:
            `tuple`: one instance of each dataclass.
        """
        args = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        if args.count("--config") > 1:
            raise ValueError("`--config` is given twice. One recipe is one run: put the settings into one file.")
        if "--config" in args:
            position = args.index("--config") + 1
            if position == len(args):
                raise ValueError("`--config` needs the path of a recipe.")
            self._check_recipe(Path(args[position]))
        elif not {"-h", "--help"} & {*args}:
            self._check_without_recipe(args)
        flags = {arg[2:].partition("=")[0].replace("-", "_") for arg in args if arg.startswith("--")}
        self.given |= flags | {flag.removeprefix("no_") for flag in flags}
        # A dry run needs no GPU, and a recipe for one says nothing of `use_cpu`
        any_device = self.any_device or "dry_run" in self.given
        if any_device and "use_cpu" not in self.given and not _has_accelerator():
            args = [*args, "--use_cpu", "true"]
        *parsed, unknown = self.parse_args_and_config(args, return_remaining_strings=True)
        if unknown:
            flag = next((arg for arg in unknown if arg.startswith("--")), None)
            if flag is None:
                raise ValueError(f"{unknown[0]!r} stands alone on the command line. Write `--setting value`.")
            name = flag.removeprefix("--").split("=")[0]
            raise ValueError(f"unknown setting `--{name}`.{nearest(name.replace('-', '_'), self.settings)}")
        return tuple(parsed)

    @property
    def settings(self) -> set[str]:
        """Every key that a recipe may have."""
        return {action.dest for action in self._actions} - {"help"}

    def _check_without_recipe(self, args: list[str]) -> None:
        recipe = next((arg for arg in args if arg.endswith((".yaml", ".yml"))), None)
        if recipe is not None:
            raise ValueError(f"'{recipe}' stands alone on the command line. Write `--config {recipe}`.")
        if not args:
            raise ValueError("nothing to run: give a recipe, `--config recipe.yaml`. `--help` lists the settings.")

    def _check_recipe(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"`--config` is '{path}', and there is no such file.{_nearest_recipe(path)}")
        try:
            root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path} must be a list of `setting: value` lines.")
        lines: dict[str, int] = {}
        for key, value in root.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"{path} sets `{name}` twice, in lines {lines[name]} and {line}. Remove one.")
            lines[name] = line
            self.given.add(name)
            if name not in self.settings | {"env"}:
                raise ValueError(f"unknown setting `{name}` in {path}, line {line}.{nearest(name, self.settings)}")
            # YAML 1.1 reads a bare no or off as false, and these settings are words
            if name.endswith("_strategy") and value.tag == "tag:yaml.org,2002:bool":
                raise ValueError(f"`{name}` in {path}, line {line}: write '{value.value}' in quotes.")


def recipe_text(arguments: Iterable[Any], given: set[str], module: str) -> str:
    """
    A recipe that says the same as a recipe and its command line together.

    Args:
        arguments (iterable of dataclasses):
            The settings as they were parsed.
        given (`set[str]`):
            Names of those that were set.
        module (`str`):
            What runs it.

    Returns:
        `str`: YAML without secrets, and of an absolute path only the last part.
    """
    fields = {field.name: getattr(part, field.name) for part in arguments for field in dataclasses.fields(part)}
    settings = {
        name: portable(value) for name, value in fields.items() if name in given and name not in NOT_OF_THE_RECIPE
    }
    head = f"# accelerate launch -m {module} --config recipe.yaml\n# sage-trl {__version__}\n"
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=119)


def portable(value: Any) -> Any:
    """A setting as others may see it: no secrets in mappings, and of an absolute path only the last part."""
    if isinstance(value, dict):
        return {name: portable(item) for name, item in value.items() if not SECRET.fullmatch(str(name))}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (str, PurePath)):
        path, colon, name = str(value).partition(":")  # path/to/file.py:function
        return PurePath(path).name + colon + name if PurePath(path).is_absolute() else str(value)
    return value if isinstance(value, (bool, int, float, type(None))) else str(value)


def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


def parse_mapping(value: dict[str, Any] | str | None, setting: str) -> dict[str, Any]:
    """Reads a setting that is a mapping in YAML, and JSON on the command line."""
    if value is None:
        return {}
    value = parse_json(value, setting)
    if not isinstance(value, dict):
        raise ValueError(f"`{setting}` is {value!r}; it must be a mapping of names to values.")
    return value


def parse_json(value: Any, setting: str) -> Any:
    """Reads a setting that YAML gives as it is, and the command line as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"`{setting}` is {value!r}, which is no JSON: {error}") from error


def _nearest_recipe(path: Path) -> str:
    siblings = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    return nearest(path.name, siblings)
