"""ZT80x: tensor, sequence and expert parallelism, DeepCompile."""

from __future__ import annotations

from ..context import TRAINER
from ..finding import ERROR, INFO, WARNING, Fix
from .rule import Hit, case, rule

TP = "deepspeed 0.19.8 runtime/tensor_parallel/config.py"
COMPILE = "deepspeed 0.19.8 compile/init_z3.py"


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


def compile_passes(view) -> list:
    """The passes that are asked for by name; none by default."""
    named = view.get("compile.passes")
    return named if isinstance(named, list) else []


def tp_block(view) -> dict:
    block = view.block("tensor_parallel")
    inner = block.get("tp", block.get("tensor_parallel"))
    return inner if isinstance(inner, dict) else {}


@rule(
    "ZT801",
    "tp-without-autotp",
    WARNING,
    keys=("tensor_parallel.tp.tp_size", "tensor_parallel.autotp_size"),
    message="tp_size {value} alone does nothing: autotp_size is the only switch",
    help='write "autotp_size": {value}',
    source=TP,
    bad=[raw({"tensor_parallel": {"tp": {"tp_size": 2}}})],
    good=[raw({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}}})],
)
def tp_without_autotp(view):
    """Silently no tensor parallelism (e029)."""
    size = tp_block(view).get("tp_size")
    if isinstance(size, int) and size > 1 and not view.number("tensor_parallel.autotp_size"):
        yield Hit(tp_pointer(view))


def tp_pointer(view) -> str:
    inner = "tp" if "tp" in view.block("tensor_parallel") else "tensor_parallel"
    return f"/tensor_parallel/{inner}/tp_size"


@rule(
    "ZT802",
    "tp-sizes-differ",
    ERROR,
    keys=("tensor_parallel.tp.tp_size", "tensor_parallel.autotp_size"),
    message="tp_size {value} differs from autotp_size {autotp}",
    help="delete tp.tp_size",
    source=TP,
    bad=[raw({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}})],
    good=[raw({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 1}}})],
)
def tp_sizes_differ(view):
    """A ValueError when the engine is built (e030)."""
    size, autotp = tp_block(view).get("tp_size"), view.number("tensor_parallel.autotp_size")
    if isinstance(size, int) and autotp and autotp > 1 and size not in (1, autotp):
        yield Hit(tp_pointer(view), {"autotp": autotp})


@rule(
    "ZT803",
    "tp-dtype",
    ERROR,
    keys=("tensor_parallel.dtype",),
    message="tensor_parallel.dtype can't be set from JSON: DeepSpeed wants a torch.dtype object",
    help="delete it; bf16 and fp16 decide",
    source=TP,
    bad=[raw({"tensor_parallel": {"autotp_size": 2, "dtype": "bf16"}})],
    good=[raw({"tensor_parallel": {"autotp_size": 2}})],
)
def tp_dtype(view):
    """Always a ValidationError in the parser (e032)."""
    value = view.get("tensor_parallel.dtype", "auto")
    if isinstance(value, str) and value != "auto":
        yield Hit("/tensor_parallel/dtype")


@rule(
    "ZT806",
    "autotp-size-text",
    ERROR,
    keys=("tensor_parallel.autotp_size",),
    message="autotp_size is the text {value}, and initialize compares it with 0",
    help="write it without quotes",
    source="deepspeed 0.19.8 __init__.py:551",
    bad=[raw({"tensor_parallel": {"autotp_size": "0"}})],
    good=[raw({"tensor_parallel": {"autotp_size": 0}})],
)
def autotp_size_text(view):
    """The parser converts it; deepspeed.initialize has read the file's own value before: a TypeError."""
    value = view.get("tensor_parallel.autotp_size")
    if isinstance(value, str) and value.isdigit():
        yield Hit("/tensor_parallel/autotp_size", fix=Fix("set", "/tensor_parallel/autotp_size", int(value), safe=True))


