"""--select and --ignore: which findings are shown."""

from __future__ import annotations

from zerotune.errors import nearest

from .finding import WARNING, Finding
from .rules import all_rules


def choose(findings: list[Finding], select: list[str], ignore: list[str]) -> list[Finding]:
    """Findings whose rule matches `select` (all, when empty) and not `ignore`.

    A name is a rule's id, the start of one (ZT5), or a slug. A name that matches no rule is itself a finding, since a
    typing mistake there would hide or show the wrong ones for years.
    """
    strangers = [name for name in (*select, *ignore) if not any(matches(name, *row) for row in names())]
    kept = [
        finding
        for finding in findings
        if (not select or any(matches(name, finding.rule, finding.slug) for name in select))
        and not any(matches(name, finding.rule, finding.slug) for name in ignore)
    ]
    return [unknown_rule(name) for name in dict.fromkeys(strangers)] + kept


def names() -> list[tuple[str, str]]:
    return [(rule.id, rule.slug) for rule in all_rules().values()] + [("ZT000", "rule-crashed")]


def matches(name: str, id: str, slug: str) -> bool:
    return bool(name) and (id.startswith(name.upper()) or name.lower() == slug)


def unknown_rule(name: str) -> Finding:
    close = nearest(name, [word for row in names() for word in row])
    help = f"nearest: {', '.join(close)}" if close else "docs/rules.md lists them"
    return Finding("ZT099", "unknown-rule", WARNING, "", None, None, name, f"there is no rule {name!r}", help)
