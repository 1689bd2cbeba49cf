"""Where the assistant's turns stand in a rendered chat: what the model is asked to write, the end of turn included."""

from __future__ import annotations

import os

from zerotune.errors import UsageError

# Stands in for an answer. No chat holds it and no template takes it apart.
STAND_IN = "\ue000answer\ue000"
QUESTION = {"role": "user", "content": "?"}


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

    The turn starts after what a prompt for it ends with and stops where the later turns begin.
    """
    changed = {**messages[index], "content": STAND_IN}
    whole = _render(tokenizer, [*messages[:index], changed, *messages[index + 1 :]])
    earlier = messages[:index] or [QUESTION]
    asked = _beyond(_render(tokenizer, earlier), _prompt(tokenizer, earlier))
    header = _header(tokenizer) if asked else ""  # after a tool's result some templates ask for nothing
    closing = _render(tokenizer, [*earlier, changed]).partition(STAND_IN)[2]
    later = _beyond(closing, whole.partition(STAND_IN)[2])
    start = text.rfind(header, 0, len(_shared(text, whole)))
    if STAND_IN not in whole or start < 0 or not asked.startswith(header) or not text.endswith(later):
        raise UsageError(
            f"the tokenizer's chat template hides where turn {index + 1} of a chat stands, so the assistant's tokens "
            "cannot be told apart. Use prompt+completion columns, or a tokenizer with another template."
        )
    start += len(asked if text.startswith(asked, start) else header)
    return start, len(text) - len(later)


def _header(tokenizer) -> str:
    """What stands before every answer: a prompt may open a reasoning block, too, which earlier turns have not."""
    answer = {"role": "assistant", "content": STAND_IN}
    prompt = _prompt(tokenizer, [QUESTION])
    last, not_last = (_render(tokenizer, [QUESTION, answer, *more]) for more in ([], [QUESTION]))
    return _beyond(_render(tokenizer, [QUESTION]), _shared(_shared(prompt, last), not_last))


def _render(tokenizer, messages: list[dict]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False)


def _prompt(tokenizer, messages: list[dict]) -> str:
    """The rendering that asks for the next turn."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _shared(one: str, other: str) -> str:
    """The longest common start of two strings."""
    return os.path.commonprefix([one, other])  # noqa: RUF071 - these are no paths


def _beyond(one: str, other: str) -> str:
    """What `other` has after its common start with `one`."""
    return other[len(_shared(one, other)) :]
