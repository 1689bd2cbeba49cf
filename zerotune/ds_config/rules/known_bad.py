"""ZT905 to ZT915: package versions with known wrong results or crashes, one row each.

Each row was confirmed by the thread that its source names and by reading the released sources on both sides of the
end of the range. Silent when the versions are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..context import TRAINER
from ..finding import ERROR, INFO, WARNING
from .optimizer import built, optimizer
from .rule import Hit, case, rule
from .versions import within

STEPS = "gradient_accumulation_steps"
DEEPSPEED = "github.com/deepspeedai/DeepSpeed"
TRANSFORMERS = "github.com/huggingface/transformers"


@dataclass(frozen=True)
class Range:
    """Versions [first, below) of a package in which `when` means trouble.

    what: ends the sentence "PACKAGE VERSION ...". bad: (config, context without versions) that has it.
    """

    id: str
    slug: str
    severity: str
    package: str
    first: str
    below: str
    at: str
    when: Callable[[object], bool]
    what: str
    help: str
    why: str
    source: str
    bad: tuple[dict, dict]
    others: tuple[tuple[str, str, str], ...] = ()


def steps(view) -> int:
    """Micro batches per step; 1 when it can't be known from here."""
    value = view.get(STEPS)
    if value == "auto":
        value = view.context.argument(STEPS)
    return value if isinstance(value, int) else 1


def muon(view) -> bool:
    found = built(view)
    return bool(found) and found[2] == "MuonWithAuxAdam"


def zero(stage: int, **more) -> dict:
    return {"zero_optimization": {"stage": stage, **more}}


def on_gpu(view) -> bool:
    return view.device("offload_optimizer") == "none"


