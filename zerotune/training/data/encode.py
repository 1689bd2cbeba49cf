"""One example -> token ids and labels. Labels are -100 where the model is not asked to predict."""

from __future__ import annotations

import re
from collections.abc import Callable

from jinja2.exceptions import TemplateError

from zerotune.errors import UsageError
from zerotune.training.data import assistant_turns, forms

IGNORED = -100
ROLES = ("system", "user", "assistant", "tool")


def encoder(kind: str, tokenizer) -> Callable[[dict[str, list]], dict[str, list]]:
    """A function from a batch of examples (column -> list) of one of the forms in `forms.COLUMNS` to token lists.

    It returns `input_ids`, `length` (tokens, int) and, unless every token is predicted, `labels` of the same length.
    """
    if kind == "text":
        return _texts(tokenizer)
    chat, completion = _chat(tokenizer), _completion(tokenizer)
    encode_one = {
        "completion": completion,
        "instruction": lambda row: completion(forms.to_completion(row)),
        "messages": chat,
        "conversations": lambda row: chat(forms.to_messages(row)),
    }[kind]

    def encode(batch: dict[str, list]) -> dict[str, list]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        coded = [_checked(encode_one, row, kind) for row in rows]
        ids = [one["input_ids"] for one in coded]
        return {"input_ids": ids, "labels": [one["labels"] for one in coded], "length": [len(one) for one in ids]}

    return encode


def _checked(encode_one: Callable[[dict], dict], row: dict, kind: str) -> dict:
    """Encode a row; a row of another shape than its columns promise is the user's mistake, not a bug."""
    try:
        return encode_one(row)
    except (TypeError, KeyError, AttributeError, TemplateError) as error:
        shown = repr(row)
        shown = shown if len(shown) <= 160 else shown[:160] + "..."
        raise UsageError(f"an example does not fit {kind}: {type(error).__name__}: {error}. It is: {shown}") from error


def _texts(tokenizer) -> Callable[[dict[str, list]], dict[str, list]]:
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def encode(batch: dict[str, list]) -> dict[str, list]:
        texts = [_string("text", text) for text in batch["text"]]
        texts = [text if text.strip() else "" for text in texts]
        ids = tokenizer(texts, verbose=False)["input_ids"] if texts else []
        ids = [
            one + end if text and one[-1:] != end else one * bool(text) for one, text in zip(ids, texts, strict=True)
        ]
        return {"input_ids": ids, "length": [len(one) for one in ids]}

    return encode


def _string(column: str, value, expected: str = "a string") -> str:
    """The value of a column of text; missing ones are empty."""
    if value is not None and not isinstance(value, str):
        shown = repr(value)[:100]
        raise UsageError(f"column {column}: {expected} was expected, found {type(value).__name__}: {shown}")
    return value or ""


def _completion(tokenizer) -> Callable[[dict], dict]:
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    chat = _chat(tokenizer)

    def encode(example: dict) -> dict:
        prompt, completion = example["prompt"], example["completion"]
        if isinstance(prompt, list):  # conversational prompt and completion, as TRL has them
            if not isinstance(completion, list):
                answer = _string("completion", completion, "a list of messages or a string")
                completion = [{"role": "assistant", "content": answer}]
            return chat({"messages": prompt + completion})
        prompt, completion = _string("prompt", prompt), _string("completion", completion)
        if not completion:
            return {"input_ids": [], "labels": []}
        asked = tokenizer(prompt, verbose=False)["input_ids"]
        if end and asked[-1:] == end:
            asked = asked[:-1]
        answer = tokenizer(completion, add_special_tokens=False, verbose=False)["input_ids"] + end
        return {"input_ids": asked + answer, "labels": [IGNORED] * len(asked) + answer}

    return encode


def _has_answer(messages: list[dict]) -> bool:
    """Whether the assistant says something; a chat in which another role should be called assistant is refused."""
    roles = list(dict.fromkeys(str(message.get("role")) for message in messages))
    listed = f"roles found: {', '.join(roles)}; roles known: {', '.join(ROLES)}"
    if any(role not in ROLES and role.lower() in ROLES for role in roles):
        raise UsageError(f"messages: {listed}. The case of the letters counts.")
    if "assistant" not in roles and not set(roles) <= set(ROLES):
        raise UsageError(f"messages: no message has the role assistant: {listed}. Rename the roles.")
    return "assistant" in roles


def _chat(tokenizer) -> Callable[[dict], dict]:
    """Render the chat template and label only what it renders for the assistant's turns.

    A template that marks them itself, with {% generation %}, is taken at its word.
    """
    marked = re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template or ""))

    def encode(example: dict) -> dict:
        messages = example["messages"] or []
        if not _has_answer(messages):
            return {"input_ids": [], "labels": []}
        if marked:
            coded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            wanted = coded["assistant_masks"]
        else:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            spans = assistant_turns.spans(tokenizer, messages, text)
            coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            # A token that reaches beyond a turn's end belongs to the next one.
            wanted = [any(start < end <= stop for start, stop in spans) for _, end in coded["offset_mapping"]]
        ids = coded["input_ids"]
        labels = [token if one else IGNORED for token, one in zip(ids, wanted, strict=True)]
        return {"input_ids": ids, "labels": labels}

    return encode
