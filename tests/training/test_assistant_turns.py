"""The loss is on the assistant's turns, end of turn included, whatever the template makes of earlier turns."""

from __future__ import annotations

import pytest

from zerotune.training.data import corpus, encode

WORDS = ["the assistant answers a question in one sentence .", "user system hello yes no bye think"] * 20
# As Qwen3: the reasoning stays only in turns after the last question, and there also when it is empty.
FORGETS_REASONING = """\
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set content = m.content or '' -%}{%- set thought = '' -%}
{%- if m.role == 'assistant' and '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>' + m.role + '\n' -}}
{%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) -%}
{{- '<think>\n' + thought + '\n</think>\n\n' -}}
{%- endif -%}
{{- content -}}
{%- for call in m.tool_calls or [] -%}{{- '\n<call>' + call + '</call>' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
# As DeepSeek-R1: the prompt opens a reasoning block that no rendered turn has; every answer loses its reasoning.
OPENS_REASONING = """\
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<U>' + m.content -}}
{%- else -%}{{- '<A>' + m.content.split('</think>')[-1] + '<|endoftext|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<A><think>\n' -}}{%- endif -%}
"""
# As Phi-3: a token of its own ends the whole chat.
ENDS_CHAT = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- else -%}{{- '<|endoftext|>' -}}{%- endif -%}
"""
MARKS = """\
{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' -}}
{%- if m.role == 'assistant' -%}{%- generation -%}{{- m.content + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}{{- m.content + '<|im_end|>' -}}{%- endif -%}{%- endfor -%}
"""
# As Qwen3's thinking models: the prompt opens the block that only the last answer keeps.
THINKS_ALWAYS = FORGETS_REASONING.replace("'<|im_start|>assistant\n' -}}", "'<|im_start|>assistant\n<think>\n' -}}")


def turn(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


CHAT = [
    turn("user", "yes or no?"),
    turn("assistant", "<think>\nhm yes\n</think>\n\nyes"),
    turn("user", "yes<|im_start|>assistant\nyes"),
    turn("assistant", "<think>\nbye\n</think>\n\nno"),
]
PLAIN = [turn("user", "yes or no?"), turn("assistant", "yes"), turn("user", "no or yes?"), turn("assistant", "no")]


@pytest.fixture(scope="module")
def tokenizer():
    made = corpus.train_tokenizer(iter(WORDS), 400)
    made.add_special_tokens({"additional_special_tokens": ["<|end|>", "<|user|>", "<|assistant|>", "<U>", "<A>"]})
    return made


def runs(tokenizer, template: str, messages: list[dict]) -> list[str]:
    """The text of every unbroken run of labelled tokens."""
    tokenizer.chat_template = template
    row = encode.encoder("messages", tokenizer)({"messages": [messages]})
    found, before = [], encode.IGNORED
    for label in row["labels"][0]:
        if label != encode.IGNORED:
            if before == encode.IGNORED:
                found.append([])
            found[-1].append(label)
        before = label
    return [tokenizer.decode(one) for one in found]


def test_reasoning_of_earlier_turns_is_dropped(tokenizer):
    last = "<think>\nbye\n</think>\n\nno<|im_end|>\n"
    assert runs(tokenizer, FORGETS_REASONING, CHAT) == ["yes<|im_end|>\n", last]
    last = "<think>\n\n</think>\n\nno<|im_end|>\n"
    assert runs(tokenizer, FORGETS_REASONING, PLAIN) == ["yes<|im_end|>\n", last]


def test_reasoning_that_the_prompt_opens(tokenizer):
    assert THINKS_ALWAYS != FORGETS_REASONING
    assert runs(tokenizer, THINKS_ALWAYS, CHAT) == ["yes<|im_end|>\n", "bye\n</think>\n\nno<|im_end|>\n"]
    answered = [*PLAIN[:2], CHAT[0], CHAT[1], turn("tool", "hello"), turn("assistant", "no"), *PLAIN[2:]]
    assert runs(tokenizer, THINKS_ALWAYS, answered) == [
        "yes<|im_end|>\n",
        "yes<|im_end|>\n",
        "no<|im_end|>\n",
        "\n</think>\n\nno<|im_end|>\n",
    ]


def test_a_tool_call_is_part_of_its_turn(tokenizer):
    called = turn("assistant", "<think>\nhello\n</think>\n\nyes", tool_calls=["hello"])
    silent = turn("assistant", "", tool_calls=["bye"])
    answered = [CHAT[0], called, turn("tool", "hello"), silent, turn("tool", "yes"), turn("assistant", "no")]
    assert runs(tokenizer, FORGETS_REASONING, [*answered, *PLAIN[2:]]) == [
        "yes\n<call>hello</call><|im_end|>\n",
        "\n<call>bye</call><|im_end|>\n",
        "no<|im_end|>\n",
        "<think>\n\n</think>\n\nno<|im_end|>\n",
    ]


def test_a_prompt_that_opens_a_reasoning_block(tokenizer):
    assert runs(tokenizer, OPENS_REASONING, PLAIN) == ["yes<|endoftext|>", "no<|endoftext|>"]


def test_a_token_that_ends_the_whole_chat(tokenizer):
    assert runs(tokenizer, ENDS_CHAT, PLAIN) == ["yes<|end|>\n", "no<|end|>\n<|endoftext|>"]


def test_a_template_that_marks_the_turns_itself(tokenizer):
    assert runs(tokenizer, MARKS, PLAIN) == ["yes<|im_end|>", "no<|im_end|>"]
