"""ZT612 to ZT614: an optimizer that the program passes to deepspeed.initialize."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from ..optimizers import ZERO_TESTED
from .optimizer import ENGINE, optimizer
from .rule import Hit, case, rule


@rule(
    "ZT612",
    "client-optimizer-offload",
    ERROR,
    keys=("zero_force_ds_cpu_optimizer",),
    message="offload refuses the optimizer {name} that the program passes in",
    help='pass DeepSpeedCPUAdam, or add "zero_force_ds_cpu_optimizer": false',
    source=f"{ENGINE}:2340",
    bad=[case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, entry="raw",
              client_optimizer="AdamW")],
    good=[case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, entry="raw",
               client_optimizer="DeepSpeedCPUAdam")],
)  # fmt: skip
def client_optimizer_offload(view):
    """A ZeRORuntimeException, since PyTorch's optimizers are slow there (c059 to c061)."""
    client = view.context.client_optimizer
    if not view.raw or not client or client in ("DeepSpeedCPUAdam", "DeepSpeedCPULion"):
        return
    if view.device("offload_optimizer") in ("cpu", "nvme") and view.flag("zero_force_ds_cpu_optimizer", True):
        yield Hit("/zero_optimization/offload_optimizer", {"name": client}, at_key=True)


@rule(
    "ZT613",
    "client-optimizer-untested",
    ERROR,
    keys=("zero_allow_untested_optimizer",),
    message="ZeRO refuses the optimizer {name} that the program passes in",
    help='add "zero_allow_untested_optimizer": true',
    source=f"{ENGINE}:2290",
    bad=[case({"zero_optimization": {"stage": 2}}, entry="raw", client_optimizer="SGD")],
    good=[case({"zero_optimization": {"stage": 2}}, entry="raw", client_optimizer="AdamW")],
)
def client_optimizer_untested(view):
    """As for the config's optimizer; accelerate and the Trainer set the key themselves (d22)."""
    client = view.context.client_optimizer
    if (
        view.raw
        and client
        and client not in ZERO_TESTED
        and view.stage in (1, 2, 3)
        and not view.get("zero_allow_untested_optimizer")
    ):
        yield Hit("/zero_optimization/stage", {"name": client})


@rule(
    "ZT614",
    "two-optimizers",
    WARNING,
    keys=("optimizer",),
    message="the optimizer block {does}, because the program passes in {name}",
    help="delete one of the two",
    source=f"{ENGINE}:2328, accelerate 1.15 accelerator.py:2290",
    bad=[case(optimizer("AdamW"), entry="raw", client_optimizer="AdamW"),
         case(optimizer("AdamW"), entry="accelerate", client_optimizer="AdamW")],
    good=[case(optimizer("AdamW"), entry="raw"), case({}, entry="raw", client_optimizer="AdamW")],
)  # fmt: skip
def two_optimizers(view):
    """Plain DeepSpeed takes the client's without a word (c064); accelerate raises a ValueError."""
    client = view.context.client_optimizer
    if client and view.has("optimizer") and view.context.entry != "trainer" and client != "DummyOptim":
        does = "is ignored" if view.raw else "is refused by accelerate"
        yield Hit("/optimizer", {"does": does, "name": client}, at_key=True, severity=WARNING if view.raw else ERROR)
