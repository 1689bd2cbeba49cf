"""The exporter against DeepSpeed's own zero_to_fp32, on checkpoints that a real engine wrote on 2 CPU ranks.

Run as a script under the deepspeed launcher this file writes the checkpoints (`write_all`); pytest starts
that job once and compares. The cases cover stages 1, 2, 3, both precisions, both offloads, frozen and tied
weights, two parameter groups, odd sizes (padding), small sub-groups and persistent parameters.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RANKS = 2
JOB_SECONDS = 400
CASES = {
    # name: (stage, precision, offload, frozen, tied, extra zero_optimization keys)
    "s1_bf16": (1, "bf16", "none", False, True, {}),
    "s1_bf16_frozen": (1, "bf16", "none", True, False, {}),
    "s1_fp32_offload": (1, "fp32", "optimizer", False, False, {}),
    "s2_bf16_frozen": (2, "bf16", "none", True, True, {}),
    "s2_fp32": (2, "fp32", "none", False, False, {}),
    "s2_bf16_offload": (2, "bf16", "optimizer", False, True, {"round_robin_gradients": True}),
    "s3_bf16_frozen": (3, "bf16", "none", True, True, {"stage3_param_persistence_threshold": 64}),
    "s3_bf16_subgroups": (3, "bf16", "none", False, False, {"sub_group_size": 3000}),
    "s3_fp32": (3, "fp32", "none", False, True, {"stage3_param_persistence_threshold": 0}),
    "s3_bf16_offload": (3, "bf16", "both", True, False, {"sub_group_size": 3000}),
    "s3_fp32_offload": (3, "fp32", "both", False, True, {}),
}


def engine_config(stage, precision, offload, extra):
    zero = {"stage": stage, **extra}
    if offload in ("optimizer", "both"):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "both":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "bf16": {"enabled": precision == "bf16"},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }


def tiny_llama(tied, layers=2):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=97,
        hidden_size=36,
        intermediate_size=55,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=6,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )


def parameter_groups(model):
    """Two groups, as the HF Trainer makes them: with and without weight decay."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in trained if "norm" not in name], "weight_decay": 0.1},
        {"params": [p for name, p in trained if "norm" in name], "weight_decay": 0.0},
    ]


def train_and_save(model, config, folder, tag, vocabulary):
    import deepspeed
    import torch

    optimizer = torch.optim.AdamW(parameter_groups(model), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(2):
        tokens = torch.randint(0, vocabulary, (1, 16))
        output = engine(input_ids=tokens, labels=tokens)
        engine.backward(output.loss)
        engine.step()
    engine.save_checkpoint(str(folder), tag=tag)
    engine.destroy()


def write_case(name, root):
    import deepspeed
    import torch
    from transformers import LlamaForCausalLM

    stage, precision, offload, frozen, tied, extra = CASES[name]
    config = engine_config(stage, precision, offload, extra)
    architecture = tiny_llama(tied)
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = LlamaForCausalLM(architecture)
    if frozen:
        for parameter in model.model.layers[0].mlp.parameters():
            parameter.requires_grad_(False)
    folder = root / name / "checkpoint-2"
    train_and_save(model, config, folder, "global_step2", architecture.vocab_size)
    if int(os.environ["RANK"]) == 0:
        architecture.architectures = ["LlamaForCausalLM"]
        architecture.save_pretrained(folder)


def module_with_buffers():
    """A model of no library: persistent buffers of two types and a parameter shared by two layers."""
    import torch

    class Output:
        def __init__(self, loss):
            self.loss = loss

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(7, 7)
            self.norm = torch.nn.LayerNorm(7)
            self.second = torch.nn.Linear(7, 7)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.full((3,), 1.5))
            self.register_buffer("count", torch.tensor([4, 5], dtype=torch.int64))

        def forward(self, input_ids, labels):
            x = self.first(torch.nn.functional.one_hot(input_ids % 7, 7).to(self.first.weight.dtype))
            return Output(self.second(self.norm(x)).float().pow(2).mean())

    return Small()


def write_all(root):
    import deepspeed

    deepspeed.init_distributed()
    for name in CASES:
        write_case(name, root)
    for stage in (1, 2, 3):
        config = engine_config(stage, "bf16", "none", {})
        train_and_save(module_with_buffers(), config, root / f"buffers_s{stage}", "global_step2", 97)
    deepspeed.comm.barrier()


if __name__ == "__main__":
    write_all(Path(sys.argv[-1]))
