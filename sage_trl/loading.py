"""Loads models to look at and to evaluate: whole ones and adapters, by Hub id or folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@contextmanager
def naming(name: str, setting: str) -> Iterator[None]:
    """Adds to an error of loading what was looked for, which it seldom says."""
    try:
        yield
    except OSError as error:
        raise OSError(f"`{setting}` is '{name}', which cannot be loaded: {error}") from error


def split_adapter(name: str) -> tuple[str, str | None]:
    """The whole model behind a name, and the adapter on it: the name itself, where that is one."""
    from peft import PeftConfig
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(name) is None:
        return name, None
    return PeftConfig.from_pretrained(name).base_model_name_or_path, name


def check_adapter(name: str) -> None:
    """Raises [`ValueError`] unless there is an adapter of this name."""
    from transformers.utils import find_adapter_config_file

    with naming(name, "adapter"):
        found = find_adapter_config_file(name)
    if found is None:
        raise ValueError(f"`adapter` is '{name}', which has no adapter_config.json: it is no adapter.")


def load_model(name: str, setting: str, **kwargs) -> "PreTrainedModel":
    """
    Loads a whole model.

    Args:
        name (`str`):
            Hub id or folder.
        setting (`str`):
            The setting that named it, for the error message.
        **kwargs:
            Arguments of `from_pretrained`.

    Returns:
        `PreTrainedModel`: for inference.
    """
    from transformers import AutoModelForCausalLM

    with naming(name, setting):
        return AutoModelForCausalLM.from_pretrained(name, **kwargs).eval()


def load_tokenizer(base: str, adapter: str | None, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """The adapter's own where it has one, since its chat template and end token may be others than the base's."""
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    own = adapter is not None and cached_file(
        adapter, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False
    )
    with naming(base, "model"):
        return AutoTokenizer.from_pretrained(adapter if own else base, trust_remote_code=trust_remote_code)
