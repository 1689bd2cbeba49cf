"""The files beside the weights: config.json with the exported dtype, tokenizer, chat template, a short README."""

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import zerotune
from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint, read_json_object
from zerotune.checkpointing.element_types import TORCH_NAMES

COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates",
    "*processor_config.json",
    "*.py",
)
RECOVERY_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")


def write_companions(opened: OpenedCheckpoint, out: Path, dtype: str, num_parameters: int) -> None:
    """Write everything but the weights into `out`: what lies beside the model, then what lies beside the checkpoint
    (the tokenizer of a run that adapts a base model may differ from the base's)."""
    config = {}
    if opened.model_folder:
        config = read_json_object(opened.model_folder / "config.json")
        _set_dtype(config, TORCH_NAMES[dtype])
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    elif opened.adapter:
        shutil.copyfile(opened.companions / "adapter_config.json", out / "adapter_config.json")
    for source in dict.fromkeys((opened.model_folder, opened.companions)):
        if source:
            _copy_companions(source, out)
    (out / "README.md").write_text(model_card(opened, config, dtype, num_parameters), encoding="utf-8")


def _set_dtype(config: dict, torch_name: str) -> None:
    """transformers 5 writes `dtype`, older versions `torch_dtype`; sub-configs of composed models carry it too."""
    had = config.pop("torch_dtype", None)
    config["dtype"] = torch_name
    del had
    for value in config.values():
        if isinstance(value, dict) and ("dtype" in value or "torch_dtype" in value):
            _set_dtype(value, torch_name)


def _copy_companions(source: Path, out: Path) -> None:
    for path in sorted({path for pattern in COMPANIONS for path in source.glob(pattern)}):
        if path.name in RECOVERY_SCRIPTS:
            continue
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, out / path.name)


def model_card(opened: OpenedCheckpoint, config: dict, dtype: str, num_parameters: int) -> str:
    """A README.md: front matter that model hubs read, then where the weights come from."""
    zero = opened.zero
    base = config.get("_name_or_path") or (opened.adapter or {}).get("base_model_name_or_path")
    base = base if not base or _is_hub_name(base) else Path(base).name
    is_adapter = opened.model_folder is None and opened.adapter is not None
    kind = "LoRA adapter" if is_adapter else (config.get("architectures") or ["model"])[0]
    rows = {
        "Base model": base or "unknown (trained from scratch, or not recorded)",
        "Class": kind,
        "Parameters": f"{num_parameters:,}",
        "Stored as": dtype,
        "Optimizer steps": zero.step if zero.step is not None else "unknown",
        "Trained with": f"ZeRO stage {zero.stage} on {zero.world_size} rank{'s' * (zero.world_size != 1)}",
        "Versions": f"zerotune {zerotune.__version__}, deepspeed {zero.deepspeed_version}, "
        f"transformers {config.get('transformers_version') or _installed('transformers')}",
    }
    front = [
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        *([f"base_model: {base}"] if _is_hub_name(base) else []),
        "tags: [zerotune]",
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    title = f"# {base or kind}, fine-tuned"
    return "---\n" + "\n".join(front) + f"\n---\n\n{title}\n\n| | |\n|---|---|\n{table}\n\n{_usage(is_adapter)}"


def _usage(is_adapter: bool) -> str:
    package, name = ("peft", "AutoPeftModelForCausalLM") if is_adapter else ("transformers", "AutoModelForCausalLM")
    return f'```python\nfrom {package} import {name}\n\nmodel = {name}.from_pretrained("this folder")\n```\n'


def _is_hub_name(base: str | None) -> bool:
    return bool(base) and base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