@rule(
    "ZT804",
    "autotp-divides-world",
    ERROR,
    keys=("tensor_parallel.autotp_size",),
    message="{world} ranks can't be divided into groups of autotp_size {value}",
    help="choose a divisor of the number of ranks",
    source="deepspeed 0.19.8 utils/groups.py",
    bad=[raw({"tensor_parallel": {"autotp_size": 3}}, world_size=4)],
    good=[raw({"tensor_parallel": {"autotp_size": 2}}, world_size=4)],
)
def autotp_divides_world(view):
    """A bare AssertionError of torch (e027)."""
    size, world = view.number("tensor_parallel.autotp_size"), view.context.world_size
    if size and size > 1 and world and world % size:
        yield Hit("/tensor_parallel/autotp_size", {"world": world})


@rule(
    "ZT807",
    "autotp-size-zero",
    ERROR,
    keys=("tensor_parallel.autotp_size",),
    message="the Trainer divides the ranks by autotp_size, and it is 0",
    help="write 1, or delete the block",
    source="transformers 5.24 trainer.py:2608",
    bad=[case({"tensor_parallel": {"autotp_size": 0}})],
    good=[raw({"tensor_parallel": {"autotp_size": 0}}), case({"tensor_parallel": {"autotp_size": 1}})],
)
def autotp_size_zero(view):
    """A ZeroDivisionError when training starts; DeepSpeed itself reads 0 as off."""
    size = view.get("tensor_parallel.autotp_size")
    if view.context.entry == TRAINER and size == 0 and not isinstance(size, bool):
        yield Hit("/tensor_parallel/autotp_size")


@rule(
    "ZT805",
    "autotp-batch",
    INFO,
    keys=("tensor_parallel.autotp_size", "train_batch_size"),
    message="AutoTP does not shrink the world: batch sizes and sample counts are reported {value} times too large",
    help="train_batch_size must still be micro batch x accumulation x all ranks",
    source="deepspeed 0.19.8 runtime/config.py:456",
    bad=[raw({"tensor_parallel": {"autotp_size": 2}})],
    good=[raw({"tensor_parallel": {"autotp_size": 0}})],
)
def autotp_batch(view):
    """The ranks of a group must get the same data, and the parser counts them all (e024, e028)."""
    size = view.number("tensor_parallel.autotp_size")
    if size and size > 1:
        yield Hit("/tensor_parallel/autotp_size")


@rule(
    "ZT810",
    "sequence-parallel-alone",
    WARNING,
    keys=("sequence_parallel_size", "data_parallel_size"),
    message="sequence_parallel_size without data_parallel_size only changes the batch arithmetic: no group is built",
    help='add "data_parallel_size": world size / {value}',
    source="deepspeed 0.19.8 __init__.py:543, runtime/config.py:468",
    bad=[raw({"sequence_parallel_size": 2})],
    good=[raw({"sequence_parallel_size": 2, "data_parallel_size": 2}, world_size=4),
          raw({"sequence_parallel_size": 2, "compile": {"deepcompile": True, "passes": ["autosp"]}}, world_size=4)],
)  # fmt: skip
def sequence_parallel_alone(view):
    """The config believes world / sp, the engine trains with the whole world (e043). With both, a mesh is built (e042);
    the compile pass autosp builds its own groups."""
    size = view.number("sequence_parallel_size")
    autosp = view.flag("compile.deepcompile") and "autosp" in compile_passes(view)
    if size and size > 1 and not view.has("data_parallel_size") and not autosp:
        yield Hit("/sequence_parallel_size", at_key=True)


@rule(
    "ZT811",
    "sequence-parallel-mesh",
    ERROR,
    keys=("sequence_parallel_size", "data_parallel_size"),
    message="data_parallel_size {data} x sequence_parallel_size {sequence} is more than the {world} ranks",
    help="their product is the number of ranks",
    source="deepspeed 0.19.8 __init__.py:543, torch.distributed.device_mesh",
    bad=[raw({"sequence_parallel_size": 4, "data_parallel_size": 2}, world_size=4)],
    good=[raw({"sequence_parallel_size": 2, "data_parallel_size": 2}, world_size=4)],
)
def sequence_parallel_mesh(view):
    """A RuntimeError of the device mesh when the engine is built."""
    sequence, data, world = (
        view.number("sequence_parallel_size"),
        view.number("data_parallel_size"),
        view.context.world_size,
    )
    if sequence and data and world and sequence * data > world:
        yield Hit("/data_parallel_size", {"data": data, "sequence": sequence, "world": world})
