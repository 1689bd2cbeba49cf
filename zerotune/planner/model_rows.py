"""Models by name: the fields of their config.json that a plan needs, as published on the Hugging Face hub.

tests/unit/planner/test_models.py holds the parameter counts against those the hub shows.
"""

from __future__ import annotations


def _rows(model_type: str, columns: str, table: str, **common) -> dict[str, dict]:
    """One config per line of `table`: the name, then one number per column; 'tied' and 'untied' may follow."""
    names = columns.split()
    found = {}
    for line in table.strip().splitlines():
        name, *cells = line.split()
        config = {"model_type": model_type, **common}
        config |= {column: int(cell) for column, cell in zip(names, cells, strict=False)}
        if cells[-1] in ("tied", "untied"):
            config["tie_word_embeddings"] = cells[-1] == "tied"
        found[name] = config
    return found


LLAMA = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "max_position_embeddings"
)
GPT2 = "n_embd n_layer n_head vocab_size n_positions"
T5 = "d_model d_kv d_ff num_layers num_heads vocab_size"
MOE = " num_experts num_experts_per_tok moe_intermediate_size"
ROWS: dict[str, dict] = {
    **_rows(
        "llama",
        LLAMA,
        """
        tinyllama-1.1b 2048 5632 22 32 4 32000 2048
        llama-2-7b 4096 11008 32 32 32 32000 4096
        llama-2-13b 5120 13824 40 40 40 32000 4096
        llama-2-70b 8192 28672 80 64 8 32000 4096
        llama-3-8b 4096 14336 32 32 8 128256 8192
        llama-3-70b 8192 28672 80 64 8 128256 8192
        llama-3.1-8b 4096 14336 32 32 8 128256 131072
        llama-3.1-70b 8192 28672 80 64 8 128256 131072
        llama-3.1-405b 16384 53248 126 128 8 128256 131072
        llama-3.2-1b 2048 8192 16 32 8 128256 131072 tied
        llama-3.2-3b 3072 8192 28 24 8 128256 131072 tied
        smollm2-135m 576 1536 30 9 3 49152 8192 tied
        """,
    ),
    **_rows("mistral", LLAMA, "mistral-7b 4096 14336 32 32 8 32000 32768"),
    **_rows(
        "qwen2",
        LLAMA,
        """
        qwen2.5-0.5b 896 4864 24 14 2 151936 32768 tied
        qwen2.5-1.5b 1536 8960 28 12 2 151936 131072 tied
        qwen2.5-3b 2048 11008 36 16 2 151936 32768 tied
        qwen2.5-7b 3584 18944 28 28 4 152064 131072
        qwen2.5-14b 5120 13824 48 40 8 152064 131072
        qwen2.5-32b 5120 27648 64 40 8 152064 131072
        qwen2.5-72b 8192 29568 80 64 8 152064 131072
        """,
    ),
    **_rows(
        "qwen3",
        LLAMA,
        """
        qwen3-0.6b 1024 3072 28 16 8 151936 40960 tied
        qwen3-1.7b 2048 6144 28 16 8 151936 40960 tied
        qwen3-4b 2560 9728 36 32 8 151936 40960 tied
        qwen3-8b 4096 12288 36 32 8 151936 40960
        qwen3-14b 5120 17408 40 40 8 151936 40960
        qwen3-32b 5120 25600 64 64 8 151936 40960
        """,
    ),
    **_rows(
        "gemma",
        LLAMA + " head_dim",
        """
        gemma-2b 2048 16384 18 8 1 256000 8192 256
        gemma-7b 3072 24576 28 16 16 256000 8192 256
        """,
    ),
    **_rows(
        "gemma2",
        LLAMA + " head_dim",
        """
        gemma-2-2b 2304 9216 26 8 4 256000 8192 256
        gemma-2-9b 3584 14336 42 16 8 256000 8192 256
        gemma-2-27b 4608 36864 46 32 16 256000 8192 128
        """,
    ),
    **_rows("gemma3_text", LLAMA + " head_dim", "gemma-3-1b 1152 6912 26 4 1 262144 32768 256"),
    **_rows("phi", LLAMA, "phi-2 2560 10240 32 32 32 51200 2048"),
    **_rows(
        "phi3",
        LLAMA,
        """
        phi-3-mini 3072 8192 32 32 32 32064 4096
        phi-3-medium 5120 17920 40 40 10 32064 4096
        phi-4 5120 17920 40 40 10 100352 16384
        """,
    ),
    **_rows(
        "gpt2",
        GPT2,
        """
        gpt2 768 12 12 50257 1024
        gpt2-medium 1024 24 16 50257 1024
        gpt2-large 1280 36 20 50257 1024
        gpt2-xl 1600 48 25 50257 1024
        """,
    ),
    **_rows(
        "gpt_neox",
        LLAMA,
        """
        gpt-neox-20b 6144 24576 44 64 64 50432 2048
        pythia-1b 2048 8192 16 8 8 50304 2048
        pythia-6.9b 4096 16384 32 32 32 50432 2048
        pythia-12b 5120 20480 36 40 40 50688 2048
        """,
    ),
    **_rows(
        "mixtral",
        LLAMA,
        """
        mixtral-8x7b 4096 14336 32 32 8 32000 32768
        mixtral-8x22b 6144 16384 56 48 8 32000 65536
        """,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    **_rows(
        "qwen2_moe",
        LLAMA + MOE + " shared_expert_intermediate_size",
        """
        qwen1.5-moe-a2.7b 2048 5632 24 16 16 151936 8192 60 4 1408 5632
        qwen2-57b-a14b 3584 18944 28 28 4 151936 131072 64 8 2560 20480
        """,
    ),
    **_rows(
        "qwen3_moe",
        LLAMA + MOE + " head_dim",
        """
        qwen3-30b-a3b 2048 6144 48 32 4 151936 40960 128 8 768 128
        qwen3-235b-a22b 4096 12288 94 64 4 151936 40960 128 8 1536 128
        """,
    ),
    **_rows(
        "t5",
        T5,
        """
        t5-small 512 64 2048 6 8 32128
        t5-base 768 64 3072 12 12 32128
        t5-large 1024 64 4096 24 16 32128
        t5-3b 1024 128 16384 24 32 32128
        t5-11b 1024 128 65536 24 128 32128
        """,
    ),
    **_rows(
        "t5",
        T5,
        """
        flan-t5-xl 2048 64 5120 24 32 32128 untied
        flan-t5-xxl 4096 64 10240 24 64 32128 untied
        """,
        feed_forward_proj="gated-gelu",
    ),
}
