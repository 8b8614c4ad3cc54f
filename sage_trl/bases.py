"""What a model and its tokenizer must have to be trained, said before weights are loaded."""

import inspect
from typing import TYPE_CHECKING, Any

from .data.prompts import check_chat_template
from .loading import naming

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

    from .config import SAGEGRPOConfig

# What RecurrentGemma and xLSTM call the cap of their final logits. The head that TRL computes log-probabilities with
# reads `final_logit_softcapping` alone, so they would be those of another model.
OTHER_CAPS = ("logits_soft_cap", "output_logit_soft_cap")
# Types whose head is more than one matrix, of which TRL's takes the last alone
DEEP_HEADS = ("modernbert-decoder",)


def check_base(trainer_class: type, model: Any, args: "SAGEGRPOConfig", more: tuple, kwargs: dict[str, Any]) -> None:
    """
    Raises [`ValueError`] on a model or a tokenizer that a run would fail with later, or go on wrongly.

    Args:
        trainer_class (`type`):
            TRL's trainer, whose signature says which argument is which.
        model (`str` or `PreTrainedModel`):
            The model, as it was given to the trainer.
        args ([`SAGEGRPOConfig`]):
            The run's settings.
        more (`tuple`):
            The trainer's positional arguments after the first three.
        kwargs (`dict[str, Any]`):
            Its keyword arguments.
    """
    given = inspect.signature(trainer_class).bind_partial(model, None, args, *more, **kwargs).arguments
    loading = {
        "revision": (args.model_init_kwargs or {}).get("revision"),
        "trust_remote_code": args.trust_remote_code,
    }
    if isinstance(model, str):
        from transformers import AutoConfig

        with naming(model, "model"):
            config, name = AutoConfig.from_pretrained(model, **loading), model
    else:
        config, name = model.config, model.config._name_or_path
        check_reference_source(model, args, given.get("peft_config"))
    check_head(config.get_text_config(), name)
    tokenizer = given.get("processing_class")
    if tokenizer is None:
        from transformers import AutoProcessor

        with naming(name, "model"):
            tokenizer = AutoProcessor.from_pretrained(name, **loading)
    check_tokenizer(tokenizer, given.get("train_dataset"))


def check_reference_source(model: Any, args: "SAGEGRPOConfig", peft_config: Any) -> None:
    """Raises if the reference would be loaded from where the model came from, and that is nowhere."""
    from peft import PeftModel

    if args.beta == 0 or peft_config is not None or isinstance(model, PeftModel) or model.config._name_or_path:
        return
    raise ValueError(
        f"`model` is a {type(model).__name__} whose `config._name_or_path` is empty, and `beta` is {args.beta:g}: the "
        "reference is loaded from there. Save the model and give its folder as `model`, train an adapter "
        "(`peft_config`), or set `beta` to 0."
    )


def check_head(config: "PretrainedConfig", name: str) -> None:
    """Raises if TRL would compute log-probabilities from other logits than the model's own."""
    if config.model_type in DEEP_HEADS:
        raise ValueError(
            f"`model` is '{name}', a {config.model_type}, whose head is more than the one matrix that TRL computes "
            "log-probabilities with, so they would be wrong. Take a model with a plain head."
        )
    settings = config.to_dict()
    for other in OTHER_CAPS:
        cap = settings.get(other)
        if cap is not None and settings.get("final_logit_softcapping") != cap:
            raise ValueError(
                f"`{other}` of '{name}' is {cap:g}, a cap of the logits that TRL does not know by that name, so "
                f'log-probabilities would be wrong. Add "final_logit_softcapping": {cap:g} to its config.json.'
            )


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase | ProcessorMixin", train_dataset: Any = None) -> None:
    """
    Raises if a completion has no end, or prompts are messages and there is no chat template to write them with. A
    missing padding token is none of this: TRL takes the end token, which stays part of a completion.
    """
    from transformers import ProcessorMixin

    own = tokenizer.tokenizer if isinstance(tokenizer, ProcessorMixin) else tokenizer
    if own.eos_token_id is None:
        raise ValueError(
            f"`eos_token` of the tokenizer of '{own.name_or_path}' is None, so no completion could end. Set it in "
            "the model's tokenizer_config.json, or on the tokenizer that you give as `processing_class`."
        )
    first = {} if train_dataset is None else next(iter(train_dataset), {})
    if isinstance(first.get("prompt"), list):
        check_chat_template(tokenizer.chat_template, own.name_or_path)
