"""Tiny models of many kinds, random weights, on the golden model's tokenizer of 279 tokens."""

import torch
from support import GOLDEN
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SHAPE = {
    "vocab_size": 279,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.2,  # far enough from uniform for a wrong head to show
}


def without(*names: str) -> dict:
    """The shape, without what a type does not know."""
    return {name: value for name, value in SHAPE.items() if name not in names}


EXPERTS = {"num_experts_per_tok": 2}
QWEN_MOE = EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
GPT2 = {"vocab_size": 279, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 1}
RECURRENT = without("max_position_embeddings") | {
    "num_hidden_layers": 3,  # two recurrent ones and one of attention
    "num_key_value_heads": 1,
    "attention_window_size": 64,
    "lru_width": 32,
    "logits_soft_cap": 1.0,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

# What a model is called here -> its type and what its configuration differs in
BASES = {
    "llama": ("llama", SHAPE),
    "qwen3": ("qwen3", SHAPE),
    "qwen2 tied": ("qwen2", SHAPE | {"tie_word_embeddings": True}),
    "qwen2 untied": ("qwen2", SHAPE | {"tie_word_embeddings": False}),
    "mistral sliding": ("mistral", SHAPE | {"sliding_window": 4}),
    "qwen2_moe": ("qwen2_moe", SHAPE | QWEN_MOE | {"router_aux_loss_coef": 0.0}),
    "qwen2_moe aux": ("qwen2_moe", SHAPE | QWEN_MOE | {"router_aux_loss_coef": 0.1}),
    "mixtral": ("mixtral", SHAPE | EXPERTS | {"num_local_experts": 4, "router_aux_loss_coef": 0.0}),
    "mixtral aux": ("mixtral", SHAPE | EXPERTS | {"num_local_experts": 4, "router_aux_loss_coef": 0.1}),
    # Caps low enough to change every probability
    "gemma2": ("gemma2", SHAPE | {"final_logit_softcapping": 1.0, "attn_logit_softcapping": 2.0, "sliding_window": 4}),
    "gemma3_text": ("gemma3_text", SHAPE | {"final_logit_softcapping": 1.0, "sliding_window": 4}),
    # Logits times 3, and divided by 0.3
    "cohere": ("cohere", without("head_dim") | {"logit_scale": 3.0}),
    "granite": ("granite", SHAPE | {"logits_scaling": 0.3}),
    # Its cap has another name, and TRL's beside it
    "recurrent_gemma": ("recurrent_gemma", RECURRENT | {"final_logit_softcapping": 1.0}),
    # One matrix for query, key and value
    "phi3": ("phi3", without("head_dim")),
    "gpt_neox": ("gpt_neox", without("head_dim", "num_key_value_heads")),
    "qwen3_moe": ("qwen3_moe", SHAPE | QWEN_MOE | {"router_aux_loss_coef": 0.0}),
    # Its configuration has no padding token. TRL leaves dropout on in the policy, which its own logits cannot repeat
    "gpt2": ("gpt2", GPT2 | {"bos_token_id": 1, "initializer_range": 0.2} | NO_DROPOUT),
}


def make_base(kind: str) -> PreTrainedModel:
    model_type, settings = BASES[kind]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**settings), attn_implementation="eager")


def make_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(GOLDEN / "model")
