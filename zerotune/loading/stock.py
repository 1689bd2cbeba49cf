"""What the loader leaves to transformers' own from_pretrained, and why."""

from __future__ import annotations

import os
from pathlib import Path

from transformers import AutoModelForCausalLM
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from zerotune.errors import UsageError
from zerotune.loading.engine_config import Engine
from zerotune.training import ranks

SWITCH = "ZEROTUNE_FROM_PRETRAINED"  # 1: never load in parts, should an engine or a model not stand it


def why(config, engine: Engine) -> str | None:
    """Why a model cannot be loaded in parts; None when it can."""
    if os.environ.get(SWITCH) == "1":
        return f"{SWITCH}=1"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized"
    if getattr(config, "auto_map", None):
        return "its code comes with the model (auto_map in config.json) and may want whole weights"
    if engine.config.get("tensor_parallel", {}).get("autotp_size", 0) > 1:
        return "tensor_parallel.autotp_size cuts the weights in another way"
    return None


def load(reason: str, folder: Path, config, engine: Engine, dtype, model_class, trust_remote_code: bool):
    """from_pretrained, after a line that says why. Rank 0 then reads everything and broadcasts it under ZeRO-3.

    Raises:
        UsageError: it cannot load the model.
    """
    ranks.say(f"{folder} is loaded by transformers' from_pretrained (whole weights on rank 0): {reason}.")
    alive = HfDeepSpeedConfig(engine.config) if engine.stage == 3 else None
    chosen = model_class or AutoModelForCausalLM
    more = {"trust_remote_code": True} if trust_remote_code and hasattr(chosen, "_model_mapping") else {}
    try:
        model = chosen.from_pretrained(folder, config=config, dtype=dtype or "auto", **more)
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: from_pretrained cannot load it: {str(error).splitlines()[0]}") from error
    del alive
    return model
