"""One plan: bytes in every phase, seconds of a step, whether it fits, and what it doesn't know."""

from __future__ import annotations

from dataclasses import dataclass

from zerotune.ds_config.resolve import resolve

from . import host_terms as host
from .hardware import parse_gpus
from .host_phases import host_peak, node_host_bytes, settled
from .memory import PHASES, Peak, gpu_peak, gpu_peak_bytes
from .models import read_model
from .run import Run, zero_of
from .timing import StepTime, step_time

# Nearer to the limit than this share, a plan is called close: the worst of the runs in tests/unit/planner/test_memory.py,
# GPU peaks 5 % and host peaks 12 % too low. One run of benchmarks/results/plan_vs_measured.csv lies outside (ERROR_BAND).
GPU_BAND, HOST_BAND = 0.05, 0.13
ERROR_BAND = (
    "13 runs no constant was fitted to: GPU peaks -4 % to +2 %, host -3 % to +5 %, steps -26 % to +16 %, half of them "
    "within 10 %; of 28 others one GPU peak was planned 23 % too low (stage 3, weights on the host, recompute), one "
    "step 50 % too slow; on H200, 0.1B to 8B, 1 and 2 GPUs; other devices and more ranks are not measured yet"
)
LEFT_OUT = (
    "allocator fragmentation beyond rounding",
    "pipeline parallelism, and two of tensor, sequence and expert parallelism together",
    "MiCS, ZeRO++ quantization, ZenFlow, DeepCompile",
    "data workers and the page cache",
    "evaluation and saving in the wall time",
)


@dataclass(frozen=True)
class Verdict:
    """fits: yes or no; near: nearer to the limit than the error band, on either side. why: in words, with bytes."""

    fits: bool
    near: bool
    why: str

    @property
    def impossible(self) -> bool:
        """Not even if the plan is as much too high as it has ever been."""
        return not self.fits and not self.near


@dataclass(frozen=True)
class Plan:
    """gpu and host: the worst moment of each phase, of one rank. node_host: bytes of all ranks of a node by phase."""

    run: Run
    gpu: tuple[Peak, ...]
    host: tuple[Peak, ...]
    node_host: dict[str, int]
    step: StepTime
    checkpoint_bytes: int
    export_bytes: int

    @property
    def gpu_worst(self) -> Peak:
        return max(self.gpu, key=lambda peak: peak.num_bytes)

    @property
    def host_worst(self) -> tuple[str, int]:
        return max(self.node_host.items(), key=lambda row: row[1])

    @property
    def allocated_bytes(self) -> int:
        """What torch.cuda.max_memory_allocated() should show on one rank after a few steps."""
        return gpu_peak_bytes(self.run)

    @property
    def verdict(self) -> Verdict:
        return judge(self)

    def wall_s(self, tokens: float) -> float:
        """Training alone, for this many tokens over all ranks."""
        return tokens / self.step.tokens_per_s


def make_plan(run: Run) -> Plan:
    """Every phase of one run."""
    run = settled(run)
    return Plan(
        run=run,
        gpu=tuple(gpu_peak(run, phase) for phase in PHASES),
        host=tuple(host_peak(run, phase) for phase in PHASES),
        node_host={phase: node_host_bytes(run, phase) for phase in PHASES},
        step=step_time(run),
        checkpoint_bytes=host.checkpoint_disk_bytes(run),
        export_bytes=host.export_disk_bytes(run),
    )


def plan_for(model: dict, ds: str | dict, gpus: str, **values) -> Plan:
    """A plan from plain values, for scripts.

    Args:
        model: a config.json's dict, with model_type.
        ds: a template's name, a file, or a config's dict.
        gpus: "2xH200" or the like.
        values: fields of Run: seq, micro_batch, recompute, packed, attn, precision, fused_loss, fused_kernels ...

    Raises:
        UsageError: as the parts raise it.
    """
    shapes = read_model(model)
    config = resolve(ds).config if isinstance(ds, str) else ds
    return make_plan(Run(shapes, parse_gpus(gpus), zero_of(config, shapes), **values))


@dataclass(frozen=True)
class Room:
    """Bytes needed and there, of one kind of memory, and how far off the plan may be."""

    needed: int
    there: int
    band: float
    whose: str
    where: str
    host: bool = False

    @property
    def short(self) -> bool:
        return self.needed > self.there

    @property
    def near(self) -> bool:
        return abs(self.there - self.needed) < self.band * self.needed

    def __str__(self) -> str:
        if self.short:
            return f"{self.whose} lacks {amount(self.needed - self.there)} in the {self.where}"
        return f"{amount(self.there - self.needed)} of {self.whose}{' (within the error band)' if self.near else ''}"


def rooms(plan: Plan) -> list[Room]:
    """Device memory first, then the node's, where it is known."""
    device, worst, found = plan.run.cluster.device, plan.gpu_worst, []
    if not device.is_cpu:
        where = f"{worst.phase} ({worst.moment})"
        found.append(Room(worst.num_bytes, device.memory_bytes, GPU_BAND, device.name, where))
    phase, needed = plan.host_worst
    node = plan.run.cluster.node_bytes
    if node is not None:
        found.append(Room(needed, node, HOST_BAND, "each node's memory", phase, host=True))
    return found


def judge(plan: Plan) -> Verdict:
    """By the first memory that is too small, the clearest case first."""
    found = rooms(plan)
    short = sorted((room for room in found if room.short), key=lambda room: room.near)
    if short:
        return Verdict(False, short[0].near, str(short[0]))
    return Verdict(True, any(room.near for room in found), f"to spare: {', '.join(map(str, found)) or 'unknown'}")


def amount(num_bytes: float) -> str:
    """GiB with the digits that matter, MiB below a tenth of one."""
    gib = num_bytes / 2**30
    if gib < 0.1:
        return f"{num_bytes / 2**20:.0f} MiB"
    return f"{gib:.2f} GiB" if gib < 10 else f"{gib:.1f} GiB" if gib < 1000 else f"{gib / 1024:.2f} TiB"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
