"""Every finding about one config in one context. Pure: no disk, no GPU, nothing is changed."""

from __future__ import annotations

import copy
from dataclasses import replace

from .context import ACCELERATE, ENTRIES, RAW, Context
from .document import Document, dotted
from .finding import ERROR, Finding, plain_text, sort_key
from .hjson_reading import read_as_hjson
from .parser import parse
from .plain import document_of_dict
from .resolve import ResolvedConfig, is_yaml
from .rules import all_rules
from .rules.rule import Hit, Rule
from .view import MISSING, View


def check(source: str | dict | ResolvedConfig, context: Context | None = None) -> list[Finding]:
    """All findings, sorted by place.

    Args:
        source: JSON text, a ResolvedConfig, or a dict.
        context: what is known about the run; by default an HF Trainer run of unknown size.

    Raises:
        ValueError: a context that names no entry point (a mistake of the calling program).
    """
    context = context or Context()
    if context.entry not in ENTRIES:
        raise ValueError(f"entry is {context.entry!r}; one of {', '.join(ENTRIES)}")
    view = view_of(source, context)
    findings = []
    for rule in all_rules().values():
        findings.extend(_run(rule, view))
    return sorted(without_repeats(findings), key=sort_key)


def view_of(source: str | dict | ResolvedConfig, context: Context) -> View:
    """A source in its context; what accelerate's file says about the run fills in what the context leaves open."""
    document = read(source, context)
    return View(document, context if document.launch is None else around(context, document.launch))


def around(context: Context, launch: dict) -> Context:
    """A context with the facts of accelerate's file (Document.launch). Plain DeepSpeed never reads that file."""
    open_facts = ("world_size", "nodes", "zero_init")
    facts = {name: launch.get(name) for name in open_facts if getattr(context, name) is None}
    return replace(context, entry=ACCELERATE if context.entry == RAW else context.entry, **facts)


def read(source: str | dict | ResolvedConfig, context: Context) -> Document:
    """Parse a source into a document, the way the entry point reads it."""
    name = ""
    if isinstance(source, ResolvedConfig):
        name, source = source.name, source.text
    if not isinstance(source, str):
        return document_of_dict(source)
    if is_yaml(name, source):
        from .yaml_reading import read_yaml

        return read_yaml(source)
    document = parse(source)
    # Hjson's own reader has no bounds.
    hopeless = any(problem.code in ("too-large", "nesting", "empty-file") for problem in document.problems)
    if context.entry == RAW and document.problems and not hopeless:
        read_as_hjson(document)
    return document


def without_repeats(findings: list[Finding]) -> list[Finding]:
    """Two rules' hits on one place with one message count once. Values may be unhashable, so no set of findings."""
    seen, kept = set(), []
    for finding in findings:
        key = (finding.rule, finding.pointer, finding.line, finding.column, finding.message)
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept


def _run(rule: Rule, view: View) -> list[Finding]:
    """One rule's findings. A rule that crashes becomes a finding: a bug here must not hide the others."""
    try:
        return [_finding(rule, hit, view) for hit in rule.find(view)]
    except Exception as bug:
        message = f"rule {rule.id} ({rule.slug}) failed on this config: {type(bug).__name__}: {bug}"
        help = "this is a bug of zerotune, not of your config; please report it with the file"
        return [Finding("ZT000", "rule-crashed", "warning", "", None, None, None, message, help)]


def _finding(rule: Rule, hit: Hit, view: View) -> Finding:
    document = view.document
    value = view.get_pointer(hit.pointer, None)
    facts = {"key": dotted(hit.pointer), "value": shown(value), **hit.facts}
    span = hit.span or document.span(hit.pointer, hit.at_key)
    line = column = None
    length = 1
    if span and document.text is not None:
        line, column = document.line_column(span[0])
        # About the whole config: its first brace is enough.
        length = max(1, span[1] - span[0]) if hit.pointer or hit.span else 1
    return Finding(
        rule=rule.id,
        slug=rule.slug,
        severity=hit.severity or rule.severity,
        pointer=hit.pointer,
        line=line,
        column=column,
        value=copy.deepcopy(value),
        message=rule.message.format_map(facts),
        help=rule.help.format_map(facts),
        fix=None if document.yaml else hit.fix,
        source=rule.source,
        length=length,
    )


def shown(value: object, limit: int = 60) -> str:
    """A value as it stands in JSON, shortened."""
    import json

    if value is MISSING:
        return "nothing"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = plain_text(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def has_errors(findings: list[Finding]) -> bool:
    return any(finding.severity == ERROR for finding in findings)
