"""From what the user typed after --model to the model's shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from zerotune.ds_config.resolve import read_text
from zerotune.errors import UsageError, nearest

from .config_values import ConfigValues
from .decoders import VARIANTS, decoder
from .model_rows import ROWS
from .older_models import gpt2, gpt_neox, phi, t5
from .shapes import Block, Param, Shapes

BUILDERS = dict.fromkeys(VARIANTS, decoder) | {"gpt2": gpt2, "gpt_neox": gpt_neox, "phi": phi, "t5": t5}


def find_model(name: str) -> Shapes:
    """Shapes of a shipped row, of a config.json, or of a folder with one.

    Raises:
        UsageError: no such row or file, no JSON, fields missing or absurd.
    """
    found, where = find_config(name)
    return read_model(found, where)


def find_config(name: str) -> tuple[dict, str]:
    """The config.json's dict that a name stands for, and what to call it in messages. Raises as find_model does."""
    row = ROWS.get(name.lower()) or ROWS.get(_plain(name))
    path = Path(name).expanduser()
    if row is not None and not path.exists():
        return row, name
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        close = nearest(_plain(name), ROWS) or list(ROWS)[:3]
        raise UsageError(
            f"--model {name}: neither a known model nor a config.json or a folder with one; "
            f"nearest known: {', '.join(close)}"
        )
    try:
        config = json.loads(read_text(path, str(path)))
    except ValueError as problem:
        raise UsageError(f"--model: {path} is no JSON: {problem}") from None
    if not isinstance(config, dict):
        raise UsageError(f"--model: {path} holds no object, so it is no config.json of a model")
    return config, str(path)


def _plain(name: str) -> str:
    """meta-llama/Llama-2-70b-hf and Llama-2-70B mean the same row."""
    plain = name.lower().rstrip("/").rsplit("/", 1)[-1]
    for ending in ("-hf", "-v0.1", "-base", "-pt"):
        plain = plain.removesuffix(ending)
    return plain.removeprefix("meta-")


def read_model(config: dict, name: str = "the model") -> Shapes:
    """Shapes from a config.json's dict.

    Raises:
        UsageError: model_type missing, fields missing or absurd.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(f"{name}: no model_type in it, so it is no config.json that transformers wrote")
    builder = BUILDERS.get(model_type)
    return builder(model_type, ConfigValues(config, name)) if builder else from_meta_device(config, name)


def from_meta_device(config: dict, name: str) -> Shapes:
    """Shapes of an architecture that this package has no table for: build it without storage (imports torch).

    Raises:
        UsageError: transformers isn't there, or doesn't know the type either.
    """
    model_type = config["model_type"]
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise UsageError(
            f"{name}: the planner knows no {model_type!r} ({', '.join(BUILDERS)}), and to build it takes transformers"
        ) from None
    try:
        made = AutoConfig.for_model(**config)
        # Not by from_config: in a job of ZeRO-3 that would partition real storage.
        with torch.device("meta"):
            model = AutoModelForCausalLM._model_mapping[type(made)](made)
    except Exception as problem:  # the model's own code runs here
        close = nearest(model_type, BUILDERS)
        hint = f"; nearest known: {', '.join(close)}" if close else ""
        first = (str(problem).splitlines() or ["?"])[0]
        raise UsageError(f"{name}: model_type {model_type!r} can't be built: {first}{hint}") from None
    params = tuple(_meta_params(model, torch.nn.LayerNorm))
    return _guessed(made.get_text_config().to_dict(), model_type, name, params)


def _meta_params(model, layer_norm_class):
    owners = {id(one): module for module in model.modules() for one in module.parameters(recurse=False)}
    for name, one in model.named_parameters():
        yield Param(name, tuple(one.shape), isinstance(owners[id(one)], layer_norm_class))


def _guessed(config: dict, model_type: str, name: str, params: tuple[Param, ...]) -> Shapes:
    """Exact parameters; widths under the names that most configs use."""
    values = ConfigValues(config, name)
    hidden = values.size("hidden_size", "n_embd", "d_model")
    heads = values.size("num_attention_heads", "n_head", "num_heads", default=max(1, hidden // 64))
    return Shapes(
        name=name,
        model_type=model_type,
        blocks=(Block("", params),),
        hidden=hidden,
        layers=values.size("num_hidden_layers", "n_layer", "num_layers"),
        heads=heads,
        kv_heads=values.size("num_key_value_heads", default=heads),
        head_dim=values.size("head_dim", default=max(1, hidden // heads)),
        ffn=values.size("intermediate_size", "n_inner", "d_ff", "ffn_dim", default=4 * hidden),
        vocab=values.size("vocab_size"),
        max_positions=values.size("max_position_embeddings", "n_positions", "max_seq_len", default=2**31 - 1 >> 6),
        tied=bool(config.get("tie_word_embeddings")),
    )


def with_lora(shapes: Shapes, rank: int) -> Shapes:
    """The model frozen, with adapters A [r, in] and B [out, r] on every matrix of the repeated layers.

    peft's target "all-linear" leaves out the output layer; experts' fused matrices aren't nn.Linear and stay bare.
    """
    return replace(shapes, blocks=tuple(_adapted(block, rank) for block in shapes.blocks))


def _adapted(block: Block, rank: int) -> Block:
    frozen = [replace(param, trainable=False) for param in block.params]
    repeated = "{}" in block.prefix
    adapters = [
        adapter
        for param in block.params
        if repeated and len(param.shape) == 2 and "relative_attention" not in param.name
        for adapter in (
            Param(param.name.replace("weight", "lora_A.default.weight"), (rank, param.shape[1])),
            Param(param.name.replace("weight", "lora_B.default.weight"), (param.shape[0], rank)),
        )
    ]
    return replace(block, params=(*frozen, *adapters))
