"""Models built like Llama: one table of differences. Names and order are those of transformers 5.24."""

from __future__ import annotations

from dataclasses import dataclass

from .config_values import ConfigValues
from .shapes import Block, Param, Shapes


@dataclass(frozen=True)
class Variant:
    """How an architecture differs from Llama.

    qkv_bias, out_bias: "no", "yes", or the config's key that decides. norms: names in the module's order.
    head_dim: default when the config has none. experts: the config's key of their number.
    fused: one matrix each for queries, keys and values and for gate and up. router_last: it comes after the experts.
    """

    qkv_bias: str = "no"
    out_bias: str = "no"
    mlp_bias: str = "no"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: bool = False
    head_dim: int | None = None
    tied: bool = False
    experts: str | None = None
    num_experts: int = 0
    active: int = 0
    shared: bool = False
    fused: bool = False
    router_last: bool = False
    max_positions: int = 2048


FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
BOTH = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
VARIANTS = {
    "llama": Variant(**BOTH, mlp_bias="mlp_bias"),
    "mistral": Variant(max_positions=131072),
    "qwen2": Variant(qkv_bias="yes", max_positions=32768),
    "qwen3": Variant(**BOTH, head_norms=True, head_dim=128, max_positions=32768),
    "gemma": Variant(**BOTH, head_dim=256, tied=True, max_positions=8192),
    "gemma2": Variant(**BOTH, norms=FOUR_NORMS, head_dim=256, tied=True, max_positions=8192),
    "gemma3_text": Variant(**BOTH, norms=FOUR_NORMS, head_norms=True, head_dim=256, tied=True, max_positions=131072),
    "phi3": Variant(fused=True, max_positions=4096),
    "mixtral": Variant(experts="num_local_experts", num_experts=8, active=2, max_positions=131072),
    "qwen2_moe": Variant(
        qkv_bias="qkv_bias:true", experts="num_experts", num_experts=60, active=4, shared=True, max_positions=32768
    ),
    "qwen3_moe": Variant(
        **BOTH,
        head_norms=True,
        experts="num_experts",
        num_experts=128,
        active=8,
        router_last=True,
        max_positions=32768,
    ),
}


def decoder(model_type: str, values: ConfigValues) -> Shapes:
    """A decoder of RMS norms, rotary positions and a gated feed-forward.

    Raises:
        UsageError: fields missing or absurd.
    """
    variant = VARIANTS[model_type]
    hidden, vocab = values.size("hidden_size"), values.size("vocab_size")
    heads, kv_heads = values.heads()
    head_dim = values.head_dim(hidden, heads, variant.head_dim)
    layers = values.size("num_hidden_layers")
    tied = values.flag("tie_word_embeddings", variant.tied)
    attention = _attention(variant, values, hidden, heads * head_dim, kv_heads * head_dim, head_dim)
    norms = tuple(Param(f"{name}.weight", (hidden,)) for name in variant.norms)
    sparse = _sparse_indices(variant, values, layers)
    runs = _runs(layers, sparse)
    feed_forwards = {False: _dense, True: _experts}
    blocks = [Block("model.", (Param("embed_tokens.weight", (vocab, hidden)),))]
    blocks += [
        Block("model.layers.{}.", (*attention, *feed_forwards[is_sparse](variant, values, hidden), *norms), indices)
        for is_sparse, indices in runs
    ]
    blocks.append(Block("model.", (Param("norm.weight", (hidden,)),)))
    if not tied:
        blocks.append(Block("", (Param("lm_head.weight", (vocab, hidden)),)))
    moe = bool(sparse)
    return Shapes(
        name=values.name,
        model_type=model_type,
        blocks=tuple(blocks),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=values.size("intermediate_size"),
        vocab=vocab,
        max_positions=values.size("max_position_embeddings", default=variant.max_positions),
        tied=tied,
        norms=len(variant.norms),
        head_norms=2 if variant.head_norms else 0,
        experts=_num_experts(variant, values) if moe else 0,
        active_experts=values.size("num_experts_per_tok", default=variant.active) if moe else 0,
        moe_ffn=_expert_width(variant, values) if moe else 0,
        shared_ffn=values.size("shared_expert_intermediate_size", default=5632) if moe and variant.shared else 0,
        sparse_layers=len(sparse),
    )


