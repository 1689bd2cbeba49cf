"""Write docs/rules.md, docs/keys.md and docs/templates.md from the code.

python docs/generate.py            writes
python docs/generate.py --check    compares; prints a diff and exits 1 when a page is stale
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from zerotune.ds_config.describe import example, key_facts, kind, node_of, shown, since  # noqa: E402
from zerotune.ds_config.history import table, versions  # noqa: E402
from zerotune.ds_config.resolve import resolve, template_names  # noqa: E402
from zerotune.ds_config.rules import Rule, all_rules  # noqa: E402
from zerotune.ds_config.schema import Field, fields, schema  # noqa: E402
from zerotune.ds_config.templates import TEMPLATES  # noqa: E402

NOTE = "<!-- Made by docs/generate.py; do not edit. -->\n"
HEAD = ["| key | type, range, default | since | removed | meaning |", "|---|---|---|---|---|"]
GROUPS = {
    "0": "The text",
    "1": "Keys and values",
    "2": '"auto" and the Trainer\'s flags',
    "3": "Batch size",
    "4": "Precision",
    "5": "Offload",
    "6": "Optimizer and scheduler",
    "7": "Gradients, communication and ZeRO++",
    "8": "Other features",
    "9": "Versions",
}


def rules_page() -> str:
    rules = list(all_rules().values())
    parts = [
        NOTE,
        "# Rules of `zerotune-config validate`\n",
        "**error**: DeepSpeed (or the Trainer) refuses it, hangs on it or computes wrongly. **warning**: it is "
        "silently ignored, or costs much. **note**: worth knowing. Where a rule names no entry point it holds for the "
        "Trainer, accelerate and plain `deepspeed.initialize`.\n",
        f"{len(rules)} rules, checked against DeepSpeed {schema()['x-deepspeed']}.\n",
    ]
    for digit, title in GROUPS.items():
        group = [rule for rule in rules if rule.id[2] == digit]
        if group:
            parts.append(f"## {title}\n")
            parts += [rule_section(rule) for rule in group]
    return "\n".join(parts)


def rule_section(rule: Rule) -> str:
    bad, finding = example(rule)
    severity = "note" if rule.severity == "info" else rule.severity
    lines = [f"### {rule.id} {rule.slug}\n", f"**{severity}**. {rule.why}\n", "```text", f"bad   {clean(bad)}"]
    if finding:
        lines += [f"      {finding.severity}: {finding.message}", f"      help: {finding.help}"]
    lines += [f"good  {clean(shown(rule.good[0]))}", "```\n", f"Source: {rule.source}\n"]
    return "\n".join(lines)


def clean(text: str) -> str:
    """An example on one line; what can't be seen is escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def keys_page() -> str:
    parts = [
        NOTE,
        f"# Keys of a DeepSpeed config ({schema()['x-deepspeed']})\n",
        "From the JSON Schema, `zerotune-config schema`, and the released packages of DeepSpeed "
        f"{versions()[0]} to {versions()[-1]} (`docs/deepspeed_keys`). At the top level DeepSpeed ignores keys that it "
        f'does not know. Since: "-" is {versions()[0]} or earlier; empty where no parser reads the key.\n',
        *HEAD,
    ]
    for field in fields().values():
        if not field.where and "properties" not in field.node and "x-removed" not in field.node:
            parts.append(key_row(field))
    for field in fields().values():
        if "properties" in field.node:
            parts += block_section(field)
    return "\n".join([*parts, *gone_section()]) + "\n"


def gone_section() -> list[str]:
    """Keys that the newest version no longer has, and those below blocks that take any key."""
    lines = ["\n## Keys that went, and keys of open blocks\n", *HEAD]
    for path, entry in table().items():
        if path not in fields() or "x-removed" in fields()[path].node:
            lines.append(key_row(Field(path, node_of(path, entry), {}), path))
    return lines


def block_section(field: Field) -> list[str]:
    facts = "; ".join(key_facts(field))
    lines = [f"\n## {field.path}\n", field.node["description"] + (f" ({facts})" if facts else "") + "\n"]
    lines += HEAD
    children = [child for child in fields().values() if child.where == field.path and "x-removed" not in child.node]
    return lines + [key_row(child) for child in children]


def key_row(field: Field, name: str | None = None) -> str:
    entry = table().get(field.path, {})
    came = "-" if since(field.path).endswith("earlier") else since(field.path)
    went = entry.get("removed", entry.get("refused", ""))
    facts = [*key_facts(field), *changes(entry)]
    cells = [f"`{name or field.name}`", kind(field), came, went]
    cells.append(" ".join([field.node.get("description", ""), *map(sentence, facts)]))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def changes(entry: dict) -> list[str]:
    found = [
        f"default {json.dumps(old['default'])} below {old['below']}" for old in entry.get("was", ()) if "default" in old
    ]
    return found + ([f"now {entry['renamed-to']}"] if "renamed-to" in entry else [])


def sentence(fact: str) -> str:
    return fact[0].upper() + fact[1:] + "."


def templates_page() -> str:
    parts = [
        NOTE,
        "# Templates\n",
        "`zerotune-config generate NAME` prints one, `--ds NAME` trains with it. `ds_configs/README.md` explains the "
        "numbers.\n",
    ]
    for name in template_names():
        template = TEMPLATES[name]
        parts += [f"## {name}\n", sentence(template.purpose) + "\n", f"- Suits: {template.suits}."]
        parts += [f"- Costs: {template.costs}.\n", "```json", resolve(name).text.rstrip(), "```\n"]
    return "\n".join(parts)


PAGES = {"rules.md": rules_page, "keys.md": keys_page, "templates.md": templates_page}


def stale(folder: Path = DOCS) -> list[str]:
    """Diff lines between the pages on disk and fresh ones."""
    lines: list[str] = []
    for name, make in PAGES.items():
        path = folder / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        lines += difflib.unified_diff(
            old.splitlines(), make().splitlines(), f"docs/{name}", f"docs/{name} (fresh)", lineterm="", n=1
        )
    return lines


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments:
        lines = stale()
        print("\n".join(lines) if lines else "docs are fresh")
        return 1 if lines else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        print(f"docs/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
