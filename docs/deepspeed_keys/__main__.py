"""Write zerotune/ds_config/deepspeed.history.json: every config key of DeepSpeed 0.16.0 to 0.19.8, and what changed.

python docs/deepspeed_keys --sources FOLDER           downloads what FOLDER lacks, reads, writes
python docs/deepspeed_keys --sources FOLDER --check   compares; exits 1 when the table is stale

Sentences for keys that deepspeed.schema.json has no more stand in words.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sources import Sources, download
from table import merge, read_release

TARGET = Path(__file__).resolve().parents[2] / "zerotune" / "ds_config"
HISTORY, SCHEMA = TARGET / "deepspeed.history.json", TARGET / "deepspeed.schema.json"
LAST_PATCH = {"0.16": 9, "0.17": 6, "0.18": 9, "0.19": 8}
VERSIONS = [f"{minor}.{patch}" for minor, last in LAST_PATCH.items() for patch in range(last + 1)]


def build(folder: Path) -> dict:
    releases = {}
    for version in VERSIONS:
        releases[version] = read_release(Sources.of_archive(download(version, folder)))
        print(f"{version}: {len(releases[version])} keys", file=sys.stderr)
    return merge(releases, described(json.loads(SCHEMA.read_text(encoding="utf-8"))))


def described(node: dict, path: str = "") -> set[str]:
    """Dotted paths of the schema that are still keys."""
    found = set()
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found |= described(child, here) | (set() if "x-removed" in child else {here})
    return found


def text_of(table: dict) -> str:
    """One key a line: small, and a diff shows what a release changed."""
    rows = [f"{json.dumps(path)}: {json.dumps(entry, sort_keys=True)}" for path, entry in table["keys"].items()]
    return '{\n"versions": %s,\n"keys": {\n%s\n}}\n' % (json.dumps(table["versions"]), ",\n".join(rows))  # noqa: UP031


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, help="Folder of deepspeed-X.tar.gz.")
    parser.add_argument("--check", action="store_true", help="Write nothing.")
    options = parser.parse_args()
    text = text_of(build(options.sources))
    if options.check:
        fresh = HISTORY.read_text(encoding="utf-8") == text
        print(f"{HISTORY.name} is {'fresh' if fresh else 'stale'}")
        return 0 if fresh else 1
    HISTORY.write_text(text, encoding="utf-8")
    print(f"{HISTORY.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
