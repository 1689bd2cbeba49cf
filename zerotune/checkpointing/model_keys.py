"""Which keys and shapes the model of a config.json has, asked in a process of its own, and how ours compare.

Run as `python -m zerotune.checkpointing.model_keys FOLDER` it builds the model on the meta device (no memory for
weights) and prints JSON. The child runs while shards are being written: it needs seconds and hundreds of MB for
importing transformers, the exporter needs neither; and inside a training job the parent's ZeRO-3 state would
make transformers partition the model.
"""

import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from zerotune.errors import UsageError

SHOWN = 5


@dataclass(frozen=True)
class ModelKeys:
    """What transformers expects.

    Attributes:
        model_class: such as LlamaForCausalLM.
        shapes: every parameter and persistent buffer by name.
        tied: name that is not stored -> name that is, as transformers ties them.
        optional: patterns of names that may be missing or unexpected.
        unchecked: why the model could not be built; the other fields are empty then.
    """

    model_class: str = ""
    shapes: dict[str, list[int]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    unchecked: str | None = None


class ModelKeysProcess:
    """The running child. Use as a context manager: it never outlives the block."""

    def __init__(self, folder: Path):
        self.folder = folder
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        quiet = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zerotune.checkpointing.model_keys", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet},
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.process.kill()
        self.process.wait()  # not communicate(): another thread may be inside it

    def result(self) -> ModelKeys:
        """Wait for the child."""
        out, errors = self.process.communicate()
        if self.process.returncode or not out.strip():
            lines = errors.strip().splitlines() or [f"exit code {self.process.returncode}"]
            return ModelKeys(unchecked=lines[-1])
        answer = json.loads(out.strip().splitlines()[-1])
        return ModelKeys(**{**answer, "optional": tuple(answer.get("optional", ()))})


def audit(keys: ModelKeys, ours: dict[str, tuple[int, ...]], config: Path) -> None:
    """Compare names and shapes of all weights to be written with what the model expects.

    Raises:
        UsageError: every missing, unexpected and mis-shaped key is counted, and the first of each kind named.
    """
    stored = {name: shape for name, shape in keys.shapes.items() if name not in keys.tied}
    missing = [name for name in stored if name not in ours and not _optional(keys, name)]
    unexpected = [name for name in ours if name not in keys.shapes and not _optional(keys, name)]
    shaped = [
        f"{name} {list(shape)}, the model has {list(keys.shapes[name])}"
        for name, shape in ours.items()
        if name in keys.shapes and list(shape) != list(keys.shapes[name])
    ]
    kinds = {
        "missing": [f"{name} {list(stored[name])}" for name in missing],
        "unexpected": [f"{name} {list(ours[name])}" for name in unexpected],
        "of another shape": shaped,
    }
    if any(kinds.values()):
        lines = [_listing(kind, names) for kind, names in kinds.items() if names]
        raise UsageError(
            f"{config}: describes another model than the checkpoint's weights ({keys.model_class}):\n  "
            + "\n  ".join(lines)
            + "\nPut the config.json of the trained model beside the checkpoint."
        )


def names_to_write(tensor_names: list[str], shared: dict[str, str], keys: ModelKeys) -> dict[str, str]:
    """Name in the files -> name in the checkpoint. A tensor that is shared is written under the name that
    transformers stores, and again under every other name that the model does not tie to it."""
    names = {name: name for name in tensor_names}
    for kept in dict.fromkeys(shared.values()):
        group = [kept, *(alias for alias, target in shared.items() if target == kept)]
        wanted = [name for name in group if name in keys.shapes and name not in keys.tied]
        if wanted:
            names.pop(kept, None)
            names.update(dict.fromkeys(wanted, kept))
    return names


def _optional(keys: ModelKeys, name: str) -> bool:
    return any(re.search(pattern, name) for pattern in keys.optional)


def _listing(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {kind}: " + "; ".join(names[:SHOWN]) + more


def describe(folder: Path) -> dict:
    """Build the model of `folder`/config.json on the meta device. Imports transformers."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    name = (config.architectures or [None])[0]
    if name is None:
        return {"unchecked": "config.json does not say the model's class (architectures)"}
    if not hasattr(transformers, name):
        return {"unchecked": f"config.json names {name}, a class that transformers does not have"}
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    optional = [*(model._keys_to_ignore_on_load_missing or ()), *(model._keys_to_ignore_on_load_unexpected or ())]
    return {
        "model_class": name,
        "shapes": {key: list(value.shape) for key, value in model.state_dict().items()},
        "tied": dict(model.all_tied_weights_keys),
        "optional": optional,
    }


def main() -> None:
    """Print the description and leave at once: collecting garbage while importing and tearing torch down at the
    end take 1.5 of 4.2 seconds (2 cores, transformers 5.24) and serve nobody in a process this short."""
    gc.disable()
    print(json.dumps(describe(Path(sys.argv[1]))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
