"""A small training run on a plain DeepSpeed engine, cut into pieces that go on as runs of another kind."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

GLOBAL_BATCH = 8
WIDTH = 16
CPU = {"device": "cpu"}
KINDS = {
    "stage1": {"stage": 1},
    "stage1_offload": {"stage": 1, "offload_optimizer": CPU},
    "stage2": {"stage": 2},
    "stage2_round_robin": {"stage": 2, "round_robin_gradients": True},
    "stage2_offload": {"stage": 2, "offload_optimizer": CPU},
    "stage3": {"stage": 3, "stage3_param_persistence_threshold": 200, "sub_group_size": 9000},
    "stage3_offload": {
        **{"stage": 3, "stage3_param_persistence_threshold": 200, "sub_group_size": 30000},
        **{"offload_optimizer": CPU, "offload_param": CPU},
    },
    "stage3_hpz": {"stage": 3, "stage3_param_persistence_threshold": 200, "zero_hpz_partition_size": 2},
}


def ds_config(kind: str, precision: str, world_size: int, optimizer: dict | None) -> dict:
    """Precision "bf16 masters" keeps the master weights in bf16 too."""
    made = {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": GLOBAL_BATCH // 2 // world_size,
        "zero_optimization": KINDS[kind],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if optimizer:
        made["optimizer"] = optimizer
    if precision != "fp32":
        made[precision.split()[0]] = {"enabled": True}
    if precision == "bf16 masters":
        made["bf16"]["bf16_master_weights_and_grads"] = True
    return made


def model(frozen_size: int = 90, **changes):
    """Tied embeddings, a frozen layer, a buffer that is saved, sizes that no number of ranks divides."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.engine.tiny_models import VARIANTS

    torch.manual_seed(1)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **{**VARIANTS["llama tied"], **changes}), dtype=torch.float32
    )
    config = copy.deepcopy(made.config)
    config.intermediate_size = frozen_size
    made.model.layers[0].mlp = type(made.model.layers[0].mlp)(config).requires_grad_(False)
    made.register_buffer("steps_seen", torch.zeros(3, dtype=torch.int64))
    return made


def engine(kind: str, precision: str, optimizer: dict | None = None, **changes):
    """An engine with two parameter groups and a schedule; weights are always drawn anew."""
    import deepspeed
    import torch
    from deepspeed import comm

    deepspeed.init_distributed(verbose=False)
    made = model(**changes)
    config = ds_config(kind, precision, comm.get_world_size(), optimizer)
    matrices = [one for one in made.parameters() if one.requires_grad and one.dim() > 1]
    others = [one for one in made.parameters() if one.requires_grad and one.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    own = None if optimizer else torch.optim.AdamW(groups, lr=1e-2)
    schedule = {"lr_scheduler": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step))}
    given = {"optimizer": own} if own else {"model_parameters": groups}
    return deepspeed.initialize(model=made, config=config, **given, **schedule)[0]


def train(engine, steps: range) -> list[float]:
    """Loss of every step over the whole global batch, which is the same rows whatever the number of ranks."""
    import torch
    from deepspeed import comm

    world, rank = comm.get_world_size(), comm.get_rank()
    engine.module.steps_seen += len(steps)
    losses = []
    for step in steps:
        rows = torch.randint(7, (GLOBAL_BATCH, WIDTH), generator=torch.Generator().manual_seed(step))
        total = torch.zeros(())
        for micro in range(engine.gradient_accumulation_steps()):
            first = 2 * (micro * world + rank)
            ids = rows[first : first + 2].to(engine.device)
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / engine.gradient_accumulation_steps()
        comm.all_reduce(total)
        losses.append(total.item() / world)
    return losses


def states(engine) -> dict[str, str]:
    """Digest of everything that must survive, gathered by DeepSpeed's own functions, by parameter name and state."""
    from deepspeed import zero
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        # DeepSpeed 0.19.8 links the states when the first group has stepped; the other groups have none by then.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    found = {"steps_seen": digest(engine.module.steps_seen)}
    for name, param in engine.module.named_parameters():
        if param.requires_grad:
            found[f"{name} fp32"] = digest(safe_get_full_fp32_param(param))
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"{name} {key}"] = digest(safe_get_full_optimizer_state(param, key))
        with zero.GatheredParameters([param], enabled=hasattr(param, "ds_id")):
            found[f"{name} weight"] = digest(param.data)
    optimizer = engine.optimizer.optimizer
    counts = {float(state["step"]) for state in optimizer.state.values() if "step" in state}
    settings = [{key: group[key] for key in ("lr", "weight_decay", "betas")} for group in optimizer.param_groups]
    found["counts"] = str((counts, settings, engine.global_steps, engine.global_samples, engine.skipped_steps))
    found["schedule"] = str(engine.lr_scheduler.state_dict()["last_epoch"])
    found["scale"] = str(engine.optimizer.loss_scaler.loss_scale)
    return found


def digest(values) -> str:
    import torch

    return hashlib.sha256(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def piece(kind: str, precision: str, steps: range, start: str | None, save: str, optimizer: dict | None = None):
    """Continue from `start`, train `steps`, save. Returns (said, states at the start, losses, states at the end)."""
    from zerotune.checkpointing.resharding.load import load

    made = engine(kind, precision, optimizer)
    said: list[str] = []
    if start:
        load(made, Path(start), said.append)
    begun = states(made) if start else {}
    losses = train(made, steps)
    made.save_checkpoint(save)
    return said, begun, losses, states(made)


def refusals(start: str, cases: dict[str, dict]) -> dict[str, str]:
    """What is said when engines that do not fit the checkpoint are to go on from it; each case is `engine`'s arguments."""
    from zerotune.checkpointing.resharding.load import load
    from zerotune.errors import UsageError

    told = {}
    for name, arguments in cases.items():
        made = engine(**arguments)
        try:
            load(made, Path(start), lambda _: None)
            told[name] = "nothing"
        except UsageError as error:
            told[name] = str(error)
    return told
