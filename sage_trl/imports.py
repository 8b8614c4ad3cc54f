"""Objects that a recipe names: `package.module:Name` or `path/to/file.py:Name`."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the known name closest to `name`, or an empty string where none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def load_object(path: str, setting: str) -> Any:
    """
    Imports the object that an import path names.

    Args:
        path (`str`):
            `package.module:Name`, or `path/to/file.py:Name` relative to the working directory.
        setting (`str`):
            The setting the path was given to, for the error message.

    Returns:
        The object.

    Raises:
        [`ImportError`]: the module or file cannot be imported; the underlying error is part of the message.
        [`ValueError`]: the path has no `:Name`.
    """
    module_path, _, name = path.rpartition(":")
    if not module_path or not name:
        raise ValueError(
            f"`{setting}` is '{path}', which is not an import path. Write it as 'package.module:Name' or "
            "'path/to/file.py:Name'."
        )
    module = _load_file(module_path, setting) if module_path.endswith(".py") else _load_module(module_path, setting)
    if name not in vars(module):
        public = sorted(key for key in vars(module) if not key.startswith("_"))
        raise ImportError(f"`{setting}`: '{module_path}' has no '{name}'.{nearest(name, public)}")
    return vars(module)[name]


def _load_module(module_path: str, setting: str):
    # A module beside the recipe is importable as under `python -m`, which puts the working directory first.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    # Whatever the user's module raises while it runs is the news here, so every kind of error is carried on.
    try:
        return importlib.import_module(module_path)
    except Exception as error:
        raise ImportError(f"`{setting}`: cannot import '{module_path}': {type(error).__name__}: {error}") from error


def _load_file(module_path: str, setting: str):
    file = Path(module_path)
    if not file.is_file():
        raise ImportError(f"`{setting}`: there is no file '{module_path}' (relative to the working directory).")
    # Registered under a name made of the whole path: two files of one name never shadow each other, and classes of
    # the file can be pickled.
    name = "sage_trl_file_" + "_".join(file.resolve().with_suffix("").parts[1:]).replace("-", "_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportError(f"`{setting}`: cannot import '{module_path}': {type(error).__name__}: {error}") from error
    return module
