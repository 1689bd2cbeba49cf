"""Every key with odd values, through DeepSpeed's own parser: what it refuses has an error-level finding.

Where the parser takes what we call an error, the rule must be one of those about a later phase: the engine's
initialization or its first step. test_rule_examples.py tries these on a real engine.
"""

from __future__ import annotations

import copy
import logging

import pytest

pytest.importorskip("deepspeed")

from tests.engine.border_configs import put
from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR
from zerotune.ds_config.schema import fields

VALUES = [True, False, 0, 1, 3, -1, 1.0, 1.5, 0.5, "1", "x", "false", "auto", None, [], ["a"], {}, {"a": 1}]
VALUES += [10**30, float("nan"), float("inf"), "cpu", "bf16"]
# The switch is refused by the machine, not by the parser: GPUDirect Storage needs CUDA.
BY_MACHINE = {"aio.use_gds"}
# Rules about what comes after the parser.
LATER = {
    "ZT203",
    "ZT404",
    "ZT408",
    "ZT409",
    "ZT410",
    "ZT543",
    "ZT541",
    "ZT542",
    "ZT545",
    "ZT546",
    "ZT549",
    "ZT601",
    "ZT605",
}
LATER |= {
    "ZT806",
    "ZT620",
    "ZT621",
    "ZT703",
    "ZT704",
    "ZT705",
    "ZT720",
    "ZT804",
    "ZT841",
    "ZT842",
    "ZT846",
    "ZT847",
    "ZT851",
}
# Values of these are read first by the scheduler, the optimizer or the step.
LATE_VALUES = (
    "optimizer.",
    "scheduler.",
    "gradient_clipping",
    "gradient_predivide_factor",
    "steps_per_print",
    "log_level",
)
LATE_VALUES += ("data_types.", "sequence_parallel_size", "data_parallel_size", "gradient_accumulation_steps")
LATE_VALUES += ("train_micro_batch_size_per_gpu",)


def configs(path: str):
    stages = (0, 2, 3) if path.startswith("zero_optimization.") else (2,)
    for value in VALUES:
        for stage in stages:
            config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
            put(config, path, value)
            yield config


def parser_refuses(config: dict) -> str | None:
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(copy.deepcopy(config))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return None


@pytest.mark.parametrize("path", [path for path in fields() if path not in BY_MACHINE])
def test_key(path):
    from deepspeed.utils import logger

    logger.setLevel(logging.CRITICAL)
    for config in configs(path):
        refusal = parser_refuses(config)
        findings = check(config, Context(entry="raw", world_size=1))
        errors = {finding.rule for finding in findings if finding.severity == ERROR}
        assert "ZT000" not in {finding.rule for finding in findings}, config
        if refusal:
            assert errors, (config, refusal)
        elif not path.startswith(LATE_VALUES):
            assert errors <= LATER, (config, errors)
