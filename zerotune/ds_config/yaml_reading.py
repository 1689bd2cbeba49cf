"""YAML as a document: the data that yaml.safe_load reads, and where each part stands in the text.

Reads events one by one with bounds on number, depth and expansion, so that no text takes long or overflows a stack.
"""

from __future__ import annotations

from collections import Counter

from .accelerate_file import as_deepspeed, is_accelerate
from .document import Document, Place, Problem, join
from .schema import fields

MAX_DEPTH = 100
# Together under 0.5 s; accelerate's files have some 60 events and 1,000 characters.
MAX_EVENTS = 5_000
MAX_CHARACTERS = 1 << 15
MAX_BRACKETS = 500
# json.dumps writes no longer ones (sys.set_int_max_str_digits).
MAX_BITS = 10_000
MAX_OF_A_KIND = 20
PLAIN_TAGS = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_SIZE = "this is no config; accelerate's files have some 30 lines"


class _Stop(Exception):
    """Nothing after this place can be understood."""


def parse_yaml(text: str) -> Document:
    """Parse a whole text. Never raises for what the text holds."""
    import yaml

    reader = _Reader(text, yaml)
    try:
        reader.read()
    except _Stop:
        reader.document.value = None
    except yaml.YAMLError as problem:
        reader.syntax(problem)
    except (ValueError, OverflowError, RecursionError) as problem:
        reader.report("yaml-reading", (0, 1), f"this is no YAML: {problem}", "write plain keys and values", clean=False)
    return reader.document


def read_yaml(text: str) -> Document:
    """A YAML file as a DeepSpeed config: accelerate's own file, or the keys of a config written as YAML."""
    document = parse_yaml(text)
    document.yaml = True
    if not isinstance(document.value, dict) or not document.judgeable:
        return document
    if is_accelerate(document.value):
        return as_deepspeed(document)
    if not any(name in fields() for name in document.value):
        what = "there is no DeepSpeed config in this YAML file"
        named = document.value.get("deepspeed")
        todo = f"check {named} instead" if isinstance(named, str) else "name the JSON file that DeepSpeed reads"
        document.problems.append(Problem("yaml-reading", 0, 1, what, todo, clean=False))
    return document