RAW = {"entry": "raw"}
BF16 = {"bf16": {"enabled": True}}
STAGE = "zero_optimization.stage"
TABLE = (
    Range("ZT905", "stage-2-last-micro-batch", ERROR, "deepspeed", "0.17.6", "0.18.3", STEPS,
          lambda view: view.stage == 2 and on_gpu(view) and steps(view) > 1,
          "keeps only the last micro batch's gradients at stage 2", "use 0.18.3 or newer, stage 1 or 3, or no accumulation",
          "Each micro batch overwrites all_grad_tensors (stage_1_and_2.py); the gradient norm looks healthy, only too small.",
          f"{DEEPSPEED}/issues/7718, github.com/huggingface/trl/issues/4540", ({**zero(2), STEPS: 4}, RAW)),
    Range("ZT906", "accumulation-scaled-twice", ERROR, "deepspeed", "0.18.3", "0.18.4", STEPS,
          lambda view: view.context.entry == TRAINER and steps(view) > 1,
          "divides the Trainer's gradients by the accumulation steps a second time", "use 0.18.4 or newer",
          "The Trainer passes scale_wrt_gas=False from 4.49 on; 0.18.3 scales each gradient all the same (engine.py).",
          f"{DEEPSPEED}/pull/7724", ({STEPS: 4}, {}), (("transformers", "4.49", "99"),)),
    Range("ZT907", "bf16-optimizer-last-micro-batch", ERROR, "deepspeed", "0.18.6", "0.19.0", "data_types.grad_accum_dtype",
          lambda view: view.stage == 1 and view.precision == "bf16" and on_gpu(view) and view.context.world_size != 1
          and view.get("data_types.grad_accum_dtype") == "fp32" and not view.flag("bf16.immediate_grad_update"),
          "leaves the last micro batch out of the average at stage 1 with fp32 accumulation",
          'use 0.19.0 or newer, or "immediate_grad_update": true under bf16',
          "The engine reduces the gradients before BF16_Optimizer has added the last ones (engine.py, _backward_epilogue).",
          f"{DEEPSPEED}/pull/7985", ({**BF16, **zero(1), "data_types": {"grad_accum_dtype": "fp32"}}, RAW)),
    Range("ZT908", "hpz-stale-weights", WARNING, "deepspeed", "0.16.0", "0.18.3", "zero_optimization.zero_hpz_partition_size",
          lambda view: view.stage == 3 and (view.number("zero_optimization.zero_hpz_partition_size") or 1) > 1,
          "starts from stale weights with hpZ: the first step after loading has a far too high loss",
          "use 0.18.3 or newer, or throw the first step away",
          "Loading weights or a checkpoint does not renew the secondary shards; the first optimizer step does.",
          f"{DEEPSPEED}/pull/7707, {DEEPSPEED}/issues/7606", (zero(3, zero_hpz_partition_size=8), RAW)),
    Range("ZT909", "bf16-stage-0-gradients", WARNING, "deepspeed", "0.18.3", "0.18.6", STAGE,
          lambda view: view.stage == 0 and view.precision == "bf16",
          "unscales bf16 gradients that were never scaled, and does not clear them, at stage 0",
          "use 0.18.6 or newer, or stage 1",
          "Optimizers that are not fused get gradients divided by 65536; they pile up from step to step (engine.py).",
          f"{DEEPSPEED}/pull/7839, {DEEPSPEED}/issues/7837", ({**BF16, **zero(0)}, RAW)),
    Range("ZT910", "no-sync-assertion", ERROR, "transformers", "4.46.1", "4.47.1", STEPS,
          lambda view: view.context.entry == TRAINER and view.stage in (2, 3) and steps(view) > 1,
          "calls no_sync, which DeepSpeed refuses at stages 2 and 3 since 0.16.0", "use transformers 4.47.1 or newer",
          "An AssertionError at the first micro batch: no_sync is incompatible with partitioned gradients.",
          f"{TRANSFORMERS}/pull/35157, {DEEPSPEED}/issues/6793", ({**zero(2), STEPS: 4}, {}),
          (("deepspeed", "0.16.0", "99"),)),
    Range("ZT911", "accumulation-divided-again", WARNING, "transformers", "4.47.0", "4.49.0", STEPS,
          lambda view: view.context.entry == TRAINER and steps(view) > 1,
          "leaves DeepSpeed dividing a loss that is an average already: gradients shrink with the accumulation steps",
          "use transformers 4.49.0 or newer",
          "The Trainer normalises over the whole step and does not switch off DeepSpeed's own division (trainer.py).",
          f"{TRANSFORMERS}/pull/35808", ({STEPS: 4}, {})),
    Range("ZT912", "overlap-with-compile", WARNING, "deepspeed", "0.16.0", "0.19.3", "zero_optimization.overlap_comm",
          lambda view: view.stage in (1, 2) and view.flag("zero_optimization.overlap_comm")
          and view.flag("zero_optimization.contiguous_gradients", True) and view.context.argument("torch_compile") is True,
          "reduces gradients too early with torch.compile and overlap_comm: NaN from the first steps on",
          'use 0.19.3 or newer, or "overlap_comm": false',
          "Compiled backward passes write a bucket from several streams; the reduction waits for one (stage_1_and_2.py).",
          f"{DEEPSPEED}/pull/8080, {DEEPSPEED}/issues/8061",
          (zero(2, overlap_comm=True), {"training_args": {"torch_compile": True}})),
    Range("ZT913", "muon-partial-matrices", ERROR, "deepspeed", "0.17.6", "0.19.3", "zero_optimization.reduce_scatter",
          lambda view: muon(view) and view.stage in (1, 2) and view.flag("zero_optimization.reduce_scatter", True)
          and view.context.world_size != 1,
          "gives Muon pieces of matrices where a weight crosses the border of two ranks",
          'use 0.19.3 or newer, or "reduce_scatter": false',
          "Newton-Schulz then works on a slice of the gradient; the update is wrong, not zero.",
          f"{DEEPSPEED}/issues/7807, {DEEPSPEED}/pull/8090", ({**optimizer("Muon"), **zero(2)}, RAW)),
    Range("ZT914", "muon-switched-off", ERROR, "deepspeed", "0.17.6", "0.19.7", "optimizer.type",
          lambda view: muon(view) and (view.stage == 0 or (view.stage == 3 and view.context.zero_init is True)),
          "does not run Muon here: no weight is orthogonalised", "use 0.19.7 or newer, or stage 1 or 2",
          "At stage 0 the step has no Newton-Schulz; under zero.Init every weight looks one-dimensional and goes to Adam.",
          f"{DEEPSPEED}/pull/8442, {DEEPSPEED}/pull/8438", ({**optimizer("Muon"), **zero(0)}, RAW)),
    Range("ZT915", "frozen-weights-recompute", INFO, "deepspeed", "0.16.0", "0.19.3", STAGE,
          lambda view: view.stage == 3 and view.context.argument("gradient_checkpointing") is True,
          "can't recompute frozen weights at stage 3: LoRA with gradient checkpointing stops with CheckpointError",
          'use 0.19.3 or newer, or --gradient_checkpointing_kwargs \'{"use_reentrant": true}\'',
          "The recompute finds the frozen weights partitioned again, with shape [0].",
          f"{DEEPSPEED}/pull/8148, {TRANSFORMERS}/issues/47254",
          (zero(3), {"training_args": {"gradient_checkpointing": True}}), (("transformers", "5.13", "99"),)),
)  # fmt: skip


def register(row: Range) -> None:
    """A rule of its own for a row."""

    def find(view):
        version = within(view, row.package, row.first, row.below)
        if version and all(within(view, *other) for other in row.others) and row.when(view):
            path = row.at if view.has(row.at) else ""
            yield Hit("/" + path.replace(".", "/") if path else "", {"version": version}, at_key=bool(path))

    find.__doc__ = row.why
    config, context = row.bad
    others = {package: first for package, first, _ in row.others}

    def example(version: str):
        return case(config, **context, versions={row.package: version, **others})

    rule(
        row.id,
        row.slug,
        row.severity,
        keys=(row.at,),
        message=f"{ {'deepspeed': 'DeepSpeed'}.get(row.package, row.package) } {{version}} {row.what}",
        help=row.help.replace("{", "{{").replace("}", "}}"),
        source=f"{row.source}; sources read on both sides of {row.below}",
        bad=[example(row.first)],
        good=[example(row.below), case(config, **context)],
    )(find)


for _row in TABLE:
    register(_row)
