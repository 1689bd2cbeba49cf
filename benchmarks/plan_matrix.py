"""The runs of plan_vs_measured.py: models, templates, lengths, batches. Every third case of a list is held out."""

from __future__ import annotations

import json
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
MODELS = {  # hidden, ffn, layers, heads, key-value heads, vocabulary
    "0.1B": (768, 2048, 12, 12, 12, 32000),
    "0.3B": (1024, 2816, 24, 16, 16, 32000),
    "0.5B": (1280, 3456, 20, 20, 4, 50304),
    "1.1B": (2048, 5632, 22, 32, 4, 32000),
    "3B": (3072, 8192, 26, 24, 8, 32000),
    "8B": (4096, 14336, 32, 32, 8, 128256),
    "tiny": (64, 128, 2, 2, 2, 512),
}
# model, template, sequence, micro batch, recompute, Liger
ONE_GPU = (
    ("0.1B", "stage0", 1024, 8, False, False),
    ("0.1B", "stage1", 512, 8, False, False),
    ("0.1B", "stage2", 2048, 4, False, False),
    ("0.1B", "stage3", 4096, 2, False, True),
    ("0.1B", "stage3", 16384, 1, True, True),
    ("0.1B", "stage2", 16384, 1, False, False),
    ("0.5B", "stage0", 2048, 2, True, False),
    ("0.5B", "stage1", 2048, 4, False, True),
    ("0.5B", "stage2", 1024, 8, True, True),
    ("0.5B", "stage3", 1024, 4, False, False),
    ("0.5B", "stage3", 8192, 1, True, False),
    ("0.5B", "stage2", 8192, 1, False, True),
    ("1.1B", "stage0", 512, 4, False, False),
    ("1.1B", "stage1", 2048, 2, True, False),
    ("1.1B", "stage1", 1024, 8, False, True),
    ("1.1B", "stage2", 2048, 4, False, False),
    ("1.1B", "stage2", 2048, 8, False, True),
    ("1.1B", "stage2", 4096, 2, True, False),
    ("1.1B", "stage2", 16384, 1, True, True),
    ("1.1B", "stage3", 512, 1, False, False),
    ("1.1B", "stage3", 2048, 8, True, True),
    ("1.1B", "stage3", 4096, 4, False, True),
    ("1.1B", "stage3", 8192, 1, False, False),
    ("3B", "stage1", 512, 1, False, False),
    ("3B", "stage2", 2048, 2, True, False),
    ("3B", "stage2", 4096, 1, False, True),
    ("3B", "stage3", 1024, 4, False, False),
    ("3B", "stage3", 4096, 2, True, True),
    ("0.1B", "stage1_offload", 1024, 4, False, False),
    ("0.1B", "stage3_offload", 2048, 4, False, True),
    ("0.5B", "stage2_offload", 2048, 2, False, False),
    ("0.5B", "stage3_offload_optimizer", 1024, 4, True, False),
    ("0.5B", "stage3_offload", 512, 8, False, False),
    ("1.1B", "stage1_offload", 2048, 2, True, True),
    ("1.1B", "stage2_offload", 2048, 4, False, True),
    ("1.1B", "stage3_offload_optimizer", 2048, 4, False, False),
    ("1.1B", "stage3_offload", 2048, 8, True, True),
    ("1.1B", "stage3_offload", 4096, 1, False, False),
    ("3B", "stage2_offload", 2048, 1, True, True),
    ("3B", "stage3_offload_optimizer", 2048, 2, True, False),
    ("3B", "stage3_offload", 4096, 1, True, True),
)
TWO_GPUS = (
    ("0.5B", "stage1", 2048, 4, False, False),
    ("1.1B", "stage2", 2048, 8, False, True),
    ("1.1B", "stage3", 2048, 16, False, True),
    ("3B", "stage3", 4096, 2, False, True),
    ("8B", "stage3", 4096, 2, False, True),
    ("8B", "stage3", 4096, 4, True, True),
    ("8B", "stage2_offload", 2048, 1, True, True),
)
# On two CPU ranks in fp32: host memory only. The 0.3B ones are held out.
CPU = (
    ("tiny", "stage2", 128, 2, False, False),
    ("0.1B", "stage0", 256, 1, False, False),
    ("0.1B", "stage1", 256, 1, False, False),
    ("0.1B", "stage2", 512, 1, False, False),
    ("0.1B", "stage3", 256, 1, False, False),
    ("0.1B", "stage2", 512, 1, True, False),
    ("0.1B", "stage1_offload", 128, 2, False, False),
    ("0.1B", "stage2_offload", 256, 1, False, False),
    ("0.1B", "stage3_offload_optimizer", 256, 1, False, False),
    ("0.1B", "stage3_offload", 128, 2, True, False),
    ("0.3B", "stage3", 128, 1, False, False),
    ("0.3B", "stage1", 128, 1, False, False),
    ("0.3B", "stage2_offload", 128, 1, True, False),
)
QUICK = (("tiny", "stage0", 32, 2, False, False), ("tiny", "stage3_offload", 32, 2, True, False))
CASE = ("model", "template", "seq", "micro_batch", "recompute", "liger")


def config_of(template: str) -> dict:
    """A shipped template; stage0 is stage1 with nothing sharded."""
    config = json.loads((REPO / "ds_configs" / f"{template.replace('stage0', 'stage1')}.json").read_text())
    if template == "stage0":
        config["zero_optimization"] = {"stage": 0}
    return config


def shape_of(name: str, seq: int) -> dict:
    """The model's config.json."""
    hidden, ffn, layers, heads, kv_heads, vocab = MODELS[name]
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab}
    return {"model_type": "llama", **sizes, "max_position_embeddings": max(seq, 2048), "tie_word_embeddings": False}


def case_of(row: dict) -> tuple:
    """The case of a row of the file, with its number of ranks."""
    flags = (row["recompute"] == "True", row["liger"] == "True")
    return row["model"], row["template"], int(row["seq"]), int(row["micro_batch"]), *flags, int(row["ranks"])


def held_out(row: dict) -> bool:
    """Every third case of the GPUs' lists, and the larger model on CPU ranks."""
    *case, ranks = case_of(row)
    if row["device"] == "CPU":
        return row["model"] == "0.3B"
    return (ONE_GPU if ranks == 1 else TWO_GPUS).index(tuple(case)) % 3 == 2
