"""A strict JSON parser that keeps the place of every key and value and goes on after a mistake.

The standard parser stops at the first mistake and forgets where things stood. This one reads what RFC 8259
allows, reports everything else with its place, and reads on wherever the meaning is plain.
"""

from __future__ import annotations

from .document import Document, Place, Problem, join
from .scalars import literal_value, number_value, string_value, word_value
from .tokens import Token, tokenize

MAX_DEPTH = 100
MAX_PROBLEMS = 20
# 0.2 s on a slow machine; the largest public config has some 1,500 tokens.
MAX_TOKENS = 50_000


class _Stop(Exception):
    """Nothing after this place can be understood."""


def parse(text: str) -> Document:
    """Parse a whole text. Never raises for what the text holds."""
    return _Parser(text).document_of()


class _Parser:
    def __init__(self, text: str):
        self.document = Document(text=text)
        self.tokens: list[Token] = []
        self.index = 0

    def document_of(self) -> Document:
        text = self.document.text
        start = 0
        if text.startswith("\ufeff"):
            self.problem(
                "byte-order-mark", 0, 1, "the file starts with a byte order mark", "save it as UTF-8 without BOM"
            )
            start = 1
        # The mark becomes a space, so that offsets stay those of the text.
        self.tokens = tokenize(" " + text[1:] if start else text, MAX_TOKENS)
        try:
            if len(self.tokens) > MAX_TOKENS:
                self.fatal(
                    "too-large", self.tokens[-1], f"more than {MAX_TOKENS} tokens", "this is no DeepSpeed config"
                )
            self.skip_comments()
            if self.peek.kind == "end":
                self.fatal(
                    "empty-file",
                    self.peek,
                    "there is no config in it",
                    'write at least {"zero_optimization": {"stage": 2}}',
                )
            self.document.value = self.value("", None, 0)
            self.skip_comments()
            if self.peek.kind != "end":
                self.fatal(
                    "trailing-text",
                    self.peek,
                    "there is text after the end of the config",
                    "delete it, or look for a brace closed too early",
                )
        except _Stop:
            pass
        return self.document

    @property
    def peek(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        token = self.tokens[self.index]
        self.index += token.kind != "end"
        return token

    def problem(self, code: str, start: int, end: int, message: str, help: str, pointer: str = "", clean: bool = True):
        problems = self.document.problems
        problems.append(Problem(code, start, max(end, start + 1), message, help, pointer, clean))
        if len(problems) >= MAX_PROBLEMS:
            raise _Stop

    def fatal(self, code: str, token: Token, message: str, help: str, pointer: str = ""):
        self.problem(code, token.start, token.end, message, help, pointer, clean=False)
        raise _Stop

    def skip_comments(self):
        while self.peek.kind == "comment":
            token = self.take()
            if token.text.startswith("/*") and not token.text.endswith("*/"):
                self.fatal("comment", token, "a comment is never closed", "JSON has no comments; delete it")
            self.problem("comment", token.start, token.end, "JSON has no comments", "delete it")

    def value(self, pointer: str, key: tuple[int, int] | None, depth: int) -> object:
        """Read one value. `key`: where its key stands."""
        token = self.take()
        if depth > MAX_DEPTH:
            self.fatal(
                "nesting",
                token,
                f"nested more than {MAX_DEPTH} levels deep",
                "a DeepSpeed config needs at most five",
                pointer,
            )
        if token.kind in "{[":
            read = self.object if token.kind == "{" else self.array
            result = read(pointer, token, depth)
            end = self.tokens[self.index - 1].end
        else:
            result, end = self.scalar(token, pointer), token.end
        self.document.places[pointer] = Place(key, (token.start, end))
        return result

    def scalar(self, token: Token, pointer: str) -> object:
        if token.kind == "string":
            value, wrong = string_value(token)
            if wrong:
                self.problem(
                    "string-syntax",
                    token.start,
                    token.end,
                    wrong,
                    r"write it with JSON escapes: \n, \t, \", \\",
                    pointer,
                )
            return value
        if token.kind == "number":
            return number_value(token.text)
        if token.kind == "literal":
            return literal_value(token.text)
        if token.kind == "quoted":
            self.problem(
                "single-quotes",
                token.start,
                token.end,
                "strings need double quotes",
                f'write "{token.text[1:-1]}"',
                pointer,
            )
            return token.text[1:-1]
        if token.kind == "word":
            code, value, message, help = word_value(token.text)
            if code == "infinity":
                message = token.text
            self.problem(code, token.start, token.end, message, help, pointer, clean=code != "bare-word")
            return value
        return self.no_scalar(token, pointer)

    def no_scalar(self, token: Token, pointer: str):
        if token.kind == "open_string":
            self.fatal("open-string", token, "a string is never closed", f"close it with {token.text[0]}", pointer)
        if token.kind == "end":
            self.fatal("missing-value", token, "the text ends where a value should stand", "write the value", pointer)
        self.fatal("missing-value", token, f"a value should stand here, not {token.text!r}", "write the value", pointer)

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
            if self.colon(name, span, here):
                members[name] = self.value(here, span, depth + 1)
            else:
                members[name] = None
            comma = self.comma()
        return members

    def closes(self, closer: str, opening: Token, comma: Token | None) -> bool:
        """Take the closing bracket if it comes next."""
        self.skip_comments()
        token = self.peek
        if token.kind == "end":
            line, column = self.document.line_column(opening.start)
            self.fatal(
                "unclosed",
                opening,
                f"{opening.text!r} of line {line}, column {column} is never closed",
                f"add {closer!r}, or look for one too few above the end",
            )
        if token.kind not in ("}", "]"):
            return False
        if comma:
            self.problem("trailing-comma", comma.start, comma.end, f"a comma before {token.text!r}", "delete the comma")
        if token.kind != closer:
            line, _ = self.document.line_column(opening.start)
            self.fatal(
                "wrong-bracket",
                token,
                f"{token.text!r} closes the {opening.text!r} of line {line}",
                f"write {closer!r}",
            )
        self.take()
        return True

    def extra_comma(self) -> bool:
        if self.peek.kind != ",":
            return False
        token = self.take()
        self.problem("extra-comma", token.start, token.end, "a comma with nothing before it", "delete the comma")
        return True

    def comma(self) -> Token | None:
        """The comma after a value; None when the value was the last. Reports a missing one."""
        last = self.tokens[self.index - 1]
        self.skip_comments()
        token = self.peek
        if token.kind == ",":
            return self.take()
        if token.kind not in ("}", "]", "end"):
            self.problem(
                "missing-comma", last.end - 1, last.end, "a comma is missing after this", "add ',' at the end of it"
            )
            if token.kind in (":", "open_string"):
                raise _Stop
        return None

    def key(self, pointer: str) -> tuple[str, tuple[int, int]]:
        token = self.take()
        span = (token.start, token.end)
        if token.kind == "string":
            name, wrong = string_value(token)
            if wrong:
                self.problem("string-syntax", *span, wrong, "write it with JSON escapes", join(pointer, name))
            return name, span
        if token.kind == "quoted":
            self.problem("single-quotes", *span, "keys need double quotes", f'write "{token.text[1:-1]}"', pointer)
            return token.text[1:-1], span
        if token.kind in ("word", "number", "literal"):
            self.problem("bare-word", *span, f"the key {token.text} has no quotes", f'write "{token.text}"', pointer)
            return token.text, span
        if token.kind == "open_string":
            self.fatal("open-string", token, "a string is never closed", f"close it with {token.text[0]}", pointer)
        return self.fatal(
            "missing-key",
            token,
            f"a key in double quotes should stand here, not {token.text!r}",
            "write the key",
            pointer,
        )

    def colon(self, name: str, span: tuple[int, int], pointer: str) -> bool:
        """True when a value follows the key."""
        self.skip_comments()
        token = self.peek
        if token.kind == ":":
            self.take()
            self.skip_comments()
            token = self.peek
            if token.kind not in (",", "}", "]"):
                return True
        elif token.kind == "word" and token.text in ("=", "=>", ":="):
            self.take()
            self.problem("missing-colon", token.start, token.end, f"{token.text!r} after a key", "write ':'", pointer)
            return True
        elif token.kind not in (",", "}", "]", "end"):
            self.problem("missing-colon", *span, f"a colon is missing after the key {name!r}", "add ':'", pointer)
            return True
        self.problem(
            "missing-value", *span, f"the key {name!r} has no value", "write ': VALUE' after it", pointer, clean=False
        )
        return False

    def duplicate(self, name: str, pointer: str, span: tuple[int, int]):
        first = self.document.places.get(pointer)
        where = f" (first in line {self.document.line_column(first.key[0])[0]})" if first and first.key else ""
        self.problem("duplicate-key", *span, f"the key {name!r} stands here twice{where}", "keep one of them", pointer)
