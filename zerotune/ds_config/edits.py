"""Edits of a config's text that leave everything else as it stands: order, indentation, comments.

An edit goes through a pointer or a span, and the text is parsed anew after each, so that offsets never lie.
"""

from __future__ import annotations

import json
import re

from .document import Document, Place, split
from .finding import Fix
from .parser import parse


def apply(text: str, fix: Fix) -> str | None:
    """The text after the edit; None when it can't be made."""
    document = parse(text)
    if fix.action == "text":
        start, end = fix.span
        return text[:start] + fix.value + text[end:]
    if fix.action == "set":
        return _set(document, fix.pointer, json.dumps(fix.value))
    if fix.action == "remove":
        return _remove(document, fix.pointer)
    if fix.action == "rename":
        place = document.places.get(fix.pointer)
        if place is None or place.key is None:
            return None
        return text[: place.key[0]] + json.dumps(fix.value) + text[place.key[1] :]
    return _move(document, fix.pointer, fix.value)


def _set(document: Document, pointer: str, value: str) -> str | None:
    place = document.places.get(pointer)
    if place is not None:
        start, end = place.value
        return document.text[:start] + value + document.text[end:]
    return _insert(document, pointer, value)


def _insert(document: Document, pointer: str, value: str) -> str | None:
    """A new last member of the parent block, indented like its neighbours."""
    parent, _, _ = pointer.rpartition("/")
    name = json.dumps(split(pointer)[-1])
    block = document.places.get(parent)
    if block is None:
        # The parent block is missing too: make it, holding the value.
        return _insert(document, parent, f"{{{name}: {value}}}") if parent else None
    start, end = block.value
    text = document.text
    if text[start] != "{":
        return None
    last = _last_member(document, parent)
    if last is None:
        return f"{text[:start]}{{{name}: {value}}}{text[end:]}"
    indent = _indent_before(text, last.key[0])
    return text[: last.value[1]] + f",{indent}{name}: {value}" + text[last.value[1] :]


def _last_member(document: Document, parent: str) -> Place | None:
    depth = parent.count("/") + 1
    members = [
        place
        for pointer, place in document.places.items()
        if place.key and pointer.startswith(f"{parent}/") and pointer.count("/") == depth
    ]
    return max(members, key=lambda place: place.value[1], default=None)


def _indent_before(text: str, offset: int) -> str:
    """What separates a member from the one before: a line break with indentation, or a space."""
    found = re.search(r"\n[ \t]*\Z", text[:offset])
    return found.group() if found else " "


def _remove(document: Document, pointer: str) -> str | None:
    place = document.places.get(pointer)
    if place is None or place.key is None:
        return None
    text, start, end = document.text, place.key[0], place.value[1]
    after = re.match(r"[ \t\r\n]*,", text[end:])
    before = re.search(r",[ \t\r\n]*\Z", text[:start])
    if after:
        # Up to the next member, so that its indentation takes the place of this one's.
        end += after.end()
        end += re.match(r"[ \t\r\n]*", text[end:]).end()
    elif before:
        start = before.start()
    else:
        start -= len(re.search(r"[ \t\r\n]*\Z", text[:start]).group())
        end += re.match(r"[ \t\r\n]*", text[end:]).end()
    return text[:start] + text[end:]


def _move(document: Document, pointer: str, target: str) -> str | None:
    place = document.places.get(pointer)
    if place is None or target in document.places:
        return None
    value = document.text[slice(*place.value)]
    removed = _remove(document, pointer)
    return None if removed is None else _insert(parse(removed), target, value)
