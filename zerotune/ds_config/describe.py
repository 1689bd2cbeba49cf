"""Rules and keys in words: for `explain` and the generated docs."""

from __future__ import annotations

import json
import textwrap

from .checking import check
from .context import Context
from .finding import Finding
from .history import dated, table, versions
from .rules import Case, Rule, all_rules
from .schema import Field, fields, listed
from .templates import TEMPLATES

# Findings that no rule of the table makes.
SPECIAL = {
    "ZT000": "ZT000 rule-crashed (warning)\n\nA rule failed on this config: a bug of zerotune. The other rules still "
    "ran; please report the file.",
    "ZT099": "ZT099 unknown-rule (warning)\n\nA name after --select or --ignore that matches no rule, so that a typing "
    "mistake there hides nothing for years.",
}


def find_rule(name: str) -> Rule | None:
    """By id or slug, in any case."""
    for rule in all_rules().values():
        if name.lower() in (rule.id.lower(), rule.slug):
            return rule
    return None


def find_key(name: str, version: str | None = None) -> list[Field]:
    """By dotted path, else every key of that name. Keys that only other versions have are found too."""
    found = {**{path: Field(path, node_of(path, entry), {}) for path, entry in table().items()}, **fields(version)}
    if name in found:
        return [found[name]]
    return [field for field in found.values() if field.name == name]


def node_of(path: str, entry: dict) -> dict:
    """A key of the table as a schema node, for one that the version's schema has no place for."""
    newest = fields().get(path)
    if newest and "x-removed" not in newest.node:
        return newest.node
    node = {name: value for name, value in entry.items() if name in ("default", "description")}
    types = ["object"] if entry.get("block") else entry.get("types")
    return {**node, "type": types} if types else node


def known_names() -> list[str]:
    rules = all_rules().values()
    keys = list({**fields(), **table()})
    names = [rule.id for rule in rules] + [rule.slug for rule in rules] + list(TEMPLATES)
    return names + keys + [key.rpartition(".")[2] for key in keys]


def describe_rule(rule: Rule) -> str:
    """The whole row as text."""
    bad, finding = example(rule)
    parts = [f"{rule.id} {rule.slug} ({rule.severity})", "", rule.why, ""]
    parts += ["Bad:", indent(bad.replace("\x00", "")), ""]
    if finding:
        parts += [f"  {finding.severity}: {finding.message}", f"  help: {finding.help}", ""]
    parts += ["Good:", indent(shown(rule.good[0])), "", f"Source: {rule.source}"]
    return "\n".join(parts)


def example(rule: Rule) -> tuple[str, Finding | None]:
    """The first bad example and what the rule says about it."""
    case = rule.bad[0]
    found = [f for f in check(case.full(), Context(**case.context)) if f.rule == rule.id]
    return shown(case), found[0] if found else None


def shown(case: Case, limit: int = 240) -> str:
    """An example as text, with the context that it needs."""
    source = case.source if isinstance(case.source, str) else json.dumps(_written(case.source))
    if len(source) > limit:
        source = source[: limit - 3] + "..."
    context = [f"{name}={value!r}" for name, value in case.context.items()]
    return f"{source}   # {', '.join(context)}" if context else source


def _written(source: object) -> object:
    """`...` in an example means that the key is left out."""
    if not isinstance(source, dict):
        return source
    return {key: _written(value) for key, value in source.items() if value is not ...}


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def describe_key(field: Field, version: str | None = None) -> str:
    """One key with type, range, default, what became of it, and whether this version has it."""
    lines = [f"{field.path}: {kind(field)}", f"  {field.node.get('description', '')}"]
    lines += [f"  {fact}" for fact in [*key_facts(field), *version_facts(field.path)]]
    if inner := keys_of(field.path, version):
        lines += textwrap.wrap(f"its keys: {', '.join(inner)}", 100, initial_indent="  ", subsequent_indent="    ")
    if dated(field.path, listed(version)):
        lines.append(f"  not a key of DeepSpeed {listed(version)}")
    return "\n".join(lines)


def keys_of(block: str, version: str | None = None) -> list[str]:
    """Names of a block's own keys, without those that are gone and second names."""
    inner = [field for field in fields(version).values() if field.where == block]
    old = {"x-alias-of", "x-removed", "x-deprecated-for"}
    return [field.name for field in inner if not old & set(field.node)]


def describe_template(name: str) -> str:
    template = TEMPLATES[name]
    facts = f"  suits: {template.suits}\n  costs: {template.costs}"
    return f"{name}: {template.purpose}\n{facts}\n  `zerotune-config generate {name}` prints it"


def since(path: str) -> str:
    """The version that brought a key; the table begins somewhere. Empty where no parser reads it."""
    entry = table().get(path)
    if entry is None or ("refused" in entry and "removed" not in entry):
        return ""
    return entry.get("since", f"{versions()[0]} or earlier")


def version_facts(path: str) -> list[str]:
    """In which versions a key came, changed and went."""
    entry, facts = table().get(path, {}), []
    if since(path):
        facts.append(f"since {since(path)}")
    for change in entry.get("was", ()):
        if "default" in change:
            facts.append(f"default {json.dumps(change['default'])} below {change['below']}")
    if "removed" in entry:
        new = f"; use {entry['renamed-to']}" if "renamed-to" in entry else ""
        refused = ", which refuses it" if entry.get("refused") == entry["removed"] else ""
        facts.append(f"removed in {entry['removed']}{refused}{new}")
    return facts


def kind(field: Field) -> str:
    """'integer or "auto", at least 0, elements, default 0'."""
    node = field.node
    if "x-removed" in node:
        return f"removed in DeepSpeed {node['x-removed']}"
    types = node.get("type", "any")
    types = [types] if isinstance(types, str) else types
    if "enum" in node:
        text = " | ".join(json.dumps(choice) for choice in node["enum"])
    else:
        automatic = node.get("pattern") == "^auto$"
        words = [
            '"auto"' if kind == "string" and automatic else "block" if kind == "object" else kind for kind in types
        ]
        text = " or ".join(words)
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    parts = [text] + [f"{word} {node[name]}" for name, word in bounds.items() if name in node]
    if "x-unit" in node:
        parts.append(node["x-unit"])
    if "default" in node:
        parts.append(f"default {json.dumps(node['default'])}")
    return ", ".join(parts)


def key_facts(field: Field) -> list[str]:
    """What else the schema knows."""
    node, facts = field.node, []
    if "x-auto" in node:
        facts.append(f'"auto" is filled by: {", ".join(node["x-auto"])}')
    if "x-stages" in node:
        facts.append(f"acts at ZeRO stage {', '.join(map(str, node['x-stages']))}")
    if "x-deprecated-for" in node:
        facts.append(f"deprecated; use {node['x-deprecated-for']}")
    if "x-alias-of" in node:
        facts.append(f"other name of {node['x-alias-of']}")
    if "x-unknown" in node:
        facts.append(f"keys that it does not know are {node['x-unknown']}")
    return facts
