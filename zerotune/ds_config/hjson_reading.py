"""What plain DeepSpeed makes of a text that is no JSON: it reads files with Hjson.

runtime/config.py (0.19.8): hjson.load(file, object_pairs_hook=dict_raise_error_on_duplicate_keys).
"""

from __future__ import annotations

from .document import Document


def read_as_hjson(document: Document) -> None:
    """When Hjson accepts the text, take its value and mark the document. hjson is loaded only when needed."""
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
