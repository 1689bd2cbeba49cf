"""ZT4xx: fp16, bf16 and their kin."""

from __future__ import annotations

from ..finding import ERROR
from .rule import Hit, case, rule


@rule(
    "ZT401",
    "two-precisions",
    ERROR,
    keys=("fp16.enabled", "bf16.enabled"),
    message="fp16 and bf16 are both on",
    help="switch one of them off",
    source="deepspeed 0.19.8 runtime/config.py:511",
    bad=[
        case({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, entry="raw"),
        case({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, training_args={"bf16": True, "fp16": True}),
    ],
    good=[case({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, training_args={"bf16": True})],
)
def two_precisions(view):
    """An assertion in the parser (b001)."""
    if view.enabled("fp16") and (view.enabled("bf16") or (view.get("bf16") is None and view.enabled("bfloat16"))):
        yield Hit("/fp16/enabled")
