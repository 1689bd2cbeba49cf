"""Texts good and bad: what is read, and where a mistake is said to be."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerotune.ds_config.parser import parse

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(JSON_VALUES, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_json_reads(value, indent, ascii_only):
    document = parse(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert document.problems == []
    assert document.value == value


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="{}[]:,\"'\\ \n\tab01.-+eNtrue/#*"))
def test_never_raises_and_agrees_with_json_on_what_is_valid(text):
    document = parse(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        assert document.problems
        return
    if not any(word in text for word in ("NaN", "Infinity")):
        serious = [problem for problem in document.problems if problem.code != "duplicate-key"]
        assert serious == []
        assert document.value == value


def found(text: str) -> list[tuple]:
    document = parse(text)
    return [(problem.code, *document.line_column(problem.start)) for problem in document.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("empty-file", 1, 1)]),
        ("// only a note\n", [("comment", 1, 1), ("empty-file", 2, 1)]),
        ('{\n  "a": 1\n  "b": 2\n}', [("missing-comma", 2, 8)]),
        ('{\n  "a": 1,\n}', [("trailing-comma", 2, 9)]),
        ('{"a": [1, 2,]}', [("trailing-comma", 1, 12)]),
        ('{"a": 1} // end', [("comment", 1, 10)]),
        ('{"a": 1 /* open', [("comment", 1, 9)]),
        ("{'a': 1}", [("single-quotes", 1, 2)]),
        ("{“a b”: ‘c’}", [("single-quotes", 1, 2), ("single-quotes", 1, 9)]),
        ('{"a": True}', [("python-literal", 1, 7)]),
        ('{"a": NaN}', [("not-finite", 1, 7)]),
        ('{"a": -Infinity}', [("infinity", 1, 7)]),
        ('{"a": 01}', [("number-syntax", 1, 7)]),
        ('{"a": +1, "b": .5}', [("number-syntax", 1, 7), ("number-syntax", 1, 16)]),
        ('{"a": "b}', [("open-string", 1, 7)]),
        ('{"a": 1', [("unclosed", 1, 1)]),
        ('{"a": {"b": 1}', [("unclosed", 1, 1)]),
        ('{"a": [1}', [("wrong-bracket", 1, 9)]),
        ('{"a": 1}}', [("trailing-text", 1, 9)]),
        ('{"a" 1}', [("missing-colon", 1, 2)]),
        ('{"a" = 1}', [("missing-colon", 1, 6)]),
        ('{"a": }', [("missing-value", 1, 2)]),
        ('{"a": 1,, "b": 2}', [("extra-comma", 1, 9)]),
        ('{"a": 1, "a": 2}', [("duplicate-key", 1, 10)]),
        ('\ufeff{"a": 1}', [("byte-order-mark", 1, 1)]),
        ('{"a": "\\q"}', [("string-syntax", 1, 7)]),
        ('{"a": "x\ty"}', [("string-syntax", 1, 7)]),
        ("{{}}", [("missing-key", 1, 2)]),
    ],
)
def test_mistakes_have_their_place(text, expected):
    assert found(text) == expected


def test_several_mistakes_in_one_pass_and_the_value_survives():
    text = '{\n  \'a\': True, // note\n  "b": [1 2],\n  "c": .5,\n}'
    assert [code for code, *_ in found(text)] == [
        "single-quotes",
        "python-literal",
        "comment",
        "missing-comma",
        "number-syntax",
        "trailing-comma",
    ]
    assert parse(text).value == {"a": True, "b": [1, 2], "c": 0.5}


@pytest.mark.parametrize(
    ("word", "advice"),
    [("tru", "write true"), ("Flase", "write false"), ("cpu", 'write "cpu"'), ("“cpu", 'write "cpu"')],
)
def test_a_bare_word_near_a_literal_is_taken_for_it(word, advice):
    assert [problem.help for problem in parse(f'{{"a": {word}}}').problems] == [advice]


def test_places_of_keys_and_values():
    text = '{\n  "zero_optimization": {\n    "stage": 3\n  }\n}'
    document = parse(text)
    place = document.places["/zero_optimization/stage"]
    assert text[slice(*place.key)] == '"stage"'
    assert text[slice(*place.value)] == "3"
    assert document.line_column(place.value[0]) == (3, 14)


def test_slash_and_tilde_in_keys():
    assert set(parse('{"a/b": {"~": 1}}').places) == {"", "/a~1b", "/a~1b/~0"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"a": [' + "1," * 300_000 + "1]}",
        '"' * 500_000,
        "'" * 500_000,
        "/*" * 300_000,
        '{"a": ' + "9" * 500_000 + "}",
        '{"a": "' + "\\" * 500_001 + '"}',
        "\\" * 500_000,
        "{" + '"a" ' * 200_000,
        "\x00" * 500_000,
        "-" * 500_000,
        "1_" * 300_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_texts_take_less_than_a_second(text):
    start = time.perf_counter()
    document = parse(text)
    assert time.perf_counter() - start < 1.0
    assert document.problems or document.value is not None


def test_a_hundred_comments_hide_nothing():
    text = "{" + "// note\n" * 100 + '"a": 1,\n"a": 2 "b": 3}'
    assert parse(text).value == {"a": 2, "b": 3}
    codes = [code for code, *_ in found(text)]
    assert codes.count("comment") == 20
    assert codes[20:] == ["duplicate-key", "missing-comma"]
