"""Models that aren't built like Llama: GPT-2, GPT-NeoX, Phi and T5. Names and order of transformers 5.24."""

from __future__ import annotations

from .config_values import ConfigValues
from .decoders import linear
from .shapes import Block, Param, Shapes


def layer_norm(name: str, hidden: int) -> list[Param]:
    """Weight and bias of an nn.LayerNorm."""
    return [Param(f"{name}.{part}", (hidden,), layer_norm=True) for part in ("weight", "bias")]


def conv1d(name: str, inner: int, out: int) -> list[Param]:
    """GPT-2's linear layer: weight [in, out] and bias."""
    return [Param(f"{name}.weight", (inner, out)), Param(f"{name}.bias", (out,))]


def gpt2(model_type: str, values: ConfigValues) -> Shapes:
    hidden, vocab = values.size("n_embd", "hidden_size"), values.size("vocab_size")
    layers, heads = values.size("n_layer", "num_hidden_layers"), values.size("n_head", "num_attention_heads")
    positions = values.size("n_positions", "max_position_embeddings", default=1024)
    ffn = values.size("n_inner", default=4 * hidden)
    tied = values.flag("tie_word_embeddings", True)
    layer = [
        *layer_norm("ln_1", hidden),
        *conv1d("attn.c_attn", hidden, 3 * hidden),
        *conv1d("attn.c_proj", hidden, hidden),
        *layer_norm("ln_2", hidden),
        *conv1d("mlp.c_fc", hidden, ffn),
        *conv1d("mlp.c_proj", ffn, hidden),
    ]
    blocks = [
        Block("transformer.", (Param("wte.weight", (vocab, hidden)), Param("wpe.weight", (positions, hidden)))),
        Block("transformer.h.{}.", tuple(layer), tuple(range(layers))),
        Block("transformer.", tuple(layer_norm("ln_f", hidden))),
    ]
    if not tied:
        blocks.append(Block("", (Param("lm_head.weight", (vocab, hidden)),)))
    return _old(values, model_type, blocks, hidden, layers, heads, heads, ffn, vocab, positions, tied)


def gpt_neox(model_type: str, values: ConfigValues) -> Shapes:
    hidden, vocab = values.size("hidden_size"), values.size("vocab_size")
    layers, heads = values.size("num_hidden_layers"), values.size("num_attention_heads")
    ffn, bias = values.size("intermediate_size"), values.flag("attention_bias", True)
    tied = values.flag("tie_word_embeddings", False)
    layer = [
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
        *linear("attention.query_key_value", 3 * hidden, hidden, bias),
        *linear("attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", ffn, hidden, True),
        *linear("mlp.dense_4h_to_h", hidden, ffn, True),
    ]
    blocks = [
        Block("gpt_neox.", (Param("embed_in.weight", (vocab, hidden)),)),
        Block("gpt_neox.layers.{}.", tuple(layer), tuple(range(layers))),
        Block("gpt_neox.", tuple(layer_norm("final_layer_norm", hidden))),
    ]
    if not tied:
        blocks.append(Block("", (Param("lm_head.weight", (vocab, hidden)),)))
    positions = values.size("max_position_embeddings", default=2048)
    parallel = values.flag("use_parallel_residual", True)
    return _old(values, model_type, blocks, hidden, layers, heads, heads, ffn, vocab, positions, tied, parallel)


