"""Findings for machines: JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
import math
from pathlib import PurePath
from urllib.parse import quote

from .finding import Finding
from .rules import Rule, all_rules

LEVELS = {"error": "error", "warning": "warning", "info": "note"}
Results = list[tuple[str, list[Finding]]]


def as_json(results: Results, effective: list[list[dict] | None] | None = None) -> str:
    """One document. effective: per file, the values that the engine will run with."""
    files = []
    for number, (path, findings) in enumerate(results):
        record: dict = {"path": path, "findings": [finding.as_dict() for finding in findings]}
        if effective and effective[number] is not None:
            record["effective"] = [finite(row) for row in effective[number]]
        files.append(record)
    return json.dumps({"files": files}, indent=2)


def finite(row: dict) -> dict:
    """JSON has no infinity."""
    value = row["value"]
    return {**row, "value": str(value)} if isinstance(value, float) and not math.isfinite(value) else row


def as_github(results: Results) -> str:
    """Workflow commands; docs.github.com/actions/reference/workflow-commands-for-github-actions."""
    return "\n".join(annotation(path, finding) for path, findings in results for finding in findings)


def annotation(path: str, finding: Finding) -> str:
    kind = {"info": "notice"}.get(finding.severity, finding.severity)
    place = {"file": path, "title": f"{finding.rule} {finding.slug}"}
    if finding.line:
        place |= {"line": finding.line, "col": finding.column}
    properties = ",".join(f"{name}={escape(str(value), ':,')}" for name, value in place.items())
    return f"::{kind} {properties}::{escape(f'{finding.message}{chr(10)}{finding.help}')}"


def escape(text: str, more: str = "") -> str:
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def as_sarif(results: Results, version: str) -> str:
    """One run; docs.oasis-open.org/sarif/sarif/v2.1.0."""
    used = {finding.rule for _, findings in results for finding in findings}
    rules = [sarif_rule(rule) for rule in all_rules().values() if rule.id in used]
    driver = {"name": "zerotune-config", "version": version, "rules": rules}
    found = [sarif_result(path, finding) for path, findings in results for finding in findings]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}],
    }
    return json.dumps(log, indent=2)


def sarif_rule(rule: Rule) -> dict:
    return {
        "id": rule.id,
        "name": "".join(part.title() for part in rule.slug.split("-")),
        "shortDescription": {"text": rule.slug.replace("-", " ")},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} Source: {rule.source}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def sarif_result(path: str, finding: Finding) -> dict:
    location: dict = {"artifactLocation": {"uri": quote(PurePath(path).as_posix(), errors="surrogateescape")}}
    if finding.line:
        location["region"] = {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endColumn": finding.column + finding.length,
        }
    return {
        "ruleId": finding.rule,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {finding.help}" if finding.help else finding.message},
        "locations": [{"physicalLocation": location}],
    }