def _bias(rule: str, values: ConfigValues) -> bool:
    if rule in ("yes", "no"):
        return rule == "yes"
    key, _, default = rule.partition(":")
    return values.flag(key, default == "true")


def linear(name: str, out: int, inner: int, bias: bool = False) -> list[Param]:
    """Weight [out, in] and bias [out] of an nn.Linear."""
    return [Param(f"{name}.weight", (out, inner))] + ([Param(f"{name}.bias", (out,))] if bias else [])


def _attention(variant, values, hidden: int, q_width: int, kv_width: int, head_dim: int) -> list[Param]:
    if variant.fused:
        return [
            *linear("self_attn.o_proj", hidden, q_width),
            *linear("self_attn.qkv_proj", q_width + 2 * kv_width, hidden),
        ]
    bias = _bias(variant.qkv_bias, values)
    found = [
        *linear("self_attn.q_proj", q_width, hidden, bias),
        *linear("self_attn.k_proj", kv_width, hidden, bias),
        *linear("self_attn.v_proj", kv_width, hidden, bias),
        *linear("self_attn.o_proj", hidden, q_width, _bias(variant.out_bias, values)),
    ]
    if variant.head_norms:
        found += [Param(f"self_attn.{name}_norm.weight", (head_dim,)) for name in "qk"]
    return found


def _dense(variant, values, hidden: int) -> list[Param]:
    ffn, bias = values.size("intermediate_size"), _bias(variant.mlp_bias, values)
    if variant.fused:
        return [*linear("mlp.gate_up_proj", 2 * ffn, hidden), *linear("mlp.down_proj", hidden, ffn)]
    return _gated("mlp", hidden, ffn, bias)


def _gated(prefix: str, hidden: int, ffn: int, bias: bool = False) -> list[Param]:
    return [
        *linear(f"{prefix}.gate_proj", ffn, hidden, bias),
        *linear(f"{prefix}.up_proj", ffn, hidden, bias),
        *linear(f"{prefix}.down_proj", hidden, ffn, bias),
    ]


def _num_experts(variant, values) -> int:
    return values.count(variant.experts, variant.num_experts)


def _expert_width(variant, values) -> int:
    if variant.experts == "num_local_experts":
        return values.size("intermediate_size")
    return values.size("moe_intermediate_size", default=768)


def _experts(variant, values, hidden: int) -> list[Param]:
    experts, ffn = _num_experts(variant, values), _expert_width(variant, values)
    router = Param("mlp.gate.weight", (experts, hidden))
    found = [
        Param("mlp.experts.gate_up_proj", (experts, 2 * ffn, hidden), expert=True),
        Param("mlp.experts.down_proj", (experts, hidden, ffn), expert=True),
    ]
    found.insert(2 if variant.router_last else 0, router)
    if variant.shared:
        width = values.size("shared_expert_intermediate_size", default=5632)
        found += [*_gated("mlp.shared_expert", hidden, width), *linear("mlp.shared_expert_gate", 1, hidden)]
    return found


def _sparse_indices(variant, values, layers: int) -> list[int]:
    """Layers with experts: all of them, unless the config says every n-th or names dense ones."""
    if variant.experts is None or not _num_experts(variant, values):
        return []
    if variant.experts == "num_local_experts":
        return list(range(layers))
    step, dense = values.size("decoder_sparse_step", default=1), values.listed("mlp_only_layers")
    return [layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0]


def _runs(layers: int, sparse: list[int]) -> list[tuple[bool, tuple[int, ...]]]:
    """Neighbouring layers of one kind together, so that the order stays that of the model."""
    runs: list[tuple[bool, list[int]]] = []
    chosen = set(sparse)
    for layer in range(layers):
        if not runs or runs[-1][0] != (layer in chosen):
            runs.append((layer in chosen, []))
        runs[-1][1].append(layer)
    return [(kind, tuple(indices)) for kind, indices in runs]
