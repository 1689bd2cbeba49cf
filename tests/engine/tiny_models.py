"""Tiny models with random weights, one for each architecture that the planner knows, as save_pretrained writes them."""

from __future__ import annotations

from pathlib import Path

SIZES = {
    "vocab_size": 101,
    "hidden_size": 66,  # not divisible by 4 ranks: the last partitions are padded
    "intermediate_size": 90,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
MOE = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 30, "num_hidden_layers": 2}
T5 = {"vocab_size": 101, "d_model": 66, "d_kv": 8, "d_ff": 90, "num_layers": 2, "num_heads": 3}
VARIANTS = {
    "llama": SIZES,
    "llama tied": {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {**SIZES, "head_dim": 24},
    "qwen2": {**SIZES, "tie_word_embeddings": True},
    "qwen3": SIZES,
    "gemma": SIZES,
    "gemma2": {**SIZES, "head_dim": 32},
    "gemma3_text": SIZES,
    "phi": {**SIZES, "qk_layernorm": True, "num_key_value_heads": 3},
    "phi3": {**SIZES, "pad_token_id": 0},
    "gpt2": {"vocab_size": 101, "n_embd": 66, "n_layer": 2, "n_head": 3},
    "gpt_neox": {key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
    "mixtral": {**SIZES, "num_local_experts": 3},
    "qwen2_moe": {**SIZES, **MOE, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**SIZES, **MOE, "mlp_only_layers": [0]},
    "t5": T5,
    "t5 untied": {**T5, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


def model_class(model_type: str):
    """The Auto class that has models of this type."""
    import transformers

    return transformers.AutoModelForSeq2SeqLM if model_type == "t5" else transformers.AutoModelForCausalLM


def save(variant: str, folder: Path, dtype: str = "bfloat16", **changes) -> Path:
    """Write the model of a variant, its weights drawn anew, norms and biases too."""
    import torch
    import transformers

    model_type = variant.split()[0]
    config = transformers.AutoConfig.for_model(model_type, **{**VARIANTS[variant], **changes})
    torch.manual_seed(len(variant))
    made = model_class(model_type).from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for param in made.parameters():
            param.normal_()
    made.save_pretrained(folder, max_shard_size="60KB")
    return folder
