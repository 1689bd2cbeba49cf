"""Keys by DeepSpeed version: changes that were looked up in the released packages, and what validate says of them."""

from __future__ import annotations

import json

import pytest

from zerotune.cli import run
from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR, WARNING
from zerotune.ds_config.fixing import fix
from zerotune.ds_config.history import dated, table, versions
from zerotune.ds_config.rules import all_rules
from zerotune.ds_config.schema import fields, listed, schema

MICRO = {"train_micro_batch_size_per_gpu": 1}


def found(config: dict, version: str, *rules: str) -> list:
    findings = check({**MICRO, **config}, Context(entry="raw", versions={"deepspeed": version}))
    return [finding for finding in findings if finding.rule in rules]


# config, last version without the key, first with it, severity where it is missing
CAME = [
    ({"torch_autocast": {"enabled": True}}, "0.17.1", "0.17.2", WARNING),
    ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "0.17.4", "0.17.5", ERROR),
    ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, "0.17.6", "0.18.0", ERROR),
    ({"compile": {"deepcompile": False}}, "0.16.5", "0.16.6", WARNING),
    ({"compile": {"passes": ["z1"]}}, "0.18.8", "0.18.9", ERROR),
    ({"bf16": {"check_grad_overflow": True}}, "0.17.0", "0.17.1", WARNING),
    ({"tensor_parallel": {"autotp_size": 2}}, "0.16.3", "0.16.4", WARNING),
    ({"log_level": "info"}, "0.19.2", "0.19.3", WARNING),
    ({"data_types": {"param_dtype": "bf16"}}, "0.19.1", "0.19.2", WARNING),
]
# config, last version with the key, first without it
WENT = [
    ({"nebula": {"enabled": False}}, "0.19.6", "0.19.7"),
    ({"compression_training": {}}, "0.19.6", "0.19.7"),
    ({"sparse_attention": {"mode": "fixed"}}, "0.19.6", "0.19.7"),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "0.19.6", "0.19.7"),
    ({"elasticity": {"enabled": False}}, "0.19.7", "0.19.8"),
    ({"amp": {"enabled": False, "opt_level": "O1"}}, "0.19.7", "0.19.8"),
    ({"sparse_gradients": False}, "0.19.7", "0.19.8"),
    ({"progressive_layer_drop": {"enabled": False, "theta": 0.5}}, "0.19.7", "0.19.8"),
]


@pytest.mark.parametrize(("config", "without", "with_it", "severity"), CAME)
def test_a_key_that_came(config, without, with_it, severity):
    findings = found(config, without, "ZT101", "ZT102", "ZT103")
    assert [(finding.rule, finding.severity) for finding in findings] == [("ZT103", severity)]
    assert f"DeepSpeed {without} (new in {with_it})" in findings[0].message
    assert found(config, with_it, "ZT101", "ZT102", "ZT103") == []


@pytest.mark.parametrize(("config", "with_it", "without"), WENT)
def test_a_key_that_went_and_is_refused(config, with_it, without):
    assert found(config, with_it, "ZT101", "ZT102", "ZT103", "ZT104") == []
    findings = found(config, without, "ZT101", "ZT102", "ZT103", "ZT104")
    assert [(finding.rule, finding.severity) for finding in findings] == [("ZT104", ERROR)]
    assert f"removed in DeepSpeed {without}" in findings[0].message


def test_a_key_that_was_renamed_is_mended():
    config = {"seq_parallel_comm_data_type": "fp32"}
    assert found(config, "0.16.4", "ZT102", "ZT103") == []
    (finding,) = found(config, "0.16.5", "ZT102", "ZT103")
    assert finding.severity == WARNING and "removed in 0.16.5" in finding.message
    text = json.dumps({**MICRO, **config})
    mended = fix(text, Context(entry="raw", versions={"deepspeed": "0.19.8"}), unsafe=True).text
    assert json.loads(mended)["seq_parallel_communication_data_type"] == "fp32"


def test_an_optimizer_that_went():
    config = {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 100}}}
    assert found(config, "0.19.6", "ZT601") == []
    assert [finding.severity for finding in found(config, "0.19.7", "ZT601")] == [ERROR]


def test_unknown_keys_of_a_block_that_pydantic_reads_since_0_17_1():
    config = {"fp16": {"enabled": True, "bogus": 1}}
    assert [f.severity for f in found(config, "0.17.0", "ZT103")] == [WARNING]
    assert [f.severity for f in found(config, "0.17.1", "ZT103")] == [ERROR]


def test_did_you_mean_names_keys_of_that_version_only():
    config = {"torch_autocastt": {"enabled": True}}
    assert "torch_autocast?" in found(config, "0.18.0", "ZT102")[0].help
    assert all("torch_autocast" not in finding.help for finding in found(config, "0.16.4", "ZT102", "ZT103"))


