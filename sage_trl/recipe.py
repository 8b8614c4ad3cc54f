"""Reads a run from a YAML recipe and the command line. One message per mistake, before anything heavy loads.

The parser is TRL's. What this adds: a misspelt setting is answered with the nearest known one, wherever it stands; a
setting that stands twice in a recipe is refused; and mistakes are exceptions rather than a page of usage.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from trl import TrlParser

from .imports import nearest


class RecipeParser(TrlParser):
    """
    [`~trl.TrlParser`] that names the nearest known setting, and raises [`ValueError`] instead of printing usage.

    Args:
        dataclass_types (iterable of dataclasses):
            The settings. Their field names are the keys of a recipe.
        **kwargs:
            Arguments of [`argparse.ArgumentParser`].
    """

    def __init__(self, dataclass_types: Iterable[type], **kwargs):
        # Abbreviations would let a misspelt flag pass as another setting
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)

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
            if name not in self.settings | {"env"}:
                raise ValueError(f"unknown setting `{name}` in {path}, line {line}.{nearest(name, self.settings)}")
            # YAML 1.1 reads a bare no or off as false, and these settings are words
            if name.endswith("_strategy") and value.tag == "tag:yaml.org,2002:bool":
                raise ValueError(f"`{name}` in {path}, line {line}: write '{value.value}' in quotes.")


def parse_mapping(value: dict[str, Any] | str | None, setting: str) -> dict[str, Any]:
    """Reads a setting that is a mapping in YAML, and JSON on the command line."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"`{setting}` is {value!r}, which is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"`{setting}` is {value!r}; it must be a mapping of names to values.")
    return value


def _nearest_recipe(path: Path) -> str:
    siblings = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    return nearest(path.name, siblings)
