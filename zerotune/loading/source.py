"""From a name to a model folder, and the two configs that lie in it."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from zerotune.errors import UsageError
from zerotune.loading.weight_files import listing
from zerotune.training import ranks

NEEDED = ("*.json", "*.safetensors")
PICKLED = "*.bin"


def folder(name_or_path: str | Path, revision: str, with_pickle: bool) -> Path:
    """The folder itself, or the snapshot of a hub model; one rank of each node downloads what is not there yet.

    Raises:
        UsageError: no such folder, and the hub has or gives no such model.
    """
    here = Path(name_or_path).expanduser()
    if here.is_dir():
        return here
    name = str(name_or_path)
    if here.is_file():
        raise UsageError(f"{name} is a file. Name the folder that holds config.json and the weights.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"{name}: no such folder.")
    patterns = [*NEEDED, *([PICKLED] if with_pickle else [])]
    with ranks.first_of_node():
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
            raise UsageError(
                f"{name}: no such folder here, and it did not come from the hub: {_first_line(error)} "
                "Check the name and the network, or name a local model folder."
            ) from error


def config(where: Path, trust_remote_code: bool = False):
    """The model's config.

    Raises:
        UsageError: none, or one that transformers cannot read.
    """
    if not (where / "config.json").is_file():
        raise UsageError(f"{where} holds no config.json, so it is no model folder. It holds: {listing(where)}.")
    try:
        return AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{where}: no usable config.json: {_first_line(error)}") from error


def set_generation_config(model: PreTrainedModel, where: Path) -> None:
    """As from_pretrained: the folder's generation config, else what stands in the model's config."""
    if not model.can_generate():
        return
    if (where / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(where)
    else:
        made = GenerationConfig.from_pretrained(where, config_file_name="config.json", _from_model_config=True)
        model.generation_config = made


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
