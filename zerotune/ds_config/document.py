"""A parsed config: plain value, where each part stands in the text, and what was wrong with the text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """Half-open ranges of offsets in the text; `key` is None for array items and the top value."""

    key: tuple[int, int] | None
    value: tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """Something wrong with the text itself.

    code: slug of the reading rule that reports it (zerotune/ds_config/rules/reading.py).
    clean: what was meant is beyond doubt, so the rest of the document can be judged.
    repair: (start, end, text) that makes it JSON; None when nobody can tell.
    """

    code: str
    start: int
    end: int
    message: str
    help: str
    pointer: str = ""
    clean: bool = True
    repair: tuple[int, int, str] | None = None


@dataclass
class Document:
    """value: plain Python data, the last of duplicate keys wins as in json.load. text: None for a dict source.

    hjson: Hjson, which plain DeepSpeed reads, makes sense of a text that is no JSON; `value` is its reading.
    yaml: the text is YAML, so nothing can be mended in it.
    launch: of a file of `accelerate config`: config_file (the JSON that it names, or None) and what it says about the
        run: world_size, nodes, zero_init. None for other sources.
    """

    value: object = None
    text: str | None = None
    places: dict[str, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    hjson: bool = False
    yaml: bool = False
    launch: dict | None = None
    _line_starts: list[int] | None = None

    @property
    def judgeable(self) -> bool:
        """Whether keys and values are here, and what was meant is plain enough to judge them."""
        if self.launch and self.launch["config_file"] is not None:
            return False
        return self.hjson or all(problem.clean for problem in self.problems)

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        if self._line_starts is None:
            starts = [0]
            position = self.text.find("\n")
            while position != -1:
                starts.append(position + 1)
                position = self.text.find("\n", position + 1)
            self._line_starts = starts
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, pointer: str, prefer_key: bool) -> tuple[int, int] | None:
        """Range to point at. A pointer that isn't in the text gets the key of its nearest parent that is."""
        if self.text is None:
            return None
        place = self.places.get(pointer)
        while place is None and pointer:
            pointer, prefer_key = pointer.rpartition("/")[0], True
            place = self.places.get(pointer)
        if place is None:
            return None
        return place.key if prefer_key and place.key else place.value


def join(pointer: str, key: object) -> str:
    """JSON pointer of a child (RFC 6901: ~ and / are escaped)."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def split(pointer: str) -> list[str]:
    """The keys of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def dotted(pointer: str) -> str:
    """A pointer the way people write it: zero_optimization.stage."""
    return ".".join(split(pointer))
