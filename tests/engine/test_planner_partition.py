"""Llama 2 70B's matrices under zero.Init as one rank of sixteen: partition bytes against the plan.

A fake process group stands for the fifteen others: partitioning needs no answer from them. Few of the 80 layers are
built, because all are alike.
"""

from __future__ import annotations

import pytest

from tests.engine import forked_ranks

pytestmark = pytest.mark.slow
WORLD, LAYERS = 16, 2


def partition_bytes(config: dict) -> dict[str, int]:
    """Build under zero.Init without initialising weights; bytes of this rank's partitions by parameter."""
    import os

    import torch
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ["WORLD_SIZE"] = str(WORLD)
    torch.distributed.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    import deepspeed
    from transformers import AutoModelForCausalLM, LlamaConfig

    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False, verbose=False)
    settings = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.bfloat16):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**config), dtype=torch.bfloat16)
    return {name: one.ds_tensor.untyped_storage().nbytes() for name, one in model.named_parameters()}


def test_partitions_of_one_rank_of_sixteen():
    from dataclasses import replace

    from zerotune.planner.gpu_terms import param_bytes
    from zerotune.planner.hardware import parse_gpus
    from zerotune.planner.model_rows import ROWS
    from zerotune.planner.models import find_model, read_model
    from zerotune.planner.run import Run, Zero

    config = {**ROWS["llama-2-70b"], "num_hidden_layers": LAYERS}
    held = forked_ranks.run(partition_bytes, 1, {key: config[key] for key in config if key != "model_type"})[0]
    few = Run(read_model(config), parse_gpus("2x8xA100-80GB"), Zero(stage=3))
    assert sum(held.values()) == param_bytes(few)
    layer = sum(size for name, size in held.items() if name.startswith("model.layers.0."))
    whole = param_bytes(replace(few, shapes=find_model("llama-2-70b")))
    assert whole == param_bytes(few) + (80 - LAYERS) * layer
