"""Every template goes unmodified into TrainingArguments(deepspeed=...) and trains on 2 ranks of real DeepSpeed."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.engine import forked_ranks
from tests.jobs import REPO

TEMPLATES = sorted(path.stem for path in (REPO / "ds_configs").glob("*.json"))
NVME_FOLDER = Path("/tmp/zerotune_nvme")  # as stage3_nvme.json names it


def train_a_few_steps(template: str, precision: str, folder: str) -> dict:
    """Train a tiny Llama with the stock Trainer; return what the engine held and the losses."""
    import deepspeed
    import torch
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    deepspeed.init_distributed(verbose=False)
    set_seed(0)
    args = TrainingArguments(
        output_dir=folder,
        deepspeed=str(REPO / "ds_configs" / f"{template}.json"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-2,
        max_grad_norm=0.7,
        weight_decay=0.01,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **({precision: True} if precision != "fp32" else {}),
    )
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=128, num_attention_heads=2, num_key_value_heads=2, **sizes)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    rows = torch.arange(64 * 16).reshape(64, 16) % 120
    data = Dataset.from_dict({"input_ids": rows.tolist(), "labels": rows.tolist()})
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.train()
    engine, optimizer = trainer.deepspeed, trainer.deepspeed.optimizer
    return {
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "stage": engine.zero_optimization_stage(),
        "clipping": engine.gradient_clipping(),
        "dtype": str(next(engine.module.parameters()).dtype),
        "optimizer": type(optimizer.optimizer).__name__,
        "offload_optimizer": str(getattr(engine.zero_offload_optimizer(), "device", None)),
        "offload_param": str(getattr(engine.zero_offload_param(), "device", None)),
        "weight_decay": [group["weight_decay"] for group in optimizer.param_groups],
        "partitioned": all(getattr(one, "ds_tensor", None) is not None for one in engine.module.parameters()),
    }


def _skip_without_aio(template: str) -> None:
    if template.endswith("nvme"):
        from deepspeed.ops.op_builder import AsyncIOBuilder

        if not AsyncIOBuilder().is_compatible(verbose=False):
            pytest.skip(
                "libaio is not installed: DeepSpeed's NVMe offload needs it (Debian: apt-get install libaio-dev)"
            )
        NVME_FOLDER.mkdir(exist_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_template_trains(template, precision, tmp_path):
    _skip_without_aio(template)
    config = json.loads((REPO / "ds_configs" / f"{template}.json").read_text())
    zero = config["zero_optimization"]
    try:
        ranks = forked_ranks.run(train_a_few_steps, 2, template, precision, str(tmp_path))
    finally:
        if template.endswith("nvme"):
            shutil.rmtree(NVME_FOLDER, ignore_errors=True)
    held = ranks[0]
    assert len(held["losses"]) == 3
    assert all(math.isfinite(loss) for loss in held["losses"])
    assert held["losses"][-1] < held["losses"][0]
    assert held["stage"] == zero["stage"]
    assert held["clipping"] == 0.7
    assert held["dtype"] == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[precision]
    assert 0.01 in held["weight_decay"]
    assert held["partitioned"] == (zero["stage"] == 3)
    for block in ("offload_optimizer", "offload_param"):
        wanted = zero.get(block, {}).get("device")
        assert (held[block] == "None") if wanted is None else held[block].endswith(wanted)
    assert ("CPUAdam" in held["optimizer"]) == ("offload_optimizer" in zero)


@pytest.mark.slow
def test_fp16_is_refused_here_by_the_engine_not_by_the_template():
    """CPU has no fp16: the flag must reach the engine, whose refusal proves that it did."""
    with pytest.raises(forked_ranks.CaseFailed, match="fp16 is not supported"):
        forked_ranks.run(train_a_few_steps, 2, "stage2", "fp16", "/tmp/zerotune_fp16_refused")
