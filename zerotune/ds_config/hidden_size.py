"""The hidden size that "auto" buckets are made of, from the facts of a model's config.json.

transformers 5.24 integrations/deepspeed.py:205, accelerate 1.15 accelerator.py:2308: both ask the config object, which
answers to hidden_size under another name for some models (attribute_map). tests/training/test_hidden_size.py compares.
"""

from __future__ import annotations

NAMES = ("hidden_size", "hidden_sizes")
OTHER_NAMES = {
    "d_model": """autoformer bart bigbird_pegasus blenderbot blenderbot-small conditional_detr d_fine dbrx
        deformable_detr deimv2 detr fsmt funnel grounding-dino informer led longt5 m2m_100 marian mbart
        mm-grounding-dino mpt mt5 mvp nllb-moe patchtsmixer patchtst pegasus pegasus_x plbart pop2piano
        pp_doclayout_v2 pp_doclayout_v3 pp_formulanet_text qwen2_5_omni_audio_encoder qwen2_audio_encoder
        qwen3_asr_encoder qwen3_omni_moe_audio_encoder rt_detr rt_detr_v2 speech_to_text switch_transformers t5
        table-transformer time_series_transformer trocr udop umt5 whisper xglm xlnet""",
    "n_embd": "codegen ctrl gpt-sw3 gpt2 gpt_bigcode gptj imagegpt openai-gpt",
    "emb_dim": "flaubert xlm",
    "dim": "distilbert",
    "hidden_dim": "granite_speech_encoder granite_speech_plus_encoder mask2former oneformer",
    "mask_feature_size": "maskformer",
    "embed_dim": "idefics_vision kosmos_2_5_text_model kosmos_2_text_model swin2sr",
    "text_hidden_size": "inkling_audio",
}
OTHER_NAME = {model_type: name for name, types in OTHER_NAMES.items() for model_type in types.split()}


def hidden_size(facts: dict, nested: bool) -> int | None:
    """The size, the largest of several; None when it can't be told. nested: text_config counts too (the Trainer)."""
    for place in _places(facts, nested):
        for name in (*NAMES, OTHER_NAME.get(str(place.get("model_type")), "")):
            size = place.get(name)
            if isinstance(size, list):
                size = max((one for one in size if isinstance(one, int)), default=None)
            if isinstance(size, int) and not isinstance(size, bool):
                return size
    return None


def is_missing(facts: dict, nested: bool) -> bool:
    """Whether the config object has none. A nested text_config may leave it to its class's default."""
    if nested and isinstance(facts.get("text_config"), dict):
        return False
    return facts.get("model_type") not in OTHER_NAME and not any(name in facts for name in NAMES)


def _places(facts: dict, nested: bool) -> list[dict]:
    text = facts.get("text_config")
    return [facts, text] if nested and isinstance(text, dict) else [facts]
