"""What a check reports: one frozen record per thing that is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True)
class Fix:
    """One structured edit that would mend a finding.

    action: "set" (value), "remove", "rename" (value is the new key), "move" (value is the new pointer) or "text"
        (value replaces the characters of span).
    safe: the engine computes the same after the edit, or computes what the text plainly meant.
    """

    action: str
    pointer: str
    value: object = None
    safe: bool = False
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a config.

    severity: "error" = DeepSpeed (or the Trainer) refuses, hangs or computes wrongly; "warning" = the engine
    silently ignores what is written, or it costs much; "info" = worth knowing.
    line, column: 1-based place in the text; None when the source was a dict.
    length: how many characters of the line the finding is about.
    """

    rule: str
    slug: str
    severity: str
    pointer: str
    line: int | None
    column: int | None
    value: object
    message: str
    help: str
    fix: Fix | None = None
    source: str = ""
    length: int = 1

    def as_dict(self) -> dict:
        """Plain data for JSON; a value that JSON can't hold (NaN, for one) is written as text."""
        record = asdict(self)
        try:
            json.dumps(self.value, allow_nan=False)
        except (TypeError, ValueError):
            record["value"] = plain_text(self.value)
        return record


def plain_text(value: object) -> str:
    """repr, also of a number that Python refuses to print."""
    try:
        return repr(value)
    except ValueError:
        return "a number of over 4,300 digits"


def sort_key(finding: Finding) -> tuple:
    """By place in the text, then by severity, then by id."""
    place = (finding.line or 0, finding.column or 0) if finding.line else (1 << 30, 0)
    return (*place, SEVERITIES.index(finding.severity), finding.rule, finding.pointer, finding.message)
