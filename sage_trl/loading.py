"""Loads models to look at and to evaluate: whole ones and adapters, by Hub id or folder."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def split_adapter(name: str) -> tuple[str, str | None]:
    """The whole model behind a name, and the adapter on it: the name itself, where that is one."""
    from peft import PeftConfig
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(name) is None:
        return name, None
    return PeftConfig.from_pretrained(name).base_model_name_or_path, name


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

    try:
        return AutoModelForCausalLM.from_pretrained(name, **kwargs).eval()
    except OSError as error:  # which seldom says what it was looking for
        raise OSError(f"`{setting}` is '{name}', which cannot be loaded: {error}") from error
