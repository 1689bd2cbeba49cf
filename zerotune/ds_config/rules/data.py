"""ZT845, ZT853, ZT854: data efficiency and the autotuner."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .features import raw
from .rule import Hit, rule


@rule(
    "ZT845",
    "curriculum-inner-switch",
    WARNING,
    keys=("data_efficiency.enabled",),
    message="data_efficiency is off, but the curriculum inside it is on, and only that counts",
    help="switch the inner one off too",
    source="deepspeed 0.19.8 runtime/engine.py",
    bad=[
        raw(
            {"data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": True, "curriculum_metrics": {}}}}}
        )
    ],
    good=[raw({"data_efficiency": {"enabled": False, "data_sampling": {"curriculum_learning": {"enabled": False}}}})],
)
def curriculum_inner_switch(view):
    """The engine goes on to read the curriculum's data (e055)."""
    inner = view.get("data_efficiency.data_sampling.curriculum_learning.enabled")
    if view.has("data_efficiency") and not view.get("data_efficiency.enabled") and inner is True:
        yield Hit("/data_efficiency", at_key=True)


@rule(
    "ZT853",
    "autotuning-folder",
    ERROR,
    keys=("autotuning.results_dir", "autotuning.exps_dir"),
    message="{key} is {value}; it must name a folder",
    help="write a folder, or delete the key",
    source="deepspeed 0.19.8 autotuning/config.py:39",
    bad=[raw({"autotuning": {"results_dir": ""}})],
    good=[raw({"autotuning": {"results_dir": "autotuning_results"}})],
)
def autotuning_folder(view):
    """An assertion in the parser, whether autotuning is on or not."""
    for name in ("results_dir", "exps_dir"):
        if name in view.block("autotuning") and not view.get(f"autotuning.{name}"):
            yield Hit(f"/autotuning/{name}")


@rule(
    "ZT855",
    "autotuning-exits",
    WARNING,
    keys=("autotuning.enabled", "autotuning.end_profile_step"),
    message="with autotuning.enabled every run exits after step {last}",
    help="switch it off, unless the launcher runs it with --autotuning",
    source="deepspeed 0.19.8 runtime/engine.py:3657, 3705",
    bad=[raw({"autotuning": {"enabled": True}})],
    good=[raw({"autotuning": {"enabled": False}})],
)
def autotuning_exits(view):
    """The engine measures, writes autotuning_metric.json, and calls exit() one step after end_profile_step; there is no
    checkpoint and no error."""
    last = view.get("autotuning.end_profile_step", 5)
    if view.flag("autotuning.enabled") and isinstance(last, int):
        yield Hit("/autotuning/enabled", {"last": last + 1})


@rule(
    "ZT854",
    "data-efficiency-argument",
    ERROR,
    keys=("data_efficiency.data_sampling.curriculum_learning", "data_efficiency.data_sampling.dynamic_batching"),
    message="{key} is on, but {name} is missing",
    help="add {name}, or switch it off",
    source="deepspeed 0.19.8 runtime/data_pipeline/config.py",
    bad=[raw({"data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True}}}})],
    good=[raw({"data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True, "max_tokens": 512}}}})],
)
def data_efficiency_argument(view):
    """Assertions in the parser, whether data_efficiency itself is on or not."""
    needed = {"curriculum_learning": "curriculum_metrics", "dynamic_batching": "max_tokens"}
    for block, name in needed.items():
        path = f"data_efficiency.data_sampling.{block}"
        if view.get(f"{path}.enabled") and name not in view.block(path):
            yield Hit("/" + path.replace(".", "/"), {"name": name}, at_key=True)
