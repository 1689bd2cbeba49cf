"""What a real engine of two CPU ranks holds, to the byte, against the planner's terms."""

from __future__ import annotations

import pytest

from tests.engine import forked_ranks
from tests.jobs import REPO

pytestmark = pytest.mark.slow
# Odd sizes: a vocabulary and widths that leave padding at every stage.
CONFIG = {
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 75,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}
TEMPLATES = ("stage1", "stage2", "stage3", "stage2_offload", "stage3_offload")


def held_by_the_engine(template: str, out: str) -> dict[str, int]:
    """Two optimizer steps under the Trainer; bytes on this rank, measured when the second step begins."""
    import deepspeed
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

    deepspeed.init_distributed(verbose=False)
    options = {"per_device_train_batch_size": 1, "max_steps": 2, "save_strategy": "no", "disable_tqdm": True}
    config_file = str(REPO / "ds_configs" / f"{template}.json")
    args = TrainingArguments(
        output_dir=out, deepspeed=config_file, use_cpu=True, bf16=True, report_to="none", **options
    )
    tokens = [[5, 6, 7, 8]] * 8
    data = Dataset.from_dict({"input_ids": tokens, "labels": tokens})
    built = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), dtype="bfloat16")
    found: dict[str, int] = {}

    class Measure(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            optimizer = trainer.model_wrapped.optimizer
            step = optimizer.step

            def measured(*arguments, **options):
                found.clear()
                found.update(measure(optimizer, trainer.model))
                return step(*arguments, **options)

            optimizer.step = measured

    trainer = Trainer(model=built, args=args, train_dataset=data, callbacks=[Measure()])
    trainer.train()
    return found


def measure(optimizer, model) -> dict[str, int]:
    """Bytes by term. A storage that several tensors share counts once."""
    stage3 = hasattr(optimizer, "fp16_groups")
    master = optimizer.fp32_partitioned_groups_flat if stage3 else optimizer.single_partition_of_fp32_groups
    states = [value for group in optimizer.optimizer.state.values() for value in group.values() if is_moment(value)]
    found = {"master": storages(master), "moments": storages(states)}
    found["master gradients"] = storages(one.grad for one in master if one.grad is not None)
    if stage3:
        flat = optimizer.param_groups_fp16_flat_cpu_memory or [optimizer.lp_param_buffer]
        return found | {"weights": storages(flat), "gradients": storages([optimizer.grad_partitions_flat_buffer])}
    averaged = [
        one
        for group in optimizer.averaged_gradients.values()
        for one in group or []
        if not getattr(one, "_zero_padding", False)
    ]
    whole = [param.grad for param in model.parameters() if param.grad is not None]
    found |= {"weights": storages(optimizer.bit16_groups_flat), "gradients": storages([*averaged, *whole])}
    return found


def is_moment(value) -> bool:
    return getattr(value, "ndim", 0) > 0


def storages(tensors) -> int:
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def planned(template: str) -> dict[str, int]:
    from zerotune.ds_config.resolve import resolve
    from zerotune.planner import gpu_terms, host_terms
    from zerotune.planner.hardware import parse_gpus
    from zerotune.planner.models import read_model
    from zerotune.planner.run import Run, zero_of

    shapes = read_model({"model_type": "llama", **CONFIG})
    run = Run(shapes, parse_gpus("2xCPU"), zero_of(resolve(template).config, shapes), seq=4)
    made = {
        "weights": gpu_terms.param_bytes(run),
        "master": gpu_terms.master_bytes(run),
        "moments": gpu_terms.optimizer_bytes(run),
        "gradients": gpu_terms.grad_partition_bytes(run),
        "master gradients": 0,
    }
    if run.zero.cpu_optimizer:
        made |= {
            "master": host_terms.host_master_bytes(run),
            "moments": host_terms.host_optimizer_bytes(run),
            "master gradients": host_terms.host_grad_bytes(run),
        }
    if run.zero.stage == 3 and run.zero.cpu_params:
        made["weights"] = host_terms.host_param_bytes(run)
        made["gradients"] = host_terms.host_grad_buffer_bytes(run)
    return made


@pytest.mark.parametrize("template", TEMPLATES)
def test_bytes_held(template, tmp_path):
    ranks = forked_ranks.run(held_by_the_engine, 2, template, str(tmp_path))
    expected = planned(template)
    # A parameter that reaches over the border counts whole on both ranks: the plan is of the fuller one.
    assert {key: max(rank[key] for rank in ranks) for key in expected} == expected
