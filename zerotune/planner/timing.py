"""Seconds of one optimizer step, term by term, and which of them run at the same time.

The fractions below say how much of a datasheet's number real kernels reach. They come from the measured jobs of
docs/development.md and benchmarks/results/plan_vs_measured.csv (H200, torch 2.11, DeepSpeed 0.19.8), without its
held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gpu_terms import MOMENTS
from .link_terms import collective_s, expert_exchange_s, sequence_exchange_s, tensor_sums_s
from .partition import owned_params, persistent_params
from .run import Run

MATMUL_FRACTION = 0.55  # of dense peak inside a model; a lone 8192^3 product reaches 0.80
ATTENTION_FRACTION = 0.50  # flash kernels, forward and backward together
MASKED_FRACTION = 0.25  # the memory-efficient kernel that a dense mask leads to
MEMORY_FRACTION = 0.88  # 4.25 of 4.8 TB/s in a copy
NVME_GBS = 1.35  # written and read, local disk of the same machine
ADAM_BYTES = 30  # per weight: states, gradient and weight in fp32 read, states and weight written, 16 bits out
LAUNCHES = 250  # kernels of one layer, forward and backward
LAUNCH_S = 16e-6  # host's time for each
# Host's time for the hooks of one parameter tensor in one micro batch: fetch, release and bucket at stage 3, bucket
# below, and there a copy to the host with offload. These and the next constants: fitted to the rows of
# benchmarks/results/plan_vs_measured.csv that are not held out; stage 3's hook also to tests/unit/planner/test_timing.py.
HOOK_S = {0: 0.0, 1: 0.13e-3, 2: 0.13e-3, 3: 1.65e-3}
OFFLOAD_HOOK_S = 0.5e-3
STEP_S = {0: 22e-3, 1: 32e-3, 2: 32e-3, 3: 18e-3}  # host's time for a step, whatever the model
GRADIENT_BYTES = 75  # per weight, the step's other passes: flatten, to fp32, norm, unscale and clip, back to 16 bits
HOST_FRACTION = 0.75  # of the host's memory bandwidth that DeepSpeedCPUAdam reaches
PAGEABLE_GBS = 9.5  # from memory that isn't pinned to the GPU


@dataclass(frozen=True)
class TimeTerm:
    """Seconds in one optimizer step. `lane`: terms of different lanes overlap; "after" comes when they are done."""

    name: str
    seconds: float
    lane: str
    function: str


@dataclass(frozen=True)
class StepTime:
    terms: tuple[TimeTerm, ...]
    seconds: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.seconds

    @property
    def bound_by(self) -> str:
        return max(self.terms, key=lambda term: term.seconds).name


def matmul_flops(run: Run) -> float:
    """6 per weight and token that takes part: 2 forward, 2 for the input's gradient, 2 for the weight's (none when it
    is frozen); 2 more with recompute. The embedding's lookup is no product; a tied one counts as output matrix."""
    shapes = run.local
    lookup = 0 if shapes.tied else shapes.vocab * shapes.hidden
    active = shapes.num_active - lookup
    share = shapes.num_trainable / shapes.num_params
    per_weight = 4 + 2 * share + (2 if run.recompute else 0)
    return per_weight * active * run.tokens


def attention_flops(run: Run) -> float:
    """Scores and values: 4 x width x seq forward for each token, half of it when causal; backward 2.5 times forward.

    A dense mask doesn't skip blocks."""
    shapes = run.local
    width = shapes.heads * shapes.head_dim
    skipped = 1.0 if run.masked or run.attn == "eager" else 0.5
    passes = 3.5 + (1 if run.recompute else 0)
    return shapes.layers * 4 * width * run.seq * skipped * passes * run.tokens


def elementwise_traffic_bytes(run: Run) -> float:
    """Read and written by what is no product: norms (96 bytes an element in steps, 24 fused), residuals (12), the
    activation (28 or 18 a gate element), rotary positions (40 or 16), the loss (40 bytes a logit). 16-bit numbers."""
    shapes, scale = run.local, run.bytes_each / 2
    steps = shapes.rms and not run.fused_kernels
    width = shapes.ffn if not shapes.sparse_layers else shapes.moe_ffn * shapes.active_experts + shapes.shared_ffn
    per_layer = shapes.hidden * (shapes.norms * (96 if steps else 24) + 24)
    per_layer += width * (18 if run.fused_kernels else 28)
    per_layer += (shapes.heads + shapes.kv_heads) * shapes.head_dim * (16 if run.fused_kernels else 40)
    again = 1.33 if run.recompute else 1.0
    loss = 0 if run.fused_loss else shapes.vocab * 40
    return run.tokens * (shapes.layers * per_layer * scale * again + loss)


def peak_flops(run: Run) -> float:
    """Dense, in the run's precision."""
    return getattr(run.cluster.device, run.precision) * 1e12


def matmul_s(run: Run) -> float:
    """Of one micro batch."""
    return matmul_flops(run) / (peak_flops(run) * MATMUL_FRACTION)


def attention_s(run: Run) -> float:
    """Of one micro batch."""
    fraction = MASKED_FRACTION if run.masked or run.attn == "eager" else ATTENTION_FRACTION
    return attention_flops(run) / (peak_flops(run) * fraction)


def elementwise_s(run: Run) -> float:
    """Of one micro batch."""
    return elementwise_traffic_bytes(run) / (run.cluster.device.memory_gbs * 1e9 * MEMORY_FRACTION)


def launch_s(run: Run) -> float:
    """The host's time to start the kernels of one micro batch: a floor that small models meet."""
    return run.local.layers * LAUNCHES * LAUNCH_S * (4 / 3 if run.recompute else 1)


