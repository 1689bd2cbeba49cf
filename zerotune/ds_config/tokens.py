"""Cut a text into JSON tokens, and into the things people write instead."""

from __future__ import annotations

import re
from typing import NamedTuple


class Token(NamedTuple):
    """kind: one of { } [ ] : , string number literal, the wrong ones quoted, word, comment, open_string, or end."""

    kind: str
    start: int
    end: int
    text: str

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


# Possessive quantifiers keep the time linear on hostile text.
_PATTERN = re.compile(
    r"""
      (?P<space>[ \t\r\n]++)
    | (?P<mark>[{}\[\]:,])
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.+\-]))
    | (?P<literal>(?:true|false|null)(?!\w))
    | (?P<comment>//[^\n]*+|\#[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?)
    | (?P<quoted>'(?:[^'\\\n]|\\[^\n])*+'|[“”„‘’‚][^“”„‘’‚"\n]*+[“”‘’])
    | (?P<open_string>["'][^\n]*+)
    | (?P<word>[^\s{}\[\]:,"']++|\s)
    """,
    re.VERBOSE,
)


def tokenize(text: str, limit: int) -> list[Token]:
    """Tokens with their offsets, spaces left out, ended by one `end` token; at most `limit` before it."""
    tokens = []
    append = tokens.append
    for match in _PATTERN.finditer(text):
        kind = match.lastgroup
        if kind == "space":
            continue
        body = match.group()
        append(Token(body if kind == "mark" else kind, match.start(), match.end(), body))
        if len(tokens) >= limit:
            break
    append(Token("end", len(text), len(text), ""))
    return tokens
