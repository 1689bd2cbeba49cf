"""Findings as text: place, excerpt with caret, what to do, and one summary line."""

from __future__ import annotations

from .document import dotted
from .finding import SEVERITIES, Finding, sort_key

MAX_EXCERPT = 110


def text(findings: list[Finding], path: str, source: str | None) -> str:
    """The findings of one file.

    Args:
        path: how the file is called in the output.
        source: the file's text, for the excerpts; None for a dict.
    """
    lines = (source or "").split("\n")
    path = printable(str(path))  # train.py gives a Path
    parts = [_one(finding, path, lines) for finding in sorted(findings, key=sort_key)]
    parts.append(summary(findings, path))
    return "\n".join(parts)


def summary(findings: list[Finding], path: str) -> str:
    """One line: how many findings of each severity."""
    if not findings:
        return f"{path}: no findings"
    return f"{path}: {counts(findings)}"


def counts(findings: list[Finding]) -> str:
    """'2 errors, 1 warning'."""
    parts = []
    for severity in SEVERITIES:
        number = sum(finding.severity == severity for finding in findings)
        if number:
            parts.append(f"{number} {word(severity)}{'s' if number > 1 else ''}")
    return ", ".join(parts)


def word(severity: str) -> str:
    """How people read a severity."""
    return "note" if severity == "info" else severity


def printable(text: str) -> str:
    """One line that a terminal shows as it is."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _one(finding: Finding, path: str, lines: list[str]) -> str:
    place = f"{path}:{finding.line}:{finding.column}" if finding.line else path
    made = [f"{place}: {word(finding.severity)}: {printable(finding.message)} [{finding.rule} {finding.slug}]"]
    if finding.line and finding.line <= len(lines):
        made += excerpt(lines[finding.line - 1], finding.line, finding.column, finding.length)
    elif finding.pointer:
        made.append(f"    at {dotted(finding.pointer)}")
    if finding.help:
        made.append(f"    help: {printable(finding.help)}")
    return "\n".join(made)


def excerpt(line: str, number: int, column: int, length: int) -> list[str]:
    """The line and a second one that underlines the place. A long line is cut around it."""
    start = column - 1
    line = line.rstrip("\r").replace("\t", " ")
    if len(line) > MAX_EXCERPT:
        first = max(0, min(start - MAX_EXCERPT // 2, len(line) - MAX_EXCERPT))
        after = "..." if first + MAX_EXCERPT < len(line) else ""
        line = ("..." if first else "") + line[first : first + MAX_EXCERPT] + after
        start = start - first + (3 if first else 0)
    line = printable(line)
    label = f"{number:>5} | "
    marks = "^" * max(1, min(length, len(line) - start))
    return [f"{label}{line}", " " * (len(label) - 2) + "| " + " " * start + marks]
