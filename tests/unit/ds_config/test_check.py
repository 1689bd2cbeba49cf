"""check() as other code uses it: sources of every kind, purity, places, severities by entry point."""

from __future__ import annotations

import copy
import dataclasses
import json
import time

import pytest

from zerotune.ds_config import Context, check, has_errors, render, resolve, template_names
from zerotune.ds_config.rules import all_rules

GUIDE = '{\n  "zero_optimization": {"stage": 2},\n  "offload_optimizer": {"device": "cpu"}\n}\n'


def rules(source, **context) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in check(source, Context(**context))}


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("flags", [{}, {"bf16": True}, {"fp16": True}, {"max_grad_norm": 0.5, "learning_rate": 1e-4}])
def test_templates_are_clean(name, flags):
    assert check(resolve(name), Context(training_args=flags, world_size=8)) == []
    assert check(resolve(name)) == []


def test_the_same_findings_from_text_and_dict():
    text = '{"zero_optimization": {"stage": 2}, "gradient_cliping": 1, "fp16": true}'
    from_text, from_dict = check(text), check(json.loads(text))
    assert [f.rule for f in from_dict] and {f.rule for f in from_text} == {f.rule for f in from_dict}
    assert all(f.line is None for f in from_dict)
    assert all(f.line == 1 for f in from_text if f.pointer)


def test_a_dict_is_not_changed():
    config = {"zero_optimization": {"stage": "2", "cpu_offload": True}, "bf16": True}
    before = copy.deepcopy(config)
    check(config)
    assert config == before


def test_misplaced_block_of_the_guide():
    finding = next(f for f in check(GUIDE) if f.rule == "ZT101")
    assert (finding.line, finding.column, finding.pointer) == (3, 3, "/offload_optimizer")
    assert "belongs under zero_optimization" in finding.message
    assert finding.fix.action == "move"


def test_a_cycle_and_keys_that_are_no_text():
    config = {"zero_optimization": {"stage": 2}, 3: 4, "f": {1.5: set()}}
    config["self"] = config
    assert {"ZT021", "ZT022"} <= set(rules(config))


@pytest.mark.parametrize("source", [None, 3, "", "[]", "null", [], object(), {"a": object()}, {}])
def test_anything_else_is_a_finding(source):
    assert has_errors(check(source))


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), -(10**30), "\ud800", "x" * 100_000])
def test_odd_values_are_judged(value):
    check({"zero_optimization": {"stage": value, "reduce_bucket_size": value}, "gradient_clipping": value})
    assert "ZT000" not in rules({"optimizer": {"type": value, "params": {"lr": value}}, "train_batch_size": value})


def test_hjson_is_a_warning_for_plain_deepspeed_and_an_error_for_the_trainer():
    text = '{\n  "train_batch_size": 8, // note\n  "gradient_clipping": 1, "zero_optimization": {"stage": 2},\n}'
    assert rules(text, entry="raw") == {"ZT004": "info", "ZT012": "warning"}
    assert rules(text)["ZT004"] == "error"


def test_duplicate_keys_the_other_way_round():
    text = '{"train_batch_size": 8, "train_batch_size": 8, "zero_optimization": {"stage": 2}}'
    assert rules(text, entry="raw")["ZT024"] == "error"
    assert rules(text)["ZT024"] == "warning"


@pytest.mark.parametrize(
    ("block", "advice"),
    [
        ({"fp16": {"loss_scale": "dynamic"}}, "write 0: the scale is dynamic then"),
        ({"zero_optimization": {"reduce_bucket_size": "2e8"}}, "write 200000000, without quotes"),
        ({"zero_optimization": {"sub_group_size": "1,000"}}, "write 1000, without quotes"),
        ({"zero_optimization": {"offload_param": {"device": "cuda"}}}, 'write "none" or "cpu" or "nvme"'),
        ({"zero_optimization": {"offload_param": {"device": "nvmee"}}}, 'write "nvme"'),
        (
            {"zero_optimization": {"offload_param": {"device": "CPU"}}},
            'write "cpu"; the case of the letters counts',
        ),
    ],
)
def test_help_names_the_value_that_was_meant(block, advice):
    assert advice in [finding.help for finding in check(block)]


