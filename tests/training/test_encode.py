"""Which tokens carry a label, in each of the three forms of examples."""

from __future__ import annotations

import pytest

from zerotune.errors import UsageError
from zerotune.training import model
from zerotune.training.data import corpus, encode, forms

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
        forms.kind_of(["question", "answer"], "data.jsonl")


def test_another_separator_is_recognised_and_pandas_index_not_shown():
    with pytest.raises(UsageError, match=r"there: prompt;completion\. They seem to be separated by ';'"):
        forms.kind_of(["prompt;completion", "__index_level_0__"], "data.csv")


def test_an_alpaca_row_predicts_its_output_only(tokenizer):
    row = {"instruction": ["hello", "hello"], "input": ["no", ""], "output": ["yes", "yes"]}
    made = encode.encoder("instruction", tokenizer)(row)
    assert [tokenizer.decode(ids) for ids in made["input_ids"]] == [
        "hello\n\nno\n\nyes<|endoftext|>",
        "hello\n\nyes<|endoftext|>",
    ]
    assert labelled(tokenizer, made) == "yes<|endoftext|>"


def test_a_sharegpt_row_is_a_chat(tokenizer):
    tokenizer.chat_template = corpus.CHATML
    names = {"user": "human", "assistant": "gpt"}
    turns = [{"from": names[one["role"]], "value": one["content"]} for one in CHAT]
    made = encode.encoder("conversations", tokenizer)({"conversations": [turns]})
    assert made == encode.encoder("messages", tokenizer)({"messages": [CHAT]})


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (["instruction", "input", "output", "text"], "instruction"),
        (["id", "conversations"], "conversations"),
        (["text"], "text"),
    ],
)
def test_the_form_is_told_by_the_columns(columns, kind):
    assert forms.kind_of(columns, "data.jsonl") == kind


def test_chats_without_an_assistant_list_their_roles(tokenizer):
    import datasets

    from zerotune.training.arguments import DataArguments
    from zerotune.training.data import prepare

    chat = [{"role": "human", "content": "hello"}, {"role": "gpt", "content": "yes"}]
    raw = datasets.Dataset.from_list([{"messages": chat}] * 3)
    with pytest.raises(UsageError, match=r"no message has the role assistant.*found: human, gpt"):
        prepare.make(raw, DataArguments(dataset_name="chats.jsonl"), tokenizer, 64, "train", 1, None)


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


@pytest.mark.parametrize(
    ("prompt", "completion", "said"),
    [
        (1, "yes", "prompt: a string was expected, found int: 1"),
        ("hello", 7, "completion: a string was expected, found int: 7"),
        ("hello", CHAT[1:2], "completion: a string was expected, found list"),
        (CHAT[:1], 7, "completion: a list of messages or a string was expected, found int: 7"),
    ],
)
def test_prompt_and_completion_of_other_types_are_named(tokenizer, prompt, completion, said):
    with pytest.raises(UsageError, match=said):
        encode.encoder("completion", tokenizer)({"prompt": [prompt], "completion": [completion]})


@pytest.mark.parametrize("roles", [("user", "Assistant"), ("User", "assistant")])
def test_the_case_of_a_role_counts(tokenizer, roles):
    chat = [{"role": role, "content": "yes"} for role in roles]
    wanted = rf"roles found: {', '.join(roles)}; roles known: system, user, assistant, tool.*case of the letters"
    with pytest.raises(UsageError, match=wanted):
        encode.encoder("messages", tokenizer)({"messages": [chat]})


def test_a_chat_of_other_roles_names_them(tokenizer):
    chat = [{"role": role, "content": "yes"} for role in ("human", "gpt")]
    with pytest.raises(UsageError, match=r"no message has the role assistant: roles found: human, gpt; roles known"):
        encode.encoder("messages", tokenizer)({"messages": [chat]})


def test_white_space_is_no_text(tokenizer):
    assert encode.encoder("text", tokenizer)({"text": [" \n\n ", "\t", "yes "]})["length"][:2] == [0, 0]
