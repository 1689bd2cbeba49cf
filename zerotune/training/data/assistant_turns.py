"""Where the assistant's turns stand in a rendered chat: what the model is asked to write, the end of turn included."""

from __future__ import annotations

import os

from zerotune.errors import UsageError

# Stands in for an answer. No chat holds it and no template takes it apart.
STAND_IN = "\ue000answer\ue000"


def spans(tokenizer, messages: list[dict], text: str) -> list[tuple[int, int]]:
    """Character ranges [start, stop) of `text`, the rendering of `messages`, that are assistant turns.

    A turn runs from where the prompt for it ends to where the rendering up to and including it ends. That reads
    off directly where the rendering of a prefix is a prefix of the rendering; other templates (those that drop the
    reasoning of earlier turns, or end the whole chat with a token of its own) are asked with a stand-in.

    Raises:
        UsageError: the rendering of a turn depends on the other turns in a way that hides it.
    """
    found = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _prompt(tokenizer, messages[:index]) if index else ""  # templates refuse a prompt without turns
        until = _render(tokenizer, messages[: index + 1])
        plain = before and until.startswith(before) and text.startswith(until)
        found.append((len(before), len(until)) if plain else _compared(tokenizer, messages, index, text))
    return found


def _compared(tokenizer, messages: list[dict], index: int, text: str) -> tuple[int, int]:
    """The range of turn `index`, from the rendering of the same chat with a stand-in for its content.

    The turn starts after the header that the prompt and a turn share, and stops where the later turns begin.
    """
    changed = {**messages[index], "content": STAND_IN}
    whole = _render(tokenizer, [*messages[:index], changed, *messages[index + 1 :]])
    earlier = messages[:index] or [{"role": "user", "content": ""}]
    header, closing = _frame(tokenizer, earlier, changed)
    after = whole.partition(STAND_IN)[2]
    later = after[len(_shared(closing, after)) :]
    start = text.rfind(header, 0, len(_shared(text, whole)))
    if STAND_IN not in whole or start < 0 or not text.endswith(later):
        raise UsageError(
            f"the tokenizer's chat template hides where turn {index + 1} of a chat stands, so the assistant's tokens "
            "cannot be told apart. Use prompt+completion columns, or a tokenizer with another template."
        )
    return start + len(header), len(text) - len(later)


def _frame(tokenizer, earlier: list[dict], answer: dict) -> tuple[str, str]:
    """What the template puts around an answer: the header that a prompt ends with, and what closes the turn."""
    answered = _render(tokenizer, [*earlier, answer])
    asked = _shared(_prompt(tokenizer, earlier), answered)  # a prompt may open a reasoning block, too
    header = asked[len(_shared(_render(tokenizer, earlier), asked)) :]
    return header, answered.partition(STAND_IN)[2]


def _render(tokenizer, messages: list[dict]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False)


def _prompt(tokenizer, messages: list[dict]) -> str:
    """The rendering that asks for the next turn."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _shared(one: str, other: str) -> str:
    """The longest common start of two strings."""
    return os.path.commonprefix([one, other])  # noqa: RUF071 - these are no paths
