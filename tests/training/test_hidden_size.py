"""Which models answer to hidden_size, and under which name: the table against transformers' own classes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zerotune.ds_config.hidden_size import NAMES, OTHER_NAME, hidden_size, is_missing


def test_the_table_is_transformers():
    mapped = {}
    for model_type in CONFIG_MAPPING:
        name = getattr(CONFIG_MAPPING[model_type], "attribute_map", {}).get("hidden_size")
        if name and name not in NAMES:
            mapped[model_type] = name
    assert mapped == OTHER_NAME


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "t5", "mpt", "segformer", "llava", "gemma3", "musicgen", "encoder-decoder", "bark"]
)
def test_a_saved_config_tells_what_the_object_answers(model_type, nested):
    made = CONFIG_MAPPING[model_type]() if model_type != "encoder-decoder" else None
    if made is None:
        made = CONFIG_MAPPING[model_type].from_encoder_decoder_configs(
            AutoConfig.for_model("bert"), AutoConfig.for_model("gpt2")
        )
    objects = [made, *([made.text_config] if nested and hasattr(made, "text_config") else [])]
    theirs = next((getattr(one, name) for one in objects for name in NAMES if hasattr(one, name)), None)
    facts = made.to_diff_dict()
    if theirs is None:
        assert is_missing(facts, nested)
    else:
        assert not is_missing(facts, nested)
        assert hidden_size(facts, nested) in (max(theirs) if isinstance(theirs, (list, tuple)) else theirs, None)
    if model_type in ("llama", "gpt2", "t5", "segformer"):
        assert hidden_size(facts, nested)
