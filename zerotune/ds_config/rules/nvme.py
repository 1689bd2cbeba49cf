"""ZT502, ZT503, ZT509, ZT512, ZT738: offload to NVMe."""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING
from .offload import ZERO, zero
from .rule import Hit, case, rule


@rule(
    "ZT502",
    "nvme-without-path",
    ERROR,
    keys=("zero_optimization.offload_param.nvme_path", "zero_optimization.offload_optimizer.nvme_path"),
    message="{which} goes to nvme, but nvme_path is missing",
    help='add "nvme_path": "/a/folder/on/a/local/nvme/disk"',
    source="deepspeed 0.19.8 runtime/swap_tensor/partitioned_param_swapper.py, optimizer_utils.py",
    bad=[
        case(zero(stage=3, offload_optimizer={"device": "nvme"})),
        case(zero(stage=3, offload_param={"device": "nvme"})),
    ],
    good=[
        case(zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"})),
        case(zero(stage=2, offload_optimizer={"device": "nvme"})),
    ],
)
def nvme_without_path(view):
    """An assertion for the weights, a bare TypeError for the states (b053, b055). Below stage 3 nothing goes there."""
    for which in ("offload_optimizer", "offload_param"):
        path = view.get(f"zero_optimization.{which}.nvme_path")
        if view.stage == 3 and view.device(which) == "nvme" and path is None:
            yield Hit(f"{ZERO}/{which}/device", {"which": which})


@rule(
    "ZT503",
    "nvme-below-3",
    WARNING,
    keys=("zero_optimization.offload_optimizer.device",),
    message="at stage {stage} the states go to the CPU, not to nvme",
    help='set stage 3, or write "cpu"',
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py",
    bad=[case(zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"}))],
)
def nvme_below_3(view):
    """Any device but none is taken as cpu, and nvme_path is ignored (b052)."""
    if view.stage in (1, 2) and view.device("offload_optimizer") == "nvme":
        yield Hit(f"{ZERO}/offload_optimizer/device", {"stage": view.stage})


@rule(
    "ZT509",
    "nvme-key-without-nvme",
    WARNING,
    keys=("zero_optimization.offload_optimizer.pipeline_read", "zero_optimization.offload_param.max_in_cpu"),
    message="{key} does nothing: the device is {device}",
    help='delete it, or write "device": "nvme"',
    source="deepspeed 0.19.8 runtime/swap_tensor: read for NVMe only",
    bad=[case(zero(stage=3, offload_optimizer={"device": "cpu", "pipeline_read": True})),
         case(zero(stage=3, offload_param={"device": "cpu", "max_in_cpu": 5}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "cpu", "buffer_count": 4}))],
)  # fmt: skip
def nvme_key_without_nvme(view):
    """No effect (b064). Keys that repeat the default, as many published configs do, are left alone."""
    defaults = {
        "offload_optimizer": {"buffer_count": 4, "pipeline_read": False, "pipeline_write": False, "fast_init": False},
        "offload_param": {"buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000},
    }
    for which, names in defaults.items():
        device = view.device(which)
        for name, default in names.items():
            value = view.get(f"zero_optimization.{which}.{name}", default)
            if view.stage == 3 and device in ("none", "cpu") and value != default and value != "auto":
                yield Hit(f"{ZERO}/{which}/{name}", {"device": device}, at_key=True)


@rule(
    "ZT512",
    "aio-without-nvme",
    INFO,
    keys=("aio",),
    message="the aio block does nothing: nothing is offloaded to NVMe",
    help="delete it",
    source="deepspeed 0.19.8 runtime/swap_tensor",
    bad=[case({"aio": {"queue_depth": 32}})],
    good=[case({"aio": {"queue_depth": 32},
                **zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"})})],
)  # fmt: skip
def aio_without_nvme(view):
    """Read, and used by the swappers only."""
    at_stage_3 = view.stage == 3 and "nvme" in (view.device("offload_optimizer"), view.device("offload_param"))
    if view.block("aio") and view.stage is not None and not at_stage_3 and not view.has("checkpoint.writer"):
        yield Hit("/aio", at_key=True)


@rule(
    "ZT738",
    "nvme-buffer-below-embedding",
    ERROR,
    keys=("zero_optimization.offload_param.buffer_size",),
    message="offload_param.buffer_size is {size:,}, and a rank's part of the embedding has {part:,} elements",
    help='write "buffer_size": {part} or more; a larger weight needs more still',
    source="deepspeed 0.19.8 runtime/zero/partition_parameters.py:1820, runtime/swap_tensor/partitioned_param_swapper.py:357",
    bad=[case(zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/local_nvme"}), world_size=8,
              model={"hidden_size": 8192, "vocab_size": 128256})],
    good=[case(zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/local_nvme", "buffer_size": 200_000_000}),
               world_size=8, model={"hidden_size": 8192, "vocab_size": 128256}),
          case(zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/local_nvme"}), world_size=8,
               model={"hidden_size": 4096, "vocab_size": 128256})],
)  # fmt: skip
def nvme_buffer_below_embedding(view):
    """Each weight's part goes through one buffer, and the engine asserts that it fits: More elements than buffer size."""
    facts, world = view.context.model or {}, view.context.world_size
    sizes = (facts.get("vocab_size"), view.context.hidden_size, world)
    own_width = "embedding_size" in facts or "word_embed_proj_dim" in facts
    if own_width or view.stage != 3 or view.device("offload_param") != "nvme":
        return
    size = view.converted("zero_optimization.offload_param.buffer_size") or 100_000_000
    if all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in sizes):
        part = -(-sizes[0] * sizes[1] // world)
        if part > size:
            place = "buffer_size" if view.has("zero_optimization.offload_param.buffer_size") else "device"
            yield Hit(f"{ZERO}/offload_param/{place}", {"size": int(size), "part": part})
