"""The files beside the weights: config.json with the exported dtype, tokenizer, chat template, a short README."""

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import zerotune
from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint
from zerotune.checkpointing.element_types import TORCH_NAMES
from zerotune.errors import UsageError

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


def read_config(folder: Path) -> dict:
    """The parsed config.json of `folder`.

    Raises:
        UsageError: it is not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}).") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a JSON object was expected, found {type(config).__name__}.")
    return config


def write_companions(opened: OpenedCheckpoint, out: Path, dtype: str, num_parameters: int) -> list[str]:
    """Write everything but the weights into `out`. Returns the names written."""
    written = ["README.md"]
    config = {}
    if opened.model_folder:
        config = read_config(opened.model_folder)
        _set_dtype(config, TORCH_NAMES[dtype])
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        written += ["config.json", *_copy_companions(opened.model_folder, out)]
    (out / "README.md").write_text(model_card(opened, config, dtype, num_parameters), encoding="utf-8")
    return written


def _set_dtype(config: dict, torch_name: str) -> None:
    """transformers 5 writes `dtype`, older versions `torch_dtype`; sub-configs of composed models carry it too."""
    had = config.pop("torch_dtype", None)
    config["dtype"] = torch_name
    del had
    for value in config.values():
        if isinstance(value, dict) and ("dtype" in value or "torch_dtype" in value):
            _set_dtype(value, torch_name)


def _copy_companions(source: Path, out: Path) -> list[str]:
    copied = []
    for path in sorted({path for pattern in COMPANIONS for path in source.glob(pattern)}):
        if path.name in RECOVERY_SCRIPTS:
            continue
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, out / path.name)
        copied.append(path.name)
    return copied


def model_card(opened: OpenedCheckpoint, config: dict, dtype: str, num_parameters: int) -> str:
    """A README.md: front matter that model hubs read, then where the weights come from."""
    zero = opened.zero
    base = config.get("_name_or_path") or None
    front = ["library_name: transformers", *([f"base_model: {base}"] if _is_hub_name(base) else []), "tags: [zerotune]"]
    kind = (config.get("architectures") or ["model"])[0]
    rows = {
        "Base model": base or "unknown (trained from scratch, or not recorded)",
        "Class": kind,
        "Parameters": f"{num_parameters:,}",
        "Stored as": f"{dtype}, from the fp32 master weights of the optimizer",
        "Optimizer steps": zero.step if zero.step is not None else "unknown",
        "Trained with": f"ZeRO stage {zero.stage} on {zero.world_size} ranks",
        "Versions": f"zerotune {zerotune.__version__}, deepspeed {zero.deepspeed_version}, "
        f"transformers {config.get('transformers_version') or _installed('transformers')}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return (
        "---\n" + "\n".join(front) + f"\n---\n\n# {base or kind}, fine-tuned\n\n| | |\n|---|---|\n{table}\n\n"
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("this folder")\n'
        'tokenizer = AutoTokenizer.from_pretrained("this folder")\n```\n'
    )


def _is_hub_name(base: str | None) -> bool:
    return bool(base) and base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