@pytest.mark.parametrize(("value", "severity"), [(1_000_000_000, "info"), (5, "warning")])
def test_a_key_of_another_stage_is_named_even_where_it_repeats_the_default(value, severity):
    assert rules({"zero_optimization": {"stage": 2, "stage3_max_live_parameters": value}})["ZT530"] == severity


def test_broken_text_is_not_judged_further():
    assert set(rules('{"zero_optimization": {"stage": 9}, "a": ')) == {"ZT016"}


def test_every_fight_with_the_flags_at_once_both_sides_shown():
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 99,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    flags = {"per_device_train_batch_size": 8, "learning_rate": 1e-4}
    found = [f for f in check(config, Context(training_args=flags, world_size=2)) if f.rule == "ZT210"]
    assert len(found) == 9
    message = next(f.message for f in found if f.pointer.endswith("/lr"))
    assert "0.001" in message and "--learning_rate is 0.0001" in message
    assert "(its default)" in next(f.message for f in found if f.pointer == "/gradient_clipping")


def test_explicit_names_decide_what_counts_as_typed():
    config = {"zero_optimization": {"stage": 2}, "train_batch_size": "auto", "gradient_clipping": 0.5}
    arguments = {"max_grad_norm": 1.0}
    for explicit, said in ((None, False), (frozenset(), True), (frozenset({"max_grad_norm"}), False)):
        finding = next(
            f for f in check(config, Context(training_args=arguments, explicit=explicit)) if f.rule == "ZT210"
        )
        assert ("(its default)" in finding.message) is said


def test_unknown_entry_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="entry"):
        check({}, Context(entry="trainr"))


def test_a_crashing_rule_becomes_a_finding(monkeypatch):
    def crash(view):
        raise RuntimeError("boom")

    broken = dataclasses.replace(all_rules()["ZT401"], find=crash)
    monkeypatch.setattr("zerotune.ds_config.checking.all_rules", lambda: {"ZT401": broken})
    (finding,) = check({"zero_optimization": {"stage": 2}})
    assert finding.rule == "ZT000" and "boom" in finding.message


def test_render_shows_place_excerpt_caret_and_summary():
    text = render.text(check(GUIDE), "ds.json", GUIDE)
    assert "ds.json:3:3: warning: offload_optimizer belongs under zero_optimization" in text
    assert '    3 |   "offload_optimizer": {"device": "cpu"}' in text
    assert "      |   ^^^^^^^^^^^^^^^^^^^" in text
    assert text.splitlines()[-1] == "ds.json: 1 error, 1 warning"


def test_render_of_a_long_line_stays_short():
    source = '{"zero_optimization": {"stage": 2}, "a": [' + "1, " * 2000 + '1], "train_batch_sise": 4}'
    lines = render.text(check(source), "x", source).splitlines()
    assert max(map(len, lines)) < 200
    excerpt = next(line for line in lines if "train_batch_sise" in line and "|" in line)
    caret = lines[lines.index(excerpt) + 1]
    assert excerpt[caret.index("^") :].startswith('"train_batch_sise"')


def test_findings_are_data():
    (record,) = [f.as_dict() for f in check(GUIDE) if f.rule == "ZT101"]
    assert json.loads(json.dumps(record))["fix"]["action"] == "move"


def test_thousands_of_unknown_keys_and_endless_numbers():
    start = time.process_time()
    findings = check({"zero_optimization": {f"stag{at}": 1 for at in range(5000)}})
    assert time.process_time() - start < 1.0
    assert sum(finding.slug in ("unknown-key", "misspelt-key") for finding in findings) == 5000
    findings = check({"train_batch_size": 10**5000})
    assert findings and not any(finding.rule == "ZT000" for finding in findings)
    assert all(json.dumps(finding.as_dict()) for finding in findings)
