"""YAML: what is read, what is said about the rest, and how long hostile texts take."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import yaml

from zerotune.ds_config import Context, ResolvedConfig, check
from zerotune.ds_config.checking import view_of
from zerotune.ds_config.yaml_reading import parse_yaml

FILE = """\
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  gradient_accumulation_steps: 4
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def as_file(text: str) -> ResolvedConfig:
    return ResolvedConfig("a.yaml", Path("a.yaml"), text, {})


def found(text: str) -> list[tuple]:
    document = parse_yaml(text)
    return [(problem.code, *document.line_column(problem.start)) for problem in document.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("empty-file", 1, 1)]),
        ("# only a note\n", [("empty-file", 1, 1)]),
        ("a:\n\t- b: 1", [("yaml-reading", 2, 1)]),
        ("a: 1\tb", [("yaml-reading", 1, 5)]),
        ("a: 1\n---\nb: 2", [("yaml-reading", 2, 1)]),
        ("a: [1", [("yaml-reading", 1, 5)]),
        ("a: *nope", [("yaml-reading", 1, 4)]),
        ("a: &x [*x]", [("nesting", 1, 8)]),
        ("a: 1\na: 2", [("duplicate-key", 2, 1)]),
        ("3: 4\ntrue: 5", [("not-json-value", 1, 1), ("not-json-value", 2, 1)]),
        ("? [a, b]\n: 1", [("not-json-value", 1, 3)]),
        ("a: 2020-01-01", [("not-json-value", 1, 4)]),
        ("a: .nan", [("not-finite", 1, 4)]),
        ("a: !!python/object:os.system x", [("yaml-reading", 1, 4)]),
        ("a: !!set {b}", [("yaml-reading", 1, 4)]),
        ("a: !!float ''", [("yaml-reading", 1, 4)]),
        ("a: \x01", [("yaml-reading", 1, 4)]),
        ("\ud800: 1", [("yaml-reading", 1, 1)]),
        ("\ufeffa: 1", []),
    ],
)
def test_mistakes_have_their_place(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        "{a: " * 400,
        "- " * 10_000,
        "a: [\n" * 200,
        "? " * 10_000,
        "a:\n" * 10_000,
        "\n" * 30_000,
        "a: '" + "y " * 15_000 + "'",
        "a: |\n" + " x\n" * 10_000,
        "a: " + "1:" * 15_000 + "1",
        "a: 0b" + "1" * 30_000,
        "a: " + "9" * 30_000,
        "x" * 900_000,
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
            for before, name in zip("abcdefg", "bcdefgh", strict=True)
        ),
        "a: &a {x: 1}\n"
        + "".join(
            f"{name}: &{name}\n  <<: [{', '.join(['*' + before] * 9)}]\n"
            for before, name in zip("abcdefg", "bcdefgh", strict=True)
        ),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_texts_take_less_than_a_second(text):
    start = time.process_time()
    check(as_file(text))
    assert time.process_time() - start < 1


@pytest.mark.parametrize("seed", range(5))
def test_reads_what_safe_load_reads(seed):
    random_ = random.Random(seed)
    pieces = [
        "a",
        "b: ",
        "- ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "'",
        '"',
        "#",
        ":",
        "1",
        "true",
        "&x ",
        "*x",
        "\t",
        "|",
        "~",
        "<<: ",
    ]
    good = 0
    for _ in range(1500):
        text = "".join(random_.choice(pieces) for _ in range(random_.randint(1, 10)))
        document = parse_yaml(text)
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            assert document.problems or "<<" in text, repr(text)
            continue
        if not document.problems:
            good += 1
            assert document.value == value, repr(text)
        else:
            assert {"yaml-reading"} != {problem.code for problem in document.problems} or "*" in text, repr(text)
    assert good > 100


def test_merge_keys_and_aliases():
    text = "base: &base {a: 1, b: 2}\nmine:\n  <<: *base\n  b: 3\nagain: *base\n"
    assert parse_yaml(text).value == yaml.safe_load(text)


def test_findings_stand_where_the_value_came_from():
    wrong = FILE.replace("zero_stage: 3", "zero_stage: 9").replace("cpu", "gpu")
    places = {(one.pointer, one.line, one.column) for one in check(as_file(wrong), Context(entry="accelerate"))}
    assert ("/zero_optimization/stage", 3, 15) in places
    assert ("/zero_optimization/offload_optimizer/device", 4, 29) in places


def test_the_file_says_how_large_the_run_is():
    context = view_of(FILE, Context(entry="accelerate")).context
    assert (context.world_size, context.nodes, context.entry) == (16, 2, "accelerate")
    context = view_of(FILE, Context(entry="raw", world_size=4)).context
    assert (context.world_size, context.entry) == (4, "accelerate"), (
        "what is typed wins; plain DeepSpeed reads no such file"
    )


def test_zero_init_counts_at_stage_3_only():
    flagged = FILE.replace("zero_stage: 3", "zero_stage: 3\n  zero3_init_flag: true")
    assert view_of(flagged, Context()).context.zero_init is True
    assert view_of(flagged.replace("stage: 3", "stage: 2"), Context()).context.zero_init is None
    assert view_of(FILE, Context()).context.zero_init is None


def test_a_usual_file_is_clean_and_has_no_fixes():
    assert check(FILE, Context(entry="accelerate")) == []
    broken = FILE.replace("stage: 3", "stage: 2").replace("cpu", "nvme")
    findings = check(broken, Context(entry="accelerate"))
    assert findings and not any(one.fix for one in findings)


def test_misspelt_keys_get_the_nearest_name():
    text = FILE.replace("offload_optimizer_device", "offload_optimiser_device").replace(
        "mixed_precision", "mixed_precison"
    )
    helps = {one.rule: one.help for one in check(text, Context(entry="accelerate"))}
    assert helps["ZT731"] == "did you mean offload_optimizer_device?"
    assert helps["ZT730"] == "did you mean mixed_precision?"


def test_a_json_file_of_accelerate_is_read_as_one():
    text = '{"distributed_type": "DEEPSPEED", "num_processes": 2,\n "deepspeed_config": {"zero_stage": 7}}'
    assert [one.line for one in check(text) if one.pointer == "/zero_optimization/stage"] == [2]


def test_a_config_written_in_yaml_is_judged_as_a_config():
    findings = check(as_file("train_batch_sise: 4\nzero_optimization:\n  stage: 5\n"))
    assert {(one.line, one.pointer) for one in findings} >= {(1, "/train_batch_sise"), (3, "/zero_optimization/stage")}


def test_another_yaml_is_told_apart():
    (finding,) = check(as_file("model: llama\ndeepspeed: ds_z3.json\n"))
    assert finding.rule == "ZT026" and "ds_z3.json" in finding.help


def test_what_accelerate_adds_by_itself_is_no_finding():
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n"
    context = Context(entry="accelerate")
    assert check(text, context) == []
    written = check(f"{text}  zero3_save_16bit_model: false\n", context)
    assert [finding.rule for finding in written] == ["ZT530"]


def test_a_run_without_deepspeed():
    text = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {}\n"
    (finding,) = check(text, Context(entry="accelerate"))
    assert finding.message == "distributed_type is FSDP: this run is without DeepSpeed"