@pytest.mark.parametrize(
    ("path", "version", "default"),
    [
        ("gradient_clipping", "0.19.2", 0.0),
        ("gradient_clipping", "0.19.3", 1.0),
        ("zero_optimization.offload_optimizer.pin_memory", "0.19.4", False),
        ("zero_optimization.offload_optimizer.pin_memory", "0.19.5", True),
        ("bf16.immediate_grad_update", "0.16.4", False),
        ("bf16.immediate_grad_update", "0.17.0", True),
        ("bf16.check_grad_overflow", "0.19.2", False),
        ("elasticity.micro_batch_sizes", "0.19.7", [2, 4, 6]),
    ],
)
def test_defaults_by_version(path, version, default):
    assert fields(version)[path].node["default"] == default


@pytest.mark.parametrize(
    "config", [{"data_types": {"param_dtype": "bf16"}}, {"checkpoint": {"writer": {"type": "fast"}}}]
)
def test_values_of_keys_that_a_version_ignores_are_no_errors(config):
    # Seen on the engines: 0.16.9 accepts both.
    findings = check({**MICRO, **config}, Context(entry="raw", versions={"deepspeed": "0.16.9"}))
    assert {finding.severity for finding in findings} == {WARNING}
    findings = check({**MICRO, **config}, Context(entry="raw", versions={"deepspeed": "0.19.8"}))
    assert ERROR in {finding.severity for finding in findings}


def test_a_cyclic_dict_ends_for_an_old_version_too():
    config = {**MICRO, "zero_optimization": {}}
    config["zero_optimization"]["zero_optimization"] = config
    assert check(config, Context(entry="raw", versions={"deepspeed": "0.16.9"}))


def test_clipping_by_default_began_in_0_19_3():
    assert found({}, "0.19.2", "ZT850") == []
    assert len(found({}, "0.19.3", "ZT850")) == 1


def test_bounds_by_version():
    zero = {"zero_optimization": {"reduce_bucket_size": 0}}
    assert found(zero, "0.19.5", "ZT112") == []
    assert [finding.severity for finding in found(zero, "0.19.6", "ZT112")] == [ERROR]


def test_versions_outside_the_table():
    assert listed("0.15.4") == "0.16.0"
    assert listed("0.18.9+cu12") == listed("0.18.9.post1") == "0.18.9"
    assert listed("1.0.0") == listed(None) == versions()[-1] == schema()["x-deepspeed"]
    assert len(found({}, "0.15.4", "ZT904")) == 1
    assert found({}, "0.18.9", "ZT904") == []


def test_refused_keys_are_those_of_the_schema():
    ours = {path: field.node["x-removed"] for path, field in fields().items() if "x-removed" in field.node}
    assert ours == {path: entry["refused"] for path, entry in table().items() if "refused" in entry}


@pytest.mark.parametrize("version", ["0.16.0", "0.17.1", "0.18.9", "0.19.6", "0.19.7", "0.19.8"])
def test_a_schema_has_no_key_of_another_version(version):
    assert not [path for path in fields(version) if dated(path, version) and "not" not in fields(version)[path].node]
    assert len(fields(version)) > 300


def test_examples_crash_no_rule_in_old_versions():
    for rule in all_rules().values():
        for case in rule.bad:
            context = Context(**{**case.context, "versions": {"deepspeed": "0.16.0"}})
            assert "ZT000" not in {finding.rule for finding in check(case.full(), context)}, rule.id


def test_the_option_of_every_command(capsys, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**MICRO, "elasticity": {"enabled": False}, "gradient_clipping": 1.0}))
    assert run(["validate", str(path), "--entry", "raw", "--deepspeed-version", "0.19.6"]) == 0
    assert run(["validate", str(path), "--entry", "raw", "--deepspeed-version", "0.19.8"]) == 1
    assert run(["validate", str(path), "--deepspeed-version", "new"]) == 2
    capsys.readouterr()
    assert run(["schema", "--deepspeed-version", "0.18.9"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["x-deepspeed"] == "0.18.9" and "not" not in made["properties"]["elasticity"]
    assert made["properties"]["gradient_clipping"]["x-default-by-version"] == {"below 0.19.3": 0.0}
    assert run(["explain", "elasticity.max_gpus", "--deepspeed-version", "0.18.9"]) == 0
    assert "removed in 0.19.8" in capsys.readouterr().out
    assert run(["generate", "stage3", "--deepspeed-version", "0.16.0"]) == 0


def test_generate_refuses_a_key_that_the_version_lacks(tmp_path):
    from zerotune.commands.generate import refuse_other_keys
    from zerotune.errors import UsageError

    with pytest.raises(UsageError, match=r"new in 0\.17\.5"):
        refuse_other_keys('{"zero_optimization": {"stage": 2, "zenflow": {}}}', "0.17.4")
