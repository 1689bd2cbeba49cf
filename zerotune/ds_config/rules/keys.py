"""ZT1xx, first part: keys that the engine doesn't know, or knew once."""

from __future__ import annotations

from itertools import islice

from ..document import dotted, join, split
from ..finding import ERROR, WARNING, Fix
from ..schema import fields
from ..view import MISSING
from .key_advice import home_of, misspelt_as, nearest_key, of_other_version, other_version, place, renaming
from .rule import Hit, case, rule

MOST_ADVISED = 500  # unknown keys that are compared with the known ones; nobody reads so much advice
CONFIG = "deepspeed 0.19.8 runtime/config.py (open top level), runtime/config_utils.py:110 (extra='forbid')"


def unknown(view):
    """Unknown keys with what the engine does about them: (violation, name, block path, severity)."""
    for violation in view.violations:
        if violation.kind != "unknown":
            continue
        name = split(violation.pointer)[-1]
        where = dotted(violation.pointer.rpartition("/")[0])
        refused = violation.node.get("x-unknown") == "refused"
        if refused or not name.startswith(("_", "//", "#", "$")):
            yield violation, name, where, ERROR if refused else WARNING


def does(severity: str) -> str:
    return "DeepSpeed refuses it" if severity == ERROR else "DeepSpeed ignores it without a word"


@rule(
    "ZT101",
    "misplaced-key",
    WARNING,
    keys=("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
    message="{name} belongs under {home}, not under {where}: {does}",
    help="move it to {target}",
    source=CONFIG,
    bad=[
        case({"offload_optimizer": {"device": "cpu"}}),
        case({"zero_optimization": {"gradient_clipping": 1.0}}),
        case({"optimizer": {"type": "AdamW", "lr": 0.001}}, entry="raw"),
    ],
    good=[case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})],
)
def misplaced_key(view):
    """The key exists, in another block. Where it stands the engine ignores or refuses it (a032, c051)."""
    for violation, name, where, severity in unknown(view):
        blocks = [] if other_version(view, name, where) else home_of(name, where, view.deepspeed)
        if blocks:
            target = ".".join(filter(None, (blocks[0], name)))
            pointer = join("", target.replace(".", "/")).replace("~1", "/")
            facts = {"name": name, "where": place(where), "does": does(severity), "target": target}
            facts["home"] = " or ".join(map(place, blocks))
            free = view.get(target, MISSING) is MISSING and len(blocks) == 1
            yield Hit(
                violation.pointer,
                facts,
                at_key=True,
                severity=severity,
                fix=Fix("move", violation.pointer, pointer) if free else None,
            )


@rule(
    "ZT102",
    "misspelt-key",
    WARNING,
    keys=("gradient_clipping", "gradient_accumulation_steps"),
    message="{name} is no key of {where}: {does}",
    help="did you mean {meant}?",
    source=CONFIG,
    bad=[
        case({"gradient_cliping": 0.5}),
        case({"Zero_Optimization": {"stage": 2}}, entry="raw"),
        case({"bf16": {"enable": True}}),
        case({"checkpoint": {"load_universal_checkpoint": True}}),
        case({"batch_size": 8, "max_grad_norm": 1.0}),
    ],
    good=[case({"gradient_clipping": 0.5})],
)
def misspelt_key(view):
    """One or two letters off, or in the wrong case. The top level is an open dict: nothing there is refused (a001)."""
    version = view.deepspeed
    for violation, name, where, severity in islice(unknown(view), MOST_ADVISED):
        elsewhere = other_version(view, name, where) or home_of(name, where, version)
        meant = None if elsewhere else misspelt_as(name, where, violation.value, version)
        if meant:
            facts = {"name": name, "where": place(where), "does": does(severity), "meant": meant}
            fix = None if meant in view.block(where or "") else Fix("rename", violation.pointer, meant)
            yield Hit(violation.pointer, facts, at_key=True, severity=severity, fix=fix)


@rule(
    "ZT103",
    "unknown-key",
    WARNING,
    keys=(),
    message="{name} is no key of {where}{when}: {does}",
    help="{todo}",
    source=CONFIG,
    bad=[
        case({"totally_unknown": 1}),
        case({"zero_optimization": {"totally_unknown": 1}}),
        case({"torch_autocast": {"enabled": True}}, entry="raw", versions={"deepspeed": "0.16.4"}),
    ],
    good=[case({"_comment": "keys that start with _ or // are left alone where the engine ignores them"})],
)
def unknown_key(view):
    """A key that this version doesn't read. Blocks of two kinds: pydantic ones refuse it, plain ones ignore it."""
    for at, (violation, name, where, severity) in enumerate(unknown(view)):
        facts = {"name": name, "where": place(where), "does": does(severity)}
        entry = other_version(view, name, where)
        if entry:
            facts |= of_other_version(entry, view.deepspeed)
        elif home_of(name, where, view.deepspeed):
            continue
        elif at >= MOST_ADVISED:
            facts |= {"when": "", "todo": "delete it"}
        elif misspelt_as(name, where, violation.value, view.deepspeed):
            continue
        else:
            facts |= {"when": "", "todo": nearest_key(name, view.deepspeed)}
        fix = renaming(entry, violation.pointer, view) if entry else None
        yield Hit(violation.pointer, facts, at_key=True, severity=severity, fix=fix)


@rule(
    "ZT104",
    "removed-key",
    ERROR,
    keys=tuple(field.path for field in fields().values() if "x-removed" in field.node),
    message="{key} was removed in DeepSpeed {removed}, which refuses it even when it is switched off",
    help="delete it. {what}",
    source="deepspeed 0.19.8 runtime/config.py:133, github.com/deepspeedai/DeepSpeed/issues/8489",
    bad=[case({"elasticity": {"enabled": False}}), case({"zero_optimization": {"stage": 3, "mics_shard_size": None}})],
    good=[
        case({"elasticity": {"enabled": False}}, versions={"deepspeed": "0.19.7"}),
        case({"nebula": {"enabled": False}}, versions={"deepspeed": "0.19.6"}),
    ],
)
def removed_key(view):
    """Features that went: the parser raises DeepSpeedConfigError on the mere key (a056 to a069)."""
    for violation in view.violations:
        if violation.kind == "not":
            facts = {"removed": violation.node["x-removed"], "what": violation.node["description"]}
            yield Hit(violation.pointer, facts, at_key=True, fix=Fix("remove", violation.pointer))


@rule(
    "ZT108",
    "two-names-of-one-key",
    ERROR,
    keys=tuple(field.path for field in fields().values() if "x-alias-of" in field.node),
    message="{name} and {other} are the same key: DeepSpeed refuses both together",
    help="keep {other}",
    source="deepspeed 0.19.8 runtime/config_utils.py (populate_by_name, extra='forbid')",
    bad=[case({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5, "stage3_prefetch_bucket_size": 5}})],
    good=[case({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5}})],
)
def two_names_of_one_key(view):
    """A ValidationError in the parser: the second one counts as unknown."""
    for path, field in fields(view.deepspeed).items():
        other = field.node.get("x-alias-of")
        if not other:
            continue
        twin = f"{field.where}.{other}"
        # Plain DeepSpeed drops "auto" before it looks.
        dropped = view.raw and "auto" in (view.get(path), view.get(twin))
        if view.has(path) and view.has(twin) and not dropped:
            pointer = join("", path).replace(".", "/")
            yield Hit(pointer, {"name": field.name, "other": other}, at_key=True, fix=Fix("remove", pointer))
