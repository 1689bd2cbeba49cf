"""--fix: apply the fixes of findings until none is left."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from .checking import check
from .context import Context
from .edits import apply
from .finding import Finding

MAX_EDITS = 200


@dataclass(frozen=True)
class Fixed:
    """text: after all edits. applied: the findings that were mended, in order."""

    text: str
    applied: tuple[Finding, ...]


def fix(text: str, context: Context, unsafe: bool = False) -> Fixed:
    """Mend what can be mended. Safe fixes only, unless `unsafe`.

    After each edit the text is checked anew: one fix may make another needless, or move it.
    """
    applied: list[Finding] = []
    seen = {text}
    while len(applied) < MAX_EDITS:
        for finding in check(text, context):
            if finding.fix is None or not (finding.fix.safe or unsafe):
                continue
            changed = apply(text, finding.fix)
            if changed is not None and changed not in seen:
                seen.add(changed)
                applied.append(finding)
                text = changed
                break
        else:
            break
    return Fixed(text, tuple(applied))


def diff(before: str, after: str, path: str) -> str:
    """A unified diff with two lines of context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, f"{path} (fixed)", lineterm="", n=2)
    return "\n".join(lines)
