"""Which tokens carry a label, in each of the three forms of examples."""

from __future__ import annotations

import pytest

from zerotune.errors import UsageError
from zerotune.training import model
from zerotune.training.data import corpus, encode

WORDS = ["the assistant answers a question in one sentence .", "user system hello yes no bye"] * 20
# A template that, like some published ones, adds a default system turn and trims what it is given.
TRIMMING = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [
    {"role": "user", "content": "hello assistant"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "yes"},
    {"role": "assistant", "content": " no . "},
]


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.train_tokenizer(iter(WORDS), 400)


def labelled(tokenizer, row: dict[str, list]) -> str:
    return tokenizer.decode([token for token in row["labels"][0] if token != encode.IGNORED])


def test_text_predicts_everything_and_ends(tokenizer):
    made = encode.encoder("text", tokenizer)({"text": ["hello yes", "", None]})
    assert tokenizer.decode(made["input_ids"][0]) == "hello yes<|endoftext|>"
    assert made["input_ids"][1:] == [[], []]
    assert made["length"] == [len(made["input_ids"][0]), 0, 0]
    assert "labels" not in made


def test_completion_predicts_the_completion_only(tokenizer):
    made = encode.encoder("completion", tokenizer)({"prompt": ["hello "], "completion": ["yes"]})
    assert tokenizer.decode(made["input_ids"][0]) == "hello yes<|endoftext|>"
    assert labelled(tokenizer, made) == "yes<|endoftext|>"


def test_conversational_prompts_are_chats(tokenizer):
    made = encode.encoder("completion", tokenizer)({"prompt": [CHAT[:1]], "completion": [CHAT[1:2]]})
    assert labelled(tokenizer, made) == "yes<|im_end|>\n"


@pytest.mark.parametrize("template", [corpus.CHATML, TRIMMING], ids=["chatml", "trimming"])
def test_chat_predicts_every_assistant_turn_and_nothing_else(tokenizer, template):
    tokenizer.chat_template = template
    made = encode.encoder("messages", tokenizer)({"messages": [CHAT]})
    answer = "no ." if template == TRIMMING else " no . "
    assert labelled(tokenizer, made) == f"yes<|im_end|>\n{answer}<|im_end|>\n"
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokenizer.decode(made["input_ids"][0]) == rendered


def test_a_chat_that_the_assistant_begins(tokenizer):
    tokenizer.chat_template = corpus.CHATML
    made = encode.encoder("messages", tokenizer)({"messages": [CHAT[1:]]})
    assert labelled(tokenizer, made) == "yes<|im_end|>\n no . <|im_end|>\n"


def test_a_chat_without_answer_is_empty(tokenizer):
    assert encode.encoder("messages", tokenizer)({"messages": [CHAT[:1], []]})["length"] == [0, 0]


@pytest.mark.parametrize("messages", ["hello", [{"role": "assistant"}], [7]])
def test_an_example_of_another_shape_is_shown(tokenizer, messages):
    with pytest.raises(UsageError, match=r"does not fit messages.*It is: \{'messages'"):
        encode.encoder("messages", tokenizer)({"messages": [messages]})


def test_text_that_is_no_string_is_shown(tokenizer):
    with pytest.raises(UsageError, match="found int: 7"):
        encode.encoder("text", tokenizer)({"text": ["fine", 7]})


def test_columns_that_do_not_fit_are_listed():
    with pytest.raises(UsageError, match="Columns there: question, answer"):
        encode.kind_of(["question", "answer"], "data.jsonl")


def test_a_pad_token_is_reused_before_one_is_added(tokenizer):
    tokenizer.pad_token = None
    before = len(tokenizer)
    model.ensure_pad_token(tokenizer)
    assert tokenizer.pad_token == "<|endoftext|>"
    assert len(tokenizer) == before


def test_a_pad_token_is_added_where_none_can_be_reused():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])))
    model.ensure_pad_token(bare)
    assert (bare.pad_token, len(bare)) == ("<pad>", 3)