def phi(model_type: str, values: ConfigValues) -> Shapes:
    hidden, vocab = values.size("hidden_size"), values.size("vocab_size")
    layers, (heads, kv_heads) = values.size("num_hidden_layers"), values.heads()
    head_dim, ffn = values.head_dim(hidden, heads), values.size("intermediate_size")
    tied = values.flag("tie_word_embeddings", False)
    layer = [
        *linear("self_attn.q_proj", heads * head_dim, hidden, True),
        *linear("self_attn.k_proj", kv_heads * head_dim, hidden, True),
        *linear("self_attn.v_proj", kv_heads * head_dim, hidden, True),
        *linear("self_attn.dense", hidden, heads * head_dim, True),
    ]
    if values.flag("qk_layernorm", False):
        layer += [*layer_norm("self_attn.q_layernorm", head_dim), *layer_norm("self_attn.k_layernorm", head_dim)]
    layer += [*linear("mlp.fc1", ffn, hidden, True), *linear("mlp.fc2", hidden, ffn, True)]
    layer += layer_norm("input_layernorm", hidden)
    head = [Param("lm_head.bias", (vocab,))] if tied else linear("lm_head", vocab, hidden, True)
    blocks = [
        Block("model.", (Param("embed_tokens.weight", (vocab, hidden)),)),
        Block("model.layers.{}.", tuple(layer), tuple(range(layers))),
        Block("model.", tuple(layer_norm("final_layernorm", hidden))),
        Block("", tuple(head)),
    ]
    positions = values.size("max_position_embeddings", default=2048)
    return _old(values, model_type, blocks, hidden, layers, heads, kv_heads, ffn, vocab, positions, tied, True, norms=1)


def t5(model_type: str, values: ConfigValues) -> Shapes:
    """Encoder and decoder. Relative positions have no limit of their own: max_positions is n_positions."""
    hidden, vocab, ffn = values.size("d_model"), values.size("vocab_size"), values.size("d_ff")
    heads, head_dim = values.size("num_heads"), values.size("d_kv")
    encoder = values.size("num_layers")
    decoder = values.size("num_decoder_layers", default=encoder)
    gated = str(values.config.get("feed_forward_proj", "relu")).startswith("gated-")
    buckets = values.size("relative_attention_num_buckets", default=32)
    blocks = [Block("", (Param("shared.weight", (vocab, hidden)),))]
    for side, layers, cross in (("encoder", encoder, False), ("decoder", decoder, True)):
        for indices in ((0,), tuple(range(1, layers))):
            layer = _t5_layer(hidden, heads, head_dim, ffn, gated, cross, buckets if indices == (0,) else 0)
            if indices:
                blocks.append(Block(side + ".block.{}.layer.", tuple(layer), indices))
        blocks.append(Block(f"{side}.", (Param("final_layer_norm.weight", (hidden,)),)))
    return Shapes(
        name=values.name,
        model_type=model_type,
        blocks=tuple(blocks),
        hidden=hidden,
        layers=encoder + decoder,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        max_positions=values.size("n_positions", default=512),
        tied=True,  # whatever the config says: configuration_t5.py:82
        gated=gated,
        encoder_layers=encoder,
    )


def _t5_layer(hidden, heads, head_dim, ffn, gated: bool, cross: bool, buckets: int) -> list[Param]:
    width, found = heads * head_dim, []
    for place, name in enumerate(("SelfAttention", "EncDecAttention")[: 2 if cross else 1]):
        for letter in "qkv":
            found += linear(f"{place}.{name}.{letter}", width, hidden)
        found += linear(f"{place}.{name}.o", hidden, width)
        if place == 0 and buckets:
            found.append(Param(f"0.{name}.relative_attention_bias.weight", (buckets, heads)))
        found.append(Param(f"{place}.layer_norm.weight", (hidden,)))
    place = 2 if cross else 1
    for name in ("wi_0", "wi_1") if gated else ("wi",):
        found += linear(f"{place}.DenseReluDense.{name}", ffn, hidden)
    found += linear(f"{place}.DenseReluDense.wo", hidden, ffn)
    found.append(Param(f"{place}.layer_norm.weight", (hidden,)))
    return found


def _old(
    values, model_type, blocks, hidden, layers, heads, kv_heads, ffn, vocab, positions, tied, parallel=False, norms=2
) -> Shapes:
    return Shapes(
        name=values.name,
        model_type=model_type,
        blocks=tuple(blocks),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=values.head_dim(hidden, heads),
        ffn=ffn,
        vocab=vocab,
        max_positions=positions,
        tied=tied,
        gated=False,
        parallel=parallel,
        norms=norms,
        rms=False,
    )
