"""ZT3xx: batch size = micro batch x accumulation x ranks."""

from __future__ import annotations

from ..context import TRAINER
from ..finding import ERROR, WARNING
from .rule import Hit, case, rule

SOURCE = "deepspeed 0.19.8 runtime/config.py:590-655"
ELASTIC = {
    "elasticity": {"enabled": True, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "version": 0.1}
}
TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def triple(view) -> list[int | None] | None:
    """The three as the engine gets them: None = left out. None in all = they can't be known from here."""
    values = []
    arguments = {MICRO: "per_device_train_batch_size", STEPS: "gradient_accumulation_steps"}
    for key in (TRAIN, MICRO, STEPS):
        value = view.get(key)
        if value == "auto":
            if view.context.entry != TRAINER or view.context.training_args is None:
                return None
            if key == TRAIN:
                parts = [view.context.world_size, *map(view.context.argument, arguments.values())]
                value = parts[0] * parts[1] * parts[2] if all(isinstance(part, int) for part in parts) else None
                if value is None:
                    return None
            else:
                value = view.context.argument(arguments[key])
        if key == STEPS and value is None and not view.raw and not view.has(STEPS):
            value = 1  # accelerate/utils/dataclasses.py:1281
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            return None
        values.append(value)
    return values


def elastic(view) -> bool:
    """DeepSpeed below 0.19.8 with elasticity: it computes the three itself."""
    return view.enabled("elasticity")


def ranks(view) -> float | None:
    """The divisor the engine uses: the world, divided by sequence_parallel_size (config.py:468)."""
    world, sequence = view.context.world_size, view.get("sequence_parallel_size", 1)
    if not world or isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        return None
    return world / sequence if sequence > 1 else world


@rule(
    "ZT301",
    "batch-product",
    ERROR,
    keys=(TRAIN, MICRO, STEPS),
    message="train_batch_size is {train}, but {micro} per rank x {steps} accumulation x {ranks} ranks is {product}",
    help="leave one of the three out{auto}, or write train_batch_size {product}",
    source=SOURCE,
    bad=[
        case({TRAIN: 8, MICRO: 2, STEPS: 1}, entry="raw", world_size=2),
        case({TRAIN: "auto", STEPS: ...}, training_args={STEPS: 4}, world_size=2),
    ],
    good=[case({TRAIN: 4, MICRO: 2, STEPS: 1}, entry="raw", world_size=2)],
)
def batch_product(view):
    """An assertion in the parser (a097). The Trainer fills a missing accumulation with 1 (d02)."""
    values, world = triple(view), ranks(view)
    if not values or None in values or world is None or elastic(view):
        return
    train, micro, steps = values
    product = micro * steps * world
    if train != product and min(values) > 0:
        facts = {"train": train, "micro": micro, "steps": steps, "ranks": f"{world:g}", "product": f"{product:g}"}
        facts["auto"] = "" if view.raw else ' or write "auto" for all three'
        yield Hit(f"/{TRAIN}", facts)


@rule(
    "ZT302",
    "batch-not-divisible",
    ERROR,
    keys=(TRAIN, MICRO, STEPS),
    message="train_batch_size {train} can't be divided by {parts} = {divisor}",
    help="make it a multiple of {divisor}",
    source=SOURCE,
    bad=[
        case({TRAIN: 9, MICRO: 2}, entry="raw", world_size=2),
        case({TRAIN: 3, MICRO: ...}, entry="raw", world_size=2),
        case({TRAIN: 4, STEPS: 16}),
        case({TRAIN: 6, MICRO: 4, STEPS: 1}, entry="raw"),
    ],
    good=[case({TRAIN: 8, MICRO: 2}, entry="raw", world_size=2), case({TRAIN: 32, STEPS: 16})],
)
def batch_not_divisible(view):
    """With one of three left out, the engine divides, rounds down, and then fails its own check (a098 to a102). Where
    ranks or flags are unknown, the numbers that are given must still divide it."""
    values, world = triple(view), ranks(view)
    if (values and None not in values and world) or elastic(view):
        return
    if world is None and view.get("sequence_parallel_size", 1) != 1:
        return
    train, micro, steps = values or map(view.number, (TRAIN, MICRO, STEPS))
    divisor = (micro or 1) * (steps or 1) * (world or 1)
    if train and divisor > 0 and train > 0 and train % divisor > 0:
        names = [f"{micro} per rank"] * bool(micro) + [f"{steps} accumulation"] * bool(steps)
        names += [f"{world or 1:g} ranks"] * bool(world)
        yield Hit(f"/{TRAIN}", {"train": train, "parts": " x ".join(names), "divisor": f"{divisor:g}"})


@rule(
    "ZT303",
    "batch-missing",
    ERROR,
    keys=(TRAIN, MICRO),
    message="neither train_batch_size nor train_micro_batch_size_per_gpu is given",
    help="add {advice}",
    source=SOURCE,
    bad=[case({MICRO: ...}, entry="raw"), case({TRAIN: ..., MICRO: ...})],
    good=[
        case({}, entry="raw"),
        case({TRAIN: "auto", MICRO: ...}),
        case({MICRO: ..., **ELASTIC}, entry="raw", versions={"deepspeed": "0.18.9"}),
    ],
)
def batch_missing(view):
    """An assertion in the parser, under the Trainer too (a103, a104, d04)."""
    if view.judged and view.get(TRAIN) is None and view.get(MICRO) is None and not elastic(view):
        advice = f'"{MICRO}": 1, unless the program adds it' if view.raw else f'"{MICRO}": "auto"'
        yield Hit("", {"advice": advice})


@rule(
    "ZT305",
    "elastic-batch-keys",
    ERROR,
    keys=(TRAIN, MICRO, STEPS),
    message="elasticity decides the batch sizes, and DeepSpeed refuses {key} beside it",
    help='delete it, or add "ignore_non_elastic_batch_info": true to elasticity',
    source="deepspeed 0.18.9 runtime/config.py:716",
    bad=[case(ELASTIC, entry="raw", versions={"deepspeed": "0.18.9"})],
    good=[case({MICRO: ..., **ELASTIC}, entry="raw", versions={"deepspeed": "0.18.9"})],
)
def elastic_batch_keys(view):
    """An ElasticityConfigError in the parser, for a key that is there at all, null included."""
    if elastic(view) and not view.flag("elasticity.ignore_non_elastic_batch_info"):
        yield from (Hit(f"/{key}", at_key=True) for key in (TRAIN, MICRO, STEPS) if view.has(key))


@rule(
    "ZT304",
    "accumulation-flag-unseen",
    WARNING,
    keys=(STEPS,),
    message="gradient_accumulation_steps is not in the config: DeepSpeed reports 1, the Trainer accumulates {steps}",
    help='add "gradient_accumulation_steps": "auto"',
    source="accelerate 1.15 utils/dataclasses.py:1281",
    bad=[case({STEPS: ..., TRAIN: ...}, training_args={STEPS: 4})],
    good=[case({}, training_args={STEPS: 4}), case({STEPS: ...}, training_args={STEPS: 1})],
)
def accumulation_flag_unseen(view):
    """The losses are right, since the Trainer sets the boundary; the engine's batch size and samples are not (d03)."""
    steps = view.context.argument("gradient_accumulation_steps")
    if view.context.entry == TRAINER and view.judged and not view.has(STEPS) and steps not in (None, 1):
        yield Hit("", {"steps": steps})
