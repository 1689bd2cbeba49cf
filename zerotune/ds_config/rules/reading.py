"""ZT0xx: the text itself. The parser finds these; the rows say what they mean.

The Trainer and accelerate read with Python's json, plain DeepSpeed with Hjson. What Hjson accepts is a warning
for the raw entry, since it runs there and nowhere else; comments, which many configs have on purpose, are a note.
"""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING, Fix
from .rule import Hit, case, rule

JSON = "RFC 8259; transformers 5.24 and accelerate 1.15 read with json.load, DeepSpeed 0.19.8 runtime/config.py with hjson.load"
GOOD = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'


def _row(id: str, slug: str, why: str, bad: str, severity: str = ERROR) -> None:
    text_rule(id, slug, severity, why, JSON, [case(bad)], [case(GOOD)])


def text_rule(id: str, slug: str, severity: str, why: str, source: str, bad: list, good: list) -> None:
    """A row that reports the reader's problems of one code, with the reader's words."""

    def find(view):
        for problem in view.document.problems:
            if problem.code == slug:
                facts = {"what": problem.message, "todo": problem.help}
                made = _severity(view, slug, severity)
                yield Hit(problem.pointer, facts, severity=made, fix=_repair(problem), span=_span(problem))

    find.__doc__ = why
    rule(id, slug, severity, keys=(), message="{what}", help="{todo}", source=source, bad=bad, good=good)(find)


def _repair(problem) -> Fix | None:
    """Safe: the text becomes the JSON that it plainly meant."""
    if problem.repair is None:
        return None
    start, end, text = problem.repair
    return Fix("text", problem.pointer, text, safe=True, span=(start, end))


def _span(problem) -> tuple[int, int] | None:
    return (problem.start, problem.end) if problem.end else None


def _severity(view, slug: str, severity: str) -> str:
    if slug == "duplicate-key":
        return ERROR if view.raw else WARNING
    if view.raw and view.document.hjson:
        return INFO if slug == "comment" else WARNING
    return severity


_row("ZT001", "empty-file", "An empty file, or one that holds only comments, is no JSON.", "  \n")
_row(
    "ZT002",
    "too-large",
    "The file has far more tokens than any DeepSpeed config; reading stopped.",
    "[" + "1," * 30_000 + "1]",
)
_row(
    "ZT003",
    "byte-order-mark",
    "json.load refuses a text that starts with a byte order mark, which some editors add.",
    "\ufeff" + GOOD,
)
_row("ZT004", "comment", "JSON has no comments. Hjson, which plain DeepSpeed reads, has them.", '{"a": 1} // note')
_row("ZT005", "single-quotes", "JSON strings and keys stand in straight double quotes.", "{'a': 1}")
_row("ZT006", "python-literal", "A Python dict was pasted: JSON writes true, false and null.", '{"a": True}')
_row("ZT007", "not-finite", "NaN is no JSON and no useful value. json.load reads it, other tools do not.", '{"a": NaN}')
_row(
    "ZT008",
    "number-syntax",
    "JSON numbers have no leading zero, plus sign or underscore, and a digit on both sides of the point.",
    '{"a": .5}',
)
_row("ZT009", "bare-word", "A word without quotes is neither a string nor a number.", '{"a": cpu}')
_row("ZT010", "string-syntax", "A string holds a raw control character or an unknown escape.", '{"a": "C:\\data"}')
_row("ZT011", "open-string", "A string is not closed on its line, so nothing after it can be read.", '{"a": "cpu\n}')
_row("ZT012", "trailing-comma", "JSON allows no comma before a closing bracket. Hjson does.", '{"a": 1,}')
_row("ZT013", "extra-comma", "Two commas in a row, or one before the first item.", '{"a": 1,, "b": 2}')
_row("ZT014", "missing-comma", "Two items stand side by side without a comma between them.", '{"a": 1\n "b": 2}')
_row("ZT015", "missing-colon", "Between a key and its value stands a colon.", '{"a" 1}')
_row("ZT016", "missing-value", "A key without value.", '{"a": , "b": 1}')
_row("ZT017", "missing-key", "An object holds pairs of key and value.", '{{"a": 1}}')
_row("ZT018", "unclosed", "The text ends before a bracket is closed: often a cut-off copy.", '{"a": {"b": 1}')
_row("ZT019", "wrong-bracket", "A bracket of the other kind closes this one.", '{"a": [1}}')
_row("ZT020", "trailing-text", "After the last closing brace nothing may follow.", '{"a": 1}}')
_row("ZT021", "nesting", "Nested deeper than any config: reading stopped.", '{"a":' * 200)
_row("ZT022", "not-json-value", "A Python object or a key that is no text can't stand in a config.", {"a": {1: 2}})


@rule(
    "ZT023",
    "infinity",
    WARNING,
    keys=(),
    message="{value} is read by Python only",
    help="leave the key out, or write a number",
    source=JSON,
    bad=[case('{"gradient_clipping": Infinity}')],
    good=[case(GOOD)],
)
def infinity(view):
    """Infinity is no JSON; json.load reads it, editors and other tools refuse the file."""
    for problem in view.document.problems:
        if problem.code == "infinity":
            yield Hit(problem.pointer, {"value": problem.message}, span=_span(problem))


_row(
    "ZT024",
    "duplicate-key",
    "json.load keeps the last of two equal keys and drops the other without a word; plain DeepSpeed refuses the file (a089).",
    '{"zero_optimization": {"stage": 2}, "zero_optimization": {"stage": 3}}',
    WARNING,
)


_row(
    "ZT027",
    "lfs-pointer",
    "A clone without Git LFS has three lines that name the file instead of the file.",
    "version https://git-lfs.github.com/spec/v1\noid sha256:8d25\nsize 801\n",
)


@rule(
    "ZT025",
    "top-not-object",
    ERROR,
    keys=(),
    message="the config is {kind}, not an object",
    help='write {{"zero_optimization": {{...}}, ...}}',
    source=JSON,
    bad=[case("[1, 2]"), case('"stage2"')],
    good=[case(GOOD)],
)
def top_not_object(view):
    """A DeepSpeed config is one JSON object."""
    value = view.document.value
    unread = value is None and view.document.problems
    if not isinstance(value, dict) and not unread:
        kinds = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
        yield Hit("", {"kind": kinds.get(type(value), "a number")})
