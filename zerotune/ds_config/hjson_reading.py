"""What plain DeepSpeed makes of a text that is no JSON: it reads files with Hjson.

runtime/config.py (0.19.8): hjson.load(file, object_pairs_hook=dict_raise_error_on_duplicate_keys).
"""

from __future__ import annotations

from .document import Document

# Hjson takes 3 us a character; the largest public config has 20,000.
MAX_CHARACTERS = 100_000


def read_as_hjson(document: Document) -> None:
    """When Hjson accepts the text, take its value and mark the document. hjson is loaded only when needed."""
    if len(document.text) > MAX_CHARACTERS:
        return
    import hjson

    try:
        value = hjson.loads(document.text)
    except (ValueError, RecursionError):
        return
    document.hjson = True
    document.value = _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