def hook_s(run: Run) -> float:
    """The host's time in DeepSpeed's hooks: for each trainable tensor, for each micro batch; under stage 3 recompute
    fetches and releases a third time; below it, offload copies each gradient to the host."""
    tensors = sum(count for param, count in run.local.groups if param.trainable)
    each = HOOK_S[run.zero.stage] * (1.5 if run.recompute and run.zero.stage == 3 else 1)
    if run.zero.cpu_optimizer and run.zero.stage < 3:
        each += OFFLOAD_HOOK_S
    return tensors * each


def step_host_s(run: Run) -> float:
    """The host's time in one step, whatever the model: the Trainer's loop, norms, flags."""
    return STEP_S[run.zero.stage]


def gather_s(run: Run) -> float:
    """Stage 3: weights gathered in forward and again in backward, of one micro batch; persistent ones never."""
    if run.zero.stage < 3:
        return 0.0
    passing = run.local.num_params - persistent_params(run)
    return (2 if not run.zero.hpz > 1 else 1) * collective_s(run, passing * run.bytes_each)


def reduce_s(run: Run) -> float:
    """Gradients reduced to their owners: of every micro batch at stages 2 and 3, once a step below."""
    times = 1 if run.zero.stage >= 2 else 1 / run.accumulation
    factor = 2 if run.zero.stage == 0 else 1  # all-reduce = reduce-scatter + all-gather
    return times * factor * collective_s(run, run.local.num_trainable * run.bytes_each)


def update_gather_s(run: Run) -> float:
    """Stages 1 and 2: updated weights sent to everyone after the step."""
    return collective_s(run, run.local.num_trainable * run.bytes_each) if run.zero.stage in (1, 2) else 0.0


def pcie_s(run: Run) -> float:
    """Between host and GPU in one micro batch: weights twice down (stage 3 with offload), gradients up in fp32."""
    rate = run.cluster.device.pcie_gbs * 1e9
    down = 2 * run.local.num_params / run.zero_ranks * run.bytes_each if run.zero.cpu_params else 0
    up = owned_params(run) * 4 if run.zero.cpu_optimizer else 0
    return max(down, up) / rate if down and up else (down + up) / rate


def adam_s(run: Run) -> float:
    """The optimizer's step on the GPU: bytes over memory bandwidth, the passes over gradients included."""
    if run.zero.cpu_optimizer:
        return 0.0
    each = GRADIENT_BYTES + ADAM_BYTES * (2 + MOMENTS[run.optimizer]) / 4
    return owned_params(run) * each / (run.cluster.device.memory_gbs * 1e9 * MEMORY_FRACTION)


def cpu_adam_s(run: Run) -> float:
    """The step on the host: bytes of all ranks of a node over the node's memory bandwidth, then weights go back:
    under stage 3 in fp32 from memory that isn't pinned (stage3.py, _reassign_or_swap_out_partitioned_parameters)."""
    if not run.zero.cpu_optimizer:
        return 0.0
    node = owned_params(run) * run.cluster.per_node
    back = owned_params(run) * run.bytes_each / (run.cluster.device.pcie_gbs * 1e9)
    if run.zero.stage == 3:
        back = 0 if run.zero.cpu_params else owned_params(run) * 4 / (PAGEABLE_GBS * 1e9)
    return node * ADAM_BYTES / (run.cluster.device.host_gbs * 1e9 * HOST_FRACTION) + back


def nvme_s(run: Run) -> float:
    """States read and written once a step, weights read twice for each micro batch, all ranks on the node's disk."""
    node = owned_params(run) * run.cluster.per_node
    moved = node * 4 * (2 + MOMENTS[run.optimizer]) * 2 if run.zero.offload_optimizer == "nvme" else 0
    if run.zero.offload_param == "nvme":
        moved += 2 * run.accumulation * node * run.bytes_each
    return moved / (NVME_GBS * 1e9)


MICRO = (
    ("matrix products", matmul_s, "compute"),
    ("attention", attention_s, "compute"),
    ("elementwise", elementwise_s, "compute"),
    ("kernel launches", launch_s, "host"),
    ("engine hooks", hook_s, "host"),
    ("gather weights", gather_s, "link"),
    ("reduce gradients", reduce_s, "link"),
    ("tensor parallel sums", tensor_sums_s, "compute"),
    ("sequence parallel exchanges", sequence_exchange_s, "compute"),
    ("expert parallel exchanges", expert_exchange_s, "compute"),
    ("host-GPU copies", pcie_s, "pcie"),
)
AFTER = (
    ("step's fixed part", step_host_s, "after"),
    ("optimizer on the GPU", adam_s, "after"),
    ("optimizer on the CPU", cpu_adam_s, "after"),
    ("gather updated weights", update_gather_s, "after"),
    ("NVMe", nvme_s, "after"),
)


def step_time(run: Run) -> StepTime:
    """One optimizer step: the slowest lane of the micro batches (their sum of compute and link without overlap_comm),
    then what comes after."""
    micro = [TimeTerm(name, run.accumulation * f(run), lane, f.__name__) for name, f, lane in MICRO]
    after = [TimeTerm(name, f(run), lane, f.__name__) for name, f, lane in AFTER]
    lanes: dict[str, float] = {}
    for term in micro:
        lane = "compute" if term.lane == "link" and not run.zero.overlap_comm else term.lane
        lanes[lane] = lanes.get(lane, 0.0) + term.seconds
    seconds = max(lanes.values()) + sum(term.seconds for term in after)
    terms = tuple(term for term in (*micro, *after) if term.seconds)
    return StepTime(terms, seconds, run.step_tokens)
