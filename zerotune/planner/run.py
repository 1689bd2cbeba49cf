"""What is to be planned: model, devices, config and the run's flags in one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerotune.errors import UsageError

from .degrees import Degrees, check_degrees, sliced
from .hardware import Cluster
from .shapes import Param, Shapes

ATTENTION = ("sdpa", "flash", "eager")
PRECISIONS = ("bf16", "fp16", "fp32")
NONE = "none"


@dataclass(frozen=True)
class Zero:
    """The keys of zero_optimization that move bytes, under DeepSpeed's names; counts are elements.

    groups_by_decay: the config names no optimizer, so the Trainer makes one, with a group for what isn't decayed.
    """

    stage: int = 0
    offload_optimizer: str = NONE
    offload_param: str = NONE
    pin_memory: bool = True
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    max_live_parameters: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    hpz: int = 1
    groups_by_decay: bool = False

    def __post_init__(self):
        if self.offload_param != NONE and self.stage < 3:
            object.__setattr__(self, "offload_param", NONE)  # accepted and ignored below stage 3 (rule ZT501)
        if self.stage == 0:
            object.__setattr__(self, "offload_optimizer", NONE)

    @property
    def cpu_optimizer(self) -> bool:
        return self.offload_optimizer != NONE

    @property
    def cpu_params(self) -> bool:
        return self.offload_param != NONE


@dataclass(frozen=True)
class Run:
    """One training run. Sizes are per rank unless said otherwise.

    seq, micro_batch: tokens of a row, rows of a micro batch. accumulation: micro batches per step.
    recompute: activation checkpointing of every layer. packed: rows hold several documents (a dense mask under sdpa).
    fused_loss: no logits are kept (Liger's fused linear cross-entropy). fused_kernels: Liger's norms and SwiGLU.
    from_scratch: weights are drawn, not read. background_save: checkpoints are written while training goes on.
    """

    shapes: Shapes
    cluster: Cluster = field(repr=False)
    zero: Zero = field(default_factory=Zero)
    precision: str = "bf16"
    grad_accum: str | None = None
    optimizer: str = "adamw"
    seq: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    recompute: bool = False
    attn: str = "sdpa"
    packed: bool = False
    fused_loss: bool = False
    fused_kernels: bool = False
    from_scratch: bool = False
    background_save: bool = False
    degrees: Degrees = field(default_factory=Degrees)

    def __post_init__(self):
        check(self)

    @property
    def world(self) -> int:
        return self.cluster.world

    @property
    def local(self) -> Shapes:
        """What a rank has of the model before ZeRO divides it."""
        return sliced(self.shapes, self.degrees.tensor, self.degrees.expert)

    @property
    def zero_ranks(self) -> int:
        """Ranks that ZeRO divides the states over: all that have the same slices of the matrices."""
        return self.world // self.degrees.tensor

    def sharers(self, param: Param) -> int:
        """Ranks that ZeRO divides a parameter over; experts: those that have the same ones."""
        return self.world // self.degrees.expert if param.expert else self.zero_ranks

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch on one rank."""
        return self.seq * self.micro_batch // self.degrees.sequence

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all ranks; those of a tensor parallel group have the same ones."""
        return self.tokens * self.accumulation * self.zero_ranks

    @property
    def masked(self) -> bool:
        """sdpa is given a dense mask, which keeps packed documents apart."""
        return self.attn == "sdpa" and self.packed

    @property
    def bytes_each(self) -> int:
        """Bytes of a weight or an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def grad_bytes_each(self) -> int:
        """Bytes of an accumulated gradient: data_types.grad_accum_dtype, else the model's type (engine.py:1806)."""
        return {"fp32": 4, "bf16": 2, "fp16": 2, None: self.bytes_each}[self.grad_accum]


def check(run: Run) -> None:
    """Sizes that no run can have.

    Raises:
        UsageError: zero or negative sizes, a sequence longer than the model's positions, a precision that the
            device hasn't got.
    """
    shapes, device = run.shapes, run.cluster.device
    check_degrees(run.degrees, shapes, run.world, run.seq)
    for flag, value in (("--seq", run.seq), ("--micro-batch", run.micro_batch), ("--accumulation", run.accumulation)):
        if value < 1:
            raise UsageError(f"{flag} {value} must be 1 or more")
    if run.seq > shapes.max_positions and not shapes.encoder_layers:
        raise UsageError(
            f"--seq {run.seq} is longer than the {shapes.max_positions} positions of {shapes.name}; "
            f"the longest is --seq {shapes.max_positions}"
        )
    if run.precision == "bf16" and not device.bf16:
        raise UsageError(f"{device.name} has no bf16; use --precision fp16")
    if run.precision == "fp16" and not device.fp16:
        raise UsageError(f"{device.name} has no fp16; use --precision {'bf16' if device.bf16 else 'fp32'}")
    if run.cluster.per_node % run.zero.hpz and run.zero.hpz > 1:
        raise UsageError(
            f"zero_hpz_partition_size {run.zero.hpz} doesn't divide the {run.cluster.per_node} GPUs of a node"
        )


# Keys whose name in the file differs from the field of Zero; first the one that wins.
KEYS = {
    "prefetch_bucket_size": ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    "param_persistence_threshold": ("stage3_param_persistence_threshold", "param_persistence_threshold"),
    "max_live_parameters": ("stage3_max_live_parameters", "max_live_parameters"),
    "hpz": ("zero_hpz_partition_size",),
}
SWITCHES = ("overlap_comm", "contiguous_gradients", "reduce_scatter")
COUNTS = ("stage", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", *KEYS)
DEVICES = ("offload_optimizer", "offload_param")


def zero_of(config: dict, shapes: Shapes, name: str = "the config") -> Zero:
    """What the engine would run with, "auto" filled as transformers fills it (integrations/deepspeed.py).

    Reads the dict itself: resolving every key with its origin (ds_config.effective) takes half of a plan's time.

    Raises:
        UsageError: a value that is no number where one belongs.
    """
    block = config.get("zero_optimization", {})
    if not isinstance(block, dict):
        raise UsageError(f"{name}: zero_optimization is {block!r}; see zerotune-config validate")
    hidden = shapes.hidden
    auto = {"reduce_bucket_size": hidden**2, "prefetch_bucket_size": hidden**2 * 9 // 10}
    auto["param_persistence_threshold"] = 10 * hidden
    found: dict = {}
    for field_name in COUNTS:
        value = next((block[key] for key in KEYS.get(field_name, (field_name,)) if block.get(key) is not None), None)
        value = auto.get(field_name) if value == "auto" else value
        if value is not None:
            found[field_name] = _number(value, field_name, name)
    found |= {key: bool(block[key]) for key in SWITCHES if isinstance(block.get(key), bool)}
    found.setdefault("overlap_comm", found.get("stage") == 3)
    for device in DEVICES:
        inner = block.get(device)
        found[device] = inner.get("device", NONE) if isinstance(inner, dict) else NONE
        if found[device] not in (NONE, "cpu", "nvme"):
            raise UsageError(f"{name}: {device}.device is {found[device]!r}; it may be none, cpu or nvme")
    pins = [block[device].get("pin_memory", True) for device in DEVICES if isinstance(block.get(device), dict)]
    return Zero(**found, pin_memory=any(pins), groups_by_decay="optimizer" not in config)


def _number(value, key: str, name: str) -> int:
    try:
        number = int(float(value))
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(value, bool) or (key == "stage" and number > 3):
        raise UsageError(f"{name}: zero_optimization.{key} is {value!r}; see zerotune-config validate")
    return number
