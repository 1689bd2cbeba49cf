"""What can be wrong with a text: the words for each mistake, and whether reading can go on behind it."""

from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """message, help: with {facts}. clean: what was meant is beyond doubt. fatal: nothing behind it can be read."""

    message: str
    help: str
    clean: bool = True
    fatal: bool = False


MISTAKES = {
    "byte-order-mark": Mistake("the file starts with a byte order mark", "save it as UTF-8 without BOM"),
    "too-large": Mistake("more than {limit} tokens", "this is no DeepSpeed config", False, True),
    "empty-file": Mistake("there is no config in it", "zerotune-config generate stage2 prints one", False, True),
    "lfs-pointer": Mistake("this is a pointer of Git LFS, not the config", "run git lfs pull", False, True),
    "trailing-text": Mistake(
        "there is text after the end of the config", "delete it, or look for a brace closed too early", False, True
    ),
    "comment": Mistake("JSON has no comments", "delete it"),
    "nesting": Mistake("nested more than {limit} levels deep", "a DeepSpeed config needs at most five", False, True),
    "string-syntax": Mistake("{what}", r"write it with JSON escapes: \n, \t, \", \\"),
    "single-quotes": Mistake('strings need straight double quotes: "', "write {better}"),
    "python-literal": Mistake("{what}", "{todo}"),
    "not-finite": Mistake("{what}", "{todo}"),
    "infinity": Mistake("{word}", "{todo}"),
    "number-syntax": Mistake("{what}", "{todo}"),
    "bare-word": Mistake("{what}", "{todo}", clean=False),
    "bare-key": Mistake("the key {word} has no quotes", "write {better}"),
    "open-string": Mistake("a string is never closed", "close it with {quote}", False, True),
    "missing-value": Mistake("{what}", "write the value", False),
    "missing-key": Mistake("a key in double quotes should stand here, not {word!r}", "write the key", False, True),
    "unclosed": Mistake(
        "{bracket!r} of line {line}, column {column} is never closed",
        "add {closer!r}, or look for one too few above the end",
        False,
        True,
    ),
    "wrong-bracket": Mistake("{word!r} closes the {bracket!r} of line {line}", "write {closer!r}", False, True),
    "trailing-comma": Mistake("a comma before {word!r}", "delete the comma"),
    "extra-comma": Mistake("a comma with nothing before it", "delete the comma"),
    "missing-comma": Mistake("a comma is missing after this", "add ',' at the end of it"),
    "missing-colon": Mistake("{what}", "{todo}"),
    "duplicate-key": Mistake("the key {name!r} stands here twice{first}", "keep one of them"),
}
# A key without quotes is explained with the words of bare-word's rule.
CODES = {"bare-key": "bare-word"}