class _Reader:
    def __init__(self, text: str, yaml):
        self.yaml = yaml
        self.document = Document(text=text)
        # PyYAML passes over a byte order mark.
        self.shift = text.startswith("\ufeff")
        self.loader = None  # made in read(): it refuses some texts at once
        # Anchor -> (value, number of nodes in it); None while it is being read.
        self.anchors: dict[str, tuple | None] = {}
        self.left = MAX_EVENTS
        self.number_of: Counter = Counter()

    def read(self) -> None:
        # Not libyaml's faster twin: that one takes texts which safe_load refuses (tabs behind a value).
        self.loader = self.yaml.SafeLoader(self.document.text[self.shift : MAX_CHARACTERS])
        for name, number, limit in self.sizes():
            if number > limit:
                self.report("too-large", (0, 1), f"more than {limit:,} {name}", _SIZE, clean=False)
                raise _Stop
        self.next()  # the stream's start
        if self.next().__class__ is self.yaml.StreamEndEvent:
            self.report("empty-file", (0, 1), "there is no config in it", "run `accelerate config`", clean=False)
            return
        self.document.value, _ = self.value(self.next(), "", None, 0)
        self.next()  # the document's end
        event = self.next()
        if event.__class__ is not self.yaml.StreamEndEvent:
            what = "a second document starts here: yaml.safe_load refuses a file of several"
            self.fail("yaml-reading", event, what, "keep one of them")

    def sizes(self) -> list[tuple[str, int, int]]:
        text = self.document.text
        brackets = text.count("[") + text.count("{")  # the scanner's time grows with their square
        return [("characters", len(text), MAX_CHARACTERS), ("brackets", brackets, MAX_BRACKETS)]

    def next(self):
        self.left -= 1
        event = self.loader.get_event()
        if self.left < 0:
            self.fail("too-large", event, f"more than {MAX_EVENTS} keys and values", _SIZE)
        return event

    def value(self, event, pointer: str, key: tuple | None, depth: int) -> tuple[object, int]:
        """One node and the number of nodes in it."""
        if depth > MAX_DEPTH:
            self.fail("nesting", event, f"nested more than {MAX_DEPTH} levels deep", "a config needs at most five")
        kind, start, before = event.__class__, self.span(event)[0], self.left
        if kind is self.yaml.AliasEvent:
            self.document.places[pointer] = Place(key, self.span(event))
            return self.alias(event, pointer)
        if kind is not self.yaml.ScalarEvent and event.tag not in PLAIN_TAGS:
            self.fail("yaml-reading", event, f"{event.tag} is no plain data", "write plain keys and values")
        anchor = event.anchor
        if anchor:
            self.anchors[anchor] = None
        if kind is self.yaml.MappingStartEvent:
            made, end = self.mapping(pointer, depth)
        elif kind is self.yaml.SequenceStartEvent:
            made, end = self.sequence(pointer, depth)
        else:
            made, end = self.scalar(event, pointer), self.span(event)[1]
        self.document.places[pointer] = Place(key, (start, end))
        size = before - self.left + 1
        if anchor:
            self.anchors[anchor] = (made, size)
        return made, size

    def mapping(self, pointer: str, depth: int) -> tuple[dict, int]:
        members: dict = {}
        merged: dict = {}
        while (event := self.next()).__class__ is not self.yaml.MappingEndEvent:
            name, span = self.key(event, pointer, depth), self.span(event)
            here = join(pointer, name)
            if name in members:
                self.report("duplicate-key", span, f"the key {name!r} stands here twice", "keep one of them", here)
            value, _ = self.value(self.next(), here, span, depth + 1)
            if name == "<<" and getattr(event, "style", None) is None:
                for block in value if isinstance(value, list) else [value]:
                    merged = {**(block if isinstance(block, dict) else {}), **merged}
            else:
                members[name] = value
        return {**merged, **members}, self.span(event)[1]

    def key(self, event, pointer: str, depth: int) -> str:
        if event.__class__ is self.yaml.ScalarEvent:
            found = self.scalar(event, pointer)
        else:
            found, _ = self.value(event, join(pointer, "?"), None, depth + 1)
        if not isinstance(found, str):
            what, todo = f"the key {str(found)[:40]} is no text", "put it in quotes"
            self.report("not-json-value", self.span(event), what, todo, join(pointer, str(found)[:40]))
        return found if isinstance(found, str) else str(found)[:200]

    def sequence(self, pointer: str, depth: int) -> tuple[list, int]:
        items: list = []
        while (event := self.next()).__class__ is not self.yaml.SequenceEndEvent:
            items.append(self.value(event, join(pointer, len(items)), None, depth + 1)[0])
        return items, self.span(event)[1]

    def scalar(self, event, pointer: str) -> object:
        """A value as SafeLoader makes it; what JSON can't hold becomes a problem."""
        tag = event.tag
        if tag in (None, "!"):
            tag = self.loader.resolve(self.yaml.ScalarNode, event.value, event.implicit)
        if tag.endswith(":merge"):
            return event.value
        try:
            made = self.loader.construct_object(self.yaml.ScalarNode(tag, event.value))
        except (self.yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError):
            # An explicit tag on a text of another kind: each constructor fails in its own way.
            self.fail("yaml-reading", event, f"yaml.safe_load can't read {event.value[:40]!r}", "write a plain value")
        if isinstance(made, int) and made.bit_length() > MAX_BITS:
            self.fail("yaml-reading", event, "a number of thousands of digits", "write a number that means something")
        if not isinstance(made, (str, int, float, bool, type(None))):
            what = f"{event.value[:40]} is read as a {type(made).__name__}"
            self.report("not-json-value", self.span(event), what, "put it in quotes", pointer)
            return event.value
        if isinstance(made, float) and made != made:
            self.report("not-finite", self.span(event), "nan is no number", "write a number", pointer)
        return made

    def alias(self, event, pointer: str) -> tuple[object, int]:
        if event.anchor not in self.anchors:
            self.fail("yaml-reading", event, f"nothing is called &{event.anchor}", "write the value")
        if self.anchors[event.anchor] is None:
            self.fail("nesting", event, "the value contains itself", "break the cycle")
        value, size = self.anchors[event.anchor]
        self.left -= size
        return value, size

    def span(self, event) -> tuple[int, int]:
        start, end = event.start_mark.index + self.shift, event.end_mark.index + self.shift
        # A block ends where the next token starts; the spaces between belong to nobody.
        text = self.document.text[start:end].rstrip() if end - start < 10_000 else ""
        return start, start + len(text) if text else end

    def syntax(self, problem) -> None:
        mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
        at = mark.index if mark else getattr(problem, "position", 0)  # the latter: of a character that is not allowed
        start = min(at + self.shift, max(0, len(self.document.text) - 1))
        what = getattr(problem, "problem", None) or str(problem).split("\n")[0]
        context = getattr(problem, "context", None)
        words = f"{what} {context}" if context else what
        tab = self.document.text[start : start + 1] == "\t"
        todo = "indent with spaces, never with tabs" if tab else "look at the indentation and the quotes around here"
        self.report("yaml-reading", (start, start + 1), f"this is no YAML: {words}", todo, clean=False)

    def fail(self, code: str, event, message: str, help: str) -> None:
        self.report(code, self.span(event), message, help, clean=False)
        raise _Stop

    def report(self, code: str, span: tuple, message: str, help: str, pointer: str = "", clean: bool = True) -> None:
        start, end = span
        self.number_of[code] += 1
        if self.number_of[code] > MAX_OF_A_KIND:
            return
        self.document.problems.append(Problem(code, start, max(end, start + 1), message, help, pointer, clean))
