"""Random files of `accelerate config` through accelerate's launcher and plugin, against the validator's own reading.

The launcher runs up to the environment that it gives the ranks, the plugin is built in that environment; nothing is
started. What they refuse must be an error-level finding and the other way round, and the dicts must be equal.
"""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest
import yaml

pytest.importorskip("accelerate")

from accelerate.commands import launch
from accelerate.utils import launch as launching
from accelerate.utils.dataclasses import DeepSpeedPlugin

from zerotune.ds_config import Context, ResolvedConfig, accelerate_keys, check
from zerotune.ds_config.accelerate_file import _File
from zerotune.ds_config.yaml_reading import parse_yaml

REFUSED = {"ZT026", "ZT730", "ZT732", "ZT733"}
TOP = {
    "compute_environment": ["LOCAL_MACHINE"],
    "mixed_precision": ["no", "fp16", "bf16", "BF16", None, False, "bf17", 16],
    "num_processes": [1, 8, 16],
    "num_machines": [1, 2],
    "machine_rank": [0],
    "main_training_function": ["main"],
    "downcast_bf16": ["no"],
    "use_cpu": [False],
    "debug": [False, True],
    "fp16": [True, False],
    "zero_stage": [2],
    "num_procesess": [4],
}
BLOCK = {
    "zero_stage": [0, 1, 2, 3, "3", 3.0, None, "auto", True, 4, ""],
    "offload_optimizer_device": ["none", "cpu", "nvme", "CPU", None, "gpu"],
    "offload_param_device": ["none", "cpu", "nvme", None],
    "offload_optimizer_nvme_path": ["/nvme", None],
    "offload_param_nvme_path": ["/nvme", None],
    "gradient_accumulation_steps": [1, 4, "4", "auto", 1.5, None, -1, True, ""],
    "gradient_clipping": [1.0, 0, 0.0, 0.5, "auto", "Auto", "0.5", None, "much", 1e9, True],
    "zero3_init_flag": [True, False, "true", "maybe", None, 1, "False"],
    "zero3_save_16bit_model": [True, False, "true", "yes", None],
    "deepspeed_multinode_launcher": ["standard", "pdsh", None],
    "deepspeed_moe_layer_cls_names": ["MixtralSparseMoeBlock"],
    "zero_stag": [3],
}


def draw(random_: random.Random) -> dict:
    file: dict = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {}}
    for name in random_.sample(sorted(TOP), random_.randint(0, 3)):
        file[name] = random_.choice(TOP[name])
    for name in random_.sample(sorted(BLOCK), random_.randint(0, 4)):
        file["deepspeed_config"][name] = random_.choice(BLOCK[name])
    return file


@pytest.fixture
def accelerates(monkeypatch, tmp_path):
    """file -> the dict that accelerate builds, or the exception that it stops with."""
    monkeypatch.setattr(launching, "is_port_in_use", lambda port: False)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    path = tmp_path / "accelerate.yaml"

    def run(text: str):
        path.write_text(text)
        for name in set(os.environ) - set(clean):
            monkeypatch.delenv(name)
        try:
            args = launch.launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
            args, defaults, named = launch._validate_launch_command(args)
            fields = [*defaults.deepspeed_config, *(["mixed_precision"] if named else [])]
            args.deepspeed_fields_from_accelerate_config = ",".join(fields)
            _, environment = launching.prepare_deepspeed_cmd_env(args)
            for name in set(environment) - set(clean):
                monkeypatch.setenv(name, environment[name])
            plugin = DeepSpeedPlugin()
            plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
        except Exception as problem:
            return problem
        return plugin.deepspeed_config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield run


def errors(text: str) -> set[str]:
    found = check(text, Context(entry="accelerate"))
    assert "ZT000" not in {finding.rule for finding in found}, text
    return {finding.rule for finding in found} & REFUSED


@pytest.mark.parametrize("seed", range(8))
def test_the_dict_is_the_plugins(accelerates, seed):
    random_ = random.Random(seed)
    refused = 0
    for _ in range(60):
        text = yaml.safe_dump(draw(random_))
        theirs = accelerates(text)
        if isinstance(theirs, Exception):
            refused += 1
            assert errors(text), f"{text}\naccelerate: {theirs!r}"
        else:
            assert not errors(text), text
            assert _File(parse_yaml(text)).engine_dict() == theirs, text
    assert 5 < refused < 55, "the draw should hold both kinds"


@pytest.mark.parametrize("name", [*sorted(BLOCK), "mixed_precision"])
@pytest.mark.parametrize("empty", [False, True])
def test_what_may_stand_beside_the_json_file(accelerates, tmp_path, name, empty):
    ds = tmp_path / "ds.json"
    ds.write_text('{"zero_optimization": {"stage": 2}}')
    file = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {"deepspeed_config_file": str(ds)}}
    where = file if name == "mixed_precision" else file["deepspeed_config"]
    where[name] = None if empty else (TOP | BLOCK)[name][0]
    text = yaml.safe_dump(file)
    theirs = accelerates(text)
    assert isinstance(theirs, Exception) == ("ZT732" in errors(text)), f"{text}\naccelerate: {theirs!r}"


@pytest.mark.parametrize(
    "text", ["num_processes: 2\n", "distributed_type: DEEPSPED\n", "a: 1\n\tb: 2\n", "- 1\n", "3: 4\n"]
)
def test_files_that_stop_the_launch(accelerates, text):
    assert isinstance(accelerates(text), Exception)
    assert any(one.severity == "error" for one in check(as_file(text), Context(entry="accelerate")))


def as_file(text: str) -> ResolvedConfig:
    return ResolvedConfig("accelerate.yaml", Path("accelerate.yaml"), text, {})


def test_the_names_are_accelerates():
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import DistributedType
    from accelerate.utils.constants import DEEPSPEED_MULTINODE_LAUNCHERS

    old = {"fp16", "dynamo_backend"}
    assert set(accelerate_keys.TOP_KEYS) == set(ClusterConfig.__dataclass_fields__) | old
    assert set(accelerate_keys.DISTRIBUTED_TYPES) == {kind.value for kind in DistributedType}
    assert list(accelerate_keys.MULTINODE_LAUNCHERS) == DEEPSPEED_MULTINODE_LAUNCHERS
    group = next(g for g in launch.launch_command_parser()._action_groups if g.title == "DeepSpeed Arguments")
    assert set(accelerate_keys.DEEPSPEED_KEYS) == {action.dest for action in group._group_actions}
