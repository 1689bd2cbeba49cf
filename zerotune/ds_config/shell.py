"""The commands of a shell script, as far as they can be known without running it.

Words are split and quotes taken off as a POSIX shell does; variables that the script itself sets are put in their
place. What only the shell could know ($1, $(...), variables from outside) becomes UNKNOWN plus its name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from itertools import pairwise

from zerotune.errors import UsageError

# A private-use character: no script has it. It stands before the name of what is not known.
UNKNOWN = "\ue000"
MAX_LENGTH = 200_000
# 0.4 s; launch scripts have some 3,000 characters.
MAX_TEXT = 1 << 16
# What a text within the text (bash -c) counts at least, so that they end.
LEAST_TEXT = 1000
# Expansions have bounds, or a text of unclosed ones would take the square of its length.
_EXPANSION = r"\$\((?:[^()]|\([^()]{0,200}+\)){0,200}+\)|`[^`]{0,500}+`|\$\{[^}]{0,200}+\}|\$[A-Za-z_]\w*+|\$[\d@*\#?]"
_TOKEN = re.compile(
    rf"""
      (?P<space>(?:[ \t\r]|\\\r?\n)++)
    | (?P<comment>\#[^\n]*+)
    | (?P<redirect>(?:&>>?|\d?(?:>>|>|<))(?:&\d)?)
    | (?P<end>&&|\|\||[\n;|&)])
    | (?P<array>[A-Za-z_]\w*+\+?=\()
    | (?P<open>\()
    | (?P<word>(?:\\\r?\n|\\.|'[^']*+'|"(?:\\.|[^"\\])*+"|{_EXPANSION}|[^\s;&|()<>'"\\`])++)
    | (?P<wrong>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(
    rf"""
      (?P<joined>\\\r?\n)
    | \\(?P<escaped>.)
    | '(?P<single>[^']*+)'
    | "(?P<double>(?:\\.|[^"\\])*+)"
    | (?P<expansion>{_EXPANSION})
    | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(rf"""\\\r?\n|\\([$`"\\])|{_EXPANSION}""")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$\{?([A-Za-z_]\w*)(\[[@*]\])?(?::?[-=](.*?))?\}?", re.DOTALL)
_SHELLS = ("bash", "sh", "zsh")
_SETTERS = ("export", "declare", "local", "readonly", "-x")


@dataclass(frozen=True)
class Command:
    """words: without the assignments before it; environment: those, and what was exported or set above."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Script:
    """A text of commands, and what is set around it."""

    text: str
    variables: dict[str, str] = field(default_factory=dict)


def commands(text: str) -> list[Command]:
    """All simple commands, in the order of the text; those of `bash -c TEXT` and `eval TEXT` in their place.

    Raises:
        UsageError: quotes that are not closed, or texts or variables that grow without bound.
    """
    found, waiting, length = [], [_Script(text)], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, Command):
            found.append(item)
            continue
        length += max(len(item.text), LEAST_TEXT)
        if length > MAX_TEXT:
            raise UsageError(f"--training-args: more than {MAX_TEXT:,} characters; name the launch line alone")
        waiting += [_inner(command) or command for command in reversed(_simple(item))]
    return found


def _simple(script: _Script) -> list[Command]:
    reader = _Reader(script.variables)
    for match in _TOKEN.finditer(script.text):
        reader.take(match.lastgroup, match.group())
    reader.finish()
    return reader.found


def _inner(command: Command) -> _Script | None:
    """What `bash -c TEXT`, wherever it stands in the line, or `eval TEXT` runs."""
    words = command.words
    if words[0] == "eval":
        return _Script(" ".join(words[1:]), command.environment)
    for number, (word, option) in enumerate(pairwise(words[:-1])):
        if word.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-\w*c", option):
            return _Script(words[number + 2], command.environment)
    return None


class _Reader:
    def __init__(self, variables: dict[str, str]) -> None:
        self.found: list[Command] = []
        self.variables: dict[str, list[str]] = {name: [value] for name, value in variables.items()}
        self.words: list[str] = []
        self.own: dict[str, list[str]] = {}
        self.array: str | None = None
        self.skip = False

    def take(self, kind: str, token: str) -> None:
        if kind == "wrong":
            raise UsageError(f"--training-args can't be split into words: {token} has no partner")
        if kind == "redirect":
            self.skip = "&" not in token[1:]
        elif kind == "array":
            self.array, _, _ = token.partition("=")
            name = self.array.rstrip("+")
            self.variables[name] = list(self.variables.get(name, [])) if token[-3] == "+" else []
        elif kind == "end" and self.array is not None:
            self.array = None if token == ")" else self.array
        elif kind == "end":
            self.finish()
        elif kind == "word" and self.skip:
            self.skip = False
        elif kind == "word" and self.array is not None:
            self.variables[self.array.rstrip("+")] += self.expand(token)
        elif kind == "word":
            self.word(token)

    def word(self, token: str) -> None:
        assignment = _ASSIGNMENT.fullmatch(token)
        if assignment and all(word in _SETTERS for word in self.words):
            name, more, text = assignment.groups()
            before = " ".join(self.variables.get(name, [])) if more else ""
            self.own[name] = [before + " ".join(self.expand(text, split=False))]
            return
        self.words += self.expand(token)

    def finish(self) -> None:
        """The end of a command: assignments before it are its own, those alone or exported stay."""
        alone = all(word in _SETTERS for word in self.words)
        if alone:
            self.variables |= self.own
        else:
            together = {**self.variables, **self.own}
            environment = {name: " ".join(value) for name, value in together.items()}
            self.found.append(Command(self.words, environment))
        self.words, self.own, self.skip = [], {}, False

    def expand(self, token: str, split: bool = True) -> list[str]:
        """The words that a shell makes of one: quotes off, known variables in place, bare ones split at spaces."""
        words, here = [], None
        for piece in _PIECE.finditer(token):
            kind, text = piece.lastgroup, piece.group(piece.lastgroup)
            if kind == "joined":
                continue
            if kind == "double" and (found := self.all_of(text)) is not None:
                parts = found
            elif kind == "expansion":
                parts = self.value(text) if not split else [w for part in self.value(text) for w in part.split()]
            else:
                parts = [self.inside(text) if kind == "double" else text]
            for number, part in enumerate(parts):
                if number:
                    words.append(here or "")
                    here = None
                here = (here or "") + part
        words += [] if here is None else [here]
        if sum(map(len, words)) > MAX_LENGTH:
            raise UsageError(f"--training-args: a variable grows beyond {MAX_LENGTH:,} characters")
        return words

    def all_of(self, text: str) -> list[str] | None:
        """The words of "${NAME[@]}"; None for any other text in double quotes."""
        found = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[@\]\}", text)
        return self.variables.get(found[1], [UNKNOWN + found[1]]) if found else None

    def inside(self, text: str) -> str:
        """A text in double quotes."""
        return _QUOTED.sub(lambda m: m[1] or ("" if m[0][0] == "\\" else " ".join(self.value(m[0]))), text)

    def value(self, expansion: str) -> list[str]:
        """What an expansion stands for."""
        if expansion.startswith("$((") and (number := self.arithmetic(expansion[3:-2])) is not None:
            return [str(number)]
        found = _PARAMETER.fullmatch(expansion)
        if found is None:
            name = "".join(expansion.strip("${}`").split())
            return [UNKNOWN + re.sub(r"[^\w@*:?#-]+", ".", name)]  # a word of any shell that reads it again
        name, _, default = found.groups()
        if name in self.own or name in self.variables:
            return self.own.get(name) or self.variables.get(name, [])
        return [UNKNOWN + name] if default is None else [default.strip("\"'")]

    def arithmetic(self, text: str) -> int | None:
        """Sums and products of whole numbers and known variables, as in $((NODES * 8))."""
        plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: "".join(self.variables.get(m[1], ["?"])), text)
        if not re.fullmatch(r"[\d\s+*/()-]{1,80}", plain):
            return None
        try:
            return _number(ast.parse(plain.strip().replace("/", "//"), mode="eval").body)
        except (SyntaxError, ZeroDivisionError, KeyError):
            return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant):
        return node.value
    actions = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.FloorDiv: int.__floordiv__}
    if not isinstance(node, ast.BinOp):
        raise KeyError(type(node))
    return actions[type(node.op)](_number(node.left), _number(node.right))
