"""The forms in which examples come, told by their columns, and how the foreign ones become ours."""

from __future__ import annotations

from zerotune.errors import UsageError

# Form -> its columns; the first form whose columns are all there is taken.
COLUMNS = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "completion": ("prompt", "completion"),
    "instruction": ("instruction", "output"),
    "text": ("text",),
}
OPTIONAL = {"instruction": ("input",)}
NEEDED = (
    "`text`, `prompt` and `completion`, chat `messages`, `instruction` and `output` (Alpaca) "
    "or `conversations` (ShareGPT)"
)
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}


def kind_of(columns: list[str], name: str) -> str:
    """Which form the examples have: a key of COLUMNS.

    Raises:
        UsageError: none of them; the columns that are there are listed.
    """
    for kind, needed in COLUMNS.items():
        if set(needed) <= set(columns):
            return kind
    shown = [column for column in columns if not column.startswith("__")]  # pandas' index is not the user's
    separator = next((mark for mark in (";", "\t", "|") if any(mark in column for column in shown)), None)
    hint = f" They seem to be separated by {separator!r}: write the file with commas." if separator else ""
    raise UsageError(
        f"{name}: no usable column. Columns there: {', '.join(shown) or 'none'}.{hint} Needed: {NEEDED}. "
        "Rename yours, or write them in one of these forms."
    )


def columns_of(kind: str, columns: list[str]) -> list[str]:
    """The columns of a data set that its form reads."""
    return [*COLUMNS[kind], *(name for name in OPTIONAL.get(kind, ()) if name in columns)]


def is_chat(kind: str) -> bool:
    """Whether every example of this form is a chat."""
    return kind in ("messages", "conversations")


def to_completion(row: dict) -> dict:
    """An Alpaca row as prompt and completion, each part a paragraph."""
    parts = [part for part in (row["instruction"], row.get("input")) if part]
    return {"prompt": "".join(f"{part}\n\n" for part in parts), "completion": row["output"]}


def to_messages(row: dict) -> dict:
    """A ShareGPT row as messages with the usual roles."""
    turns = []
    for turn in row["conversations"] or []:
        role = turn.get("role") or turn["from"]
        content = turn["value"] if turn.get("content") is None else turn["content"]
        turns.append({"role": SHAREGPT_ROLES.get(role, role), "content": content})
    return {"messages": turns}


def roles(kind: str, rows) -> list[str]:
    """The roles that chats have, in the order of their appearance."""
    found: dict[str, None] = {}
    for row in rows:
        messages = row["messages"] if kind == "messages" else to_messages(row)["messages"]
        found.update(dict.fromkeys(str(message.get("role")) for message in messages or []))
    return list(found)
