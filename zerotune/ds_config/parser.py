"""A strict JSON parser that keeps the place of every key and value and goes on after a mistake.

The standard parser stops at the first mistake and forgets where things stood. This one reads what RFC 8259
allows, reports everything else with its place, and reads on wherever the meaning is plain.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter

from .document import Document, Place, Problem, join
from .scalars import literal_value, number_value, string_value, unquoted, word_value
from .syntax import CODES, MISTAKES
from .tokens import Token, tokenize

MAX_DEPTH = 100
# Of one kind; a file may have a hundred comments, and its other mistakes still count.
MAX_OF_A_KIND = 20
# 0.1 s on a slow machine; the largest public config has some 1,500 tokens.
MAX_TOKENS = 20_000
Span = tuple[int, int]


class _Stop(Exception):
    """Nothing after this place can be understood."""


def parse(text: str) -> Document:
    """Parse a whole text. Never raises for what the text holds."""
    parser = _Parser(text)
    with contextlib.suppress(_Stop):
        parser.read()
    return parser.document


class _Parser:
    def __init__(self, text: str):
        self.document = Document(text=text)
        # The mark becomes a space, so that offsets stay those of the text.
        self.tokens = tokenize(" " + text[1:] if text.startswith("\ufeff") else text, MAX_TOKENS)
        self.index = 0
        self.number_of: Counter = Counter()

    def read(self) -> None:
        if self.document.text.startswith("\ufeff"):
            self.report("byte-order-mark", (0, 1), repair=(0, 1, ""))
        if self.document.text.startswith("version https://git-lfs"):
            self.report("lfs-pointer", (0, len("version")))
        if len(self.tokens) > MAX_TOKENS:
            self.report("too-large", self.tokens[-1].span, limit=MAX_TOKENS)
        self.skip_comments()
        if self.peek.kind == "end":
            self.report("empty-file", self.peek.span)
        self.document.value = self.value("", None, 0)
        self.skip_comments()
        if self.peek.kind != "end":
            self.report("trailing-text", self.peek.span)

    @property
    def peek(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        token = self.tokens[self.index]
        self.index += token.kind != "end"
        return token

    def report(self, code: str, span: Span, pointer: str = "", repair: tuple | None = None, **facts) -> None:
        mistake = MISTAKES[code]
        start, end = span
        message, help = mistake.message.format_map(facts), mistake.help.format_map(facts)
        code = CODES.get(code, code)
        self.number_of[code] += 1
        if self.number_of[code] <= MAX_OF_A_KIND:
            problem = Problem(code, start, max(end, start + 1), message, help, pointer, mistake.clean, repair)
            self.document.problems.append(problem)
        elif not mistake.clean:
            raise _Stop
        if mistake.fatal:
            raise _Stop

    def skip_comments(self) -> None:
        while self.peek.kind == "comment":
            token = self.take()
            self.report("comment", token.span)
            if token.text.startswith("/*") and not token.text.endswith("*/"):
                raise _Stop

    def value(self, pointer: str, key: Span | None, depth: int) -> object:
        """Read one value. `key`: where its key stands."""
        token = self.take()
        if depth > MAX_DEPTH:
            self.report("nesting", token.span, pointer, limit=MAX_DEPTH)
        if token.kind in "{[":
            result = (self.object if token.kind == "{" else self.array)(pointer, token, depth)
            end = self.tokens[self.index - 1].end
        else:
            result, end = self.scalar(token, pointer), token.end
        self.document.places[pointer] = Place(key, (token.start, end))
        return result

    def scalar(self, token: Token, pointer: str) -> object:
        if token.kind in ("string", "quoted"):
            return self.string(token, pointer)
        if token.kind == "number":
            return number_value(token.text)
        if token.kind == "literal":
            return literal_value(token.text)
        if token.kind == "word":
            code, value, what, todo = word_value(token.text)
            exact = code in ("python-literal", "number-syntax")
            repair = (*token.span, json.dumps(value)) if exact else None
            self.report(code, token.span, pointer, repair, what=what, todo=todo, word=token.text)
            return value
        if token.kind == "open_string":
            self.report("open-string", token.span, pointer, quote=token.text[0])
        what = (
            f"a value should stand here, not {token.text!r}"
            if token.text
            else "the text ends where a value should stand"
        )
        self.report("missing-value", token.span, pointer, what=what)
        raise _Stop

    def string(self, token: Token, pointer: str) -> str:
        """A string in either kind of quotes."""
        if token.kind == "quoted":
            text = token.text[1:-1]
            repair = (*token.span, json.dumps(text)) if "\\" not in text else None
            self.report("single-quotes", token.span, pointer, repair, better=json.dumps(text))
            return text
        text, wrong = string_value(token)
        if wrong:
            self.report("string-syntax", token.span, pointer, what=wrong)
        return text

    def array(self, pointer: str, opening: Token, depth: int) -> list:
        items: list = []
        comma = None
        while not self.closes("]", opening, comma):
            if self.extra_comma():
                continue
            items.append(self.value(join(pointer, len(items)), None, depth + 1))
            comma = self.comma()
        return items

    def object(self, pointer: str, opening: Token, depth: int) -> dict:
        members: dict = {}
        comma = None
        while not self.closes("}", opening, comma):
            if self.extra_comma():
                continue
            name, span = self.key(pointer)
            here = join(pointer, name)
            if name in members:
                self.duplicate(name, here, span)
            members[name] = self.value(here, span, depth + 1) if self.colon(name, span, here) else None
            comma = self.comma()
        return members

    def closes(self, closer: str, opening: Token, comma: Token | None) -> bool:
        """Take the closing bracket if it comes next."""
        self.skip_comments()
        token = self.peek
        line, column = self.document.line_column(opening.start) if token.kind in ("end", "}", "]") else (0, 0)
        if token.kind == "end":
            self.report("unclosed", opening.span, bracket=opening.text, line=line, column=column, closer=closer)
        if token.kind not in ("}", "]"):
            return False
        if comma:
            self.report("trailing-comma", comma.span, repair=(*comma.span, ""), word=token.text)
        if token.kind != closer:
            self.report("wrong-bracket", token.span, word=token.text, bracket=opening.text, line=line, closer=closer)
        self.take()
        return True

    def extra_comma(self) -> bool:
        if self.peek.kind != ",":
            return False
        token = self.take()
        self.report("extra-comma", token.span, repair=(*token.span, ""))
        return True

    def comma(self) -> Token | None:
        """The comma after a value; None when the value was the last. Reports a missing one."""
        end = self.tokens[self.index - 1].end
        self.skip_comments()
        token = self.peek
        if token.kind == ",":
            return self.take()
        if token.kind not in ("}", "]", "end"):
            self.report("missing-comma", (end - 1, end), repair=(end, end, ","))
            if token.kind in (":", "open_string"):
                raise _Stop
        return None

    def key(self, pointer: str) -> tuple[str, Span]:
        token = self.take()
        if token.kind in ("string", "quoted"):
            return self.string(token, pointer), token.span
        if token.kind in ("word", "number", "literal"):
            name = unquoted(token.text)
            better = json.dumps(name)
            self.report("bare-key", token.span, pointer, (*token.span, better), word=token.text, better=better)
            return name, token.span
        if token.kind == "open_string":
            self.report("open-string", token.span, pointer, quote=token.text[0])
        self.report("missing-key", token.span, pointer, word=token.text)
        raise _Stop

    def colon(self, name: str, span: Span, pointer: str) -> bool:
        """True when a value follows the key."""
        self.skip_comments()
        token = self.peek
        if token.kind == ":":
            self.take()
            self.skip_comments()
            if self.peek.kind not in (",", "}", "]"):
                return True
        elif token.kind == "word" and token.text in ("=", "=>", ":="):
            self.take()
            what, todo = f"{token.text!r} after a key", "write ':'"
            self.report("missing-colon", token.span, pointer, (*token.span, ":"), what=what, todo=todo)
            return True
        elif token.kind not in (",", "}", "]", "end"):
            what = f"a colon is missing after the key {name!r}"
            self.report("missing-colon", span, pointer, (span[1], span[1], ":"), what=what, todo="add ':'")
            return True
        self.report("missing-value", span, pointer, what=f"the key {name!r} has no value")
        return False

    def duplicate(self, name: str, pointer: str, span: Span) -> None:
        first = self.document.places.get(pointer)
        line = self.document.line_column(first.key[0])[0] if first and first.key else 0
        self.report("duplicate-key", span, pointer, name=name, first=f" (first in line {line})" if line else "")
