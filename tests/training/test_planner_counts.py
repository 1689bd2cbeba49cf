"""The planner's shapes against the real models, built without storage: names, order and shapes."""

from __future__ import annotations

import pytest

from zerotune.planner.model_rows import ROWS
from zerotune.planner.models import from_meta_device, read_model, with_lora

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
VARIANTS = {
    "llama": ("llama", SMALL),
    "llama with biases": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {**SMALL, "head_dim": 24}),
    "qwen2": ("qwen2", SMALL),
    "qwen3": ("qwen3", SMALL),
    "gemma": ("gemma", SMALL),
    "gemma2": ("gemma2", {**SMALL, "head_dim": 32}),
    "gemma3_text": ("gemma3_text", SMALL),
    "phi": ("phi", SMALL),
    "phi with norms": ("phi", {**SMALL, "qk_layernorm": True}),
    "phi3": ("phi3", {**SMALL, "pad_token_id": 0}),
    "gpt2": ("gpt2", {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "gpt2 untied": (
        "gpt2",
        {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 80, "tie_word_embeddings": False},
    ),
    "gpt_neox": ("gpt_neox", {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}),
    "mixtral": ("mixtral", {**SMALL, "num_local_experts": 4}),
    "qwen2_moe": ("qwen2_moe", {**SMALL, **MOE, "shared_expert_intermediate_size": 48}),
    "qwen2_moe sparse": (
        "qwen2_moe",
        {**SMALL, **MOE, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": ("qwen3_moe", {**SMALL, **MOE, "mlp_only_layers": [0]}),
    "t5": ("t5", {"vocab_size": 128, "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_heads": 4}),
    "t5 gated": (
        "t5",
        {
            **{"vocab_size": 128, "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 1, "num_heads": 4},
            **{"num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        },
    ),
}


def on_meta_device(model_type: str, config: dict):
    made = transformers.AutoConfig.for_model(model_type, **config)
    kind = transformers.AutoModelForSeq2SeqLM if model_type == "t5" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(made)


def listed(model) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(param.shape)) for name, param in model.named_parameters()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_small_models(variant):
    model_type, config = VARIANTS[variant]
    model = on_meta_device(model_type, config)
    shapes = read_model({"model_type": model_type, **config})
    assert [(param.name, param.shape) for param in shapes.params()] == listed(model)
    assert shapes.num_params == sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize("variant", ["llama with biases", "gemma2", "gpt2", "gpt_neox", "phi with norms", "qwen3"])
def test_weight_decay_as_the_trainer_divides_it(variant):
    from transformers.trainer_pt_utils import get_parameter_names

    model_type, config = VARIANTS[variant]
    model = on_meta_device(model_type, config)
    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decaying = set(get_parameter_names(model, [torch.nn.LayerNorm], patterns))
    shapes = read_model({"model_type": model_type, **config})
    assert {param.name for param in shapes.params() if param.decays} == decaying & {name for name, _ in listed(model)}


@pytest.mark.parametrize("name", ["llama-2-70b", "qwen3-30b-a3b", "gemma-2-27b", "gpt-neox-20b", "t5-3b", "phi-2"])
def test_real_sizes(name):
    config = ROWS[name]
    model = on_meta_device(config["model_type"], {key: config[key] for key in config if key != "model_type"})
    shapes = read_model(config, name)
    assert [(param.name, param.shape) for param in shapes.params()] == listed(model)


def test_a_type_without_a_table_is_built_on_the_meta_device():
    config = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96}
    shapes = from_meta_device({"model_type": "opt", **config, "word_embed_proj_dim": 64}, "opt")
    model = on_meta_device("opt", {**config, "word_embed_proj_dim": 64})
    assert [(param.name, param.shape) for param in shapes.params()] == listed(model)
    assert shapes.ffn == 96


def test_adapters_are_those_of_peft():
    peft = pytest.importorskip("peft")
    config = VARIANTS["llama"][1]
    model = peft.get_peft_model(
        on_meta_device("llama", config), peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    shapes = with_lora(read_model({"model_type": "llama", **config}), 8)
    trainable = [param for param in model.parameters() if param.requires_grad]
    assert shapes.num_trainable == sum(param.numel() for param in trainable) > 0
    assert shapes.num_params == sum(param.numel() for param in model.parameters())


def test_the_meta_device_is_left_alone_by_zero_3():
    """In a job of ZeRO-3 from_config would partition real storage: here it would ask for a process group."""
    from transformers.integrations import HfDeepSpeedConfig

    alive = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1})
    config = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "ffn_dim": 128, "vocab_size": 96}
    config |= {"num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 64}
    assert alive.is_zero3()
    assert from_meta_device(config, "opt").num_params > 96 * 64
