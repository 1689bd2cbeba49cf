"""From the path that a user gives to the folder with the ranks' files, or a plain statement of what is there."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from zerotune.checkpointing.completion import MARKER, what_is_wrong
from zerotune.checkpointing.zero_files import MODEL_FILE, OPTIMIZER_FILE, STAGE3_MODEL_FILE
from zerotune.checkpointing.zero_shards import ZeroCheckpoint, read_zero_checkpoint
from zerotune.errors import UsageError, nearest

TRAINER_FOLDER = re.compile(r"checkpoint-(\d+)")
# First match wins: what a folder of another tool looks like, what it is, what to do with it.
OTHER_TOOLS = (
    (r"latest_universal", "a DeepSpeed universal checkpoint", "export the ZeRO checkpoint it was made from"),
    (r"zero", "a DeepSpeed universal checkpoint", "export the ZeRO checkpoint it was made from"),
    (r".*\.distcp|pytorch_model_fsdp.*|\.metadata", "an FSDP checkpoint", "use `accelerate merge-weights`"),
    (r"latest_checkpointed_iteration\.txt", "a Megatron-LM checkpoint", "use Megatron's own converter"),
    (r"adapter_model\..*|adapter_config\.json", "a PEFT adapter", "merge it with peft's merge_and_unload()"),
    (r"model.*\.safetensors(\.index\.json)?", "a plain safetensors model", "it needs no export, load it as it is"),
    (r"pytorch_model.*\.bin(\.index\.json)?", "a plain PyTorch model", "load it with transformers and save it again"),
    (r"trainer_state\.json", "a Trainer checkpoint without DeepSpeed's files", "the run did not use ZeRO"),
)


@dataclass
class OpenedCheckpoint:
    """A checkpoint that was found and indexed.

    Attributes:
        zero: the weights' places.
        model_folder: the folder with config.json and the tokenizer, None when there is none.
        adapter: the parsed adapter_config.json of a PEFT run, None for other runs.
        companions: the folder with the tokenizer, also when it holds no config.json.
        notes: sentences about choices that were made for the user.
    """

    zero: ZeroCheckpoint
    model_folder: Path | None
    adapter: dict | None = None
    companions: Path | None = None
    notes: list[str] = field(default_factory=list)


def open_checkpoint(path: Path, tag: str | None = None) -> OpenedCheckpoint:
    """Find and index the checkpoint at `path`.

    Args:
        path: a Trainer checkpoint (checkpoint-40/), DeepSpeed's own folder (global_step40/), or a run's output
            folder, of which the newest complete checkpoint is taken.
        tag: DeepSpeed's tag; by default what the file `latest` says.

    Raises:
        UsageError: there is no such folder, no checkpoint in it, or it is damaged.
    """
    if not path.is_dir():
        raise UsageError(_no_such_folder(path))
    if any(_is_rank_file(entry.name) for entry in path.iterdir()):
        parent = path.resolve().parent
        beside = any((parent / name).is_file() for name in ("config.json", "adapter_config.json"))
        return _opened(path, parent if beside else path)
    if tag or (path / "latest").is_file() or _tags(path):
        return _opened(_tagged_folder(path, tag), path)
    steps = _trainer_checkpoints(path)
    if steps:
        return _newest_complete(path, steps)
    raise UsageError(what_is_there(path))


def what_is_there(path: Path) -> str:
    """Say that `path` is no ZeRO checkpoint, and what it is instead."""
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return f"{path}: no DeepSpeed checkpoint: the folder is empty."
    for pattern, kind, advice in OTHER_TOOLS:
        found = next((name for name in names if re.fullmatch(pattern, name)), None)
        if found:
            return f"{path}: no DeepSpeed ZeRO checkpoint, but {kind} (it holds {found}): {advice}."
    listing = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{path}: no DeepSpeed checkpoint (no file `latest`, no *_model_states.pt). It holds: {listing}"


def _opened(zero_folder: Path, model_folder: Path) -> OpenedCheckpoint:
    has_config = read_json_object(model_folder / "config.json") is not None
    return OpenedCheckpoint(
        zero=read_zero_checkpoint(zero_folder),
        model_folder=model_folder if has_config else None,
        adapter=read_json_object(model_folder / "adapter_config.json"),
        companions=model_folder,
    )


def read_json_object(path: Path) -> dict | None:
    """The parsed file, None when there is none.

    Raises:
        UsageError: it is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a JSON object was expected, found {type(content).__name__}.")
    return content


def _is_rank_file(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (OPTIMIZER_FILE, STAGE3_MODEL_FILE, MODEL_FILE))


def _tags(path: Path) -> list[str]:
    return sorted(
        folder.name
        for folder in path.iterdir()
        if folder.is_dir() and any(_is_rank_file(entry.name) for entry in folder.iterdir())
    )


def _tagged_folder(path: Path, tag: str | None) -> Path:
    tags = _tags(path)
    latest = path / "latest"
    wanted = tag or (latest.read_text(errors="replace").strip() if latest.is_file() else None)
    if wanted is None:
        if len(tags) == 1:
            return path / tags[0]
        raise UsageError(f"{path}: no file `latest` says which of {', '.join(tags)} to take; give it with --tag.")
    if wanted not in tags:
        reason = "--tag" if tag else "its file `latest`"
        there = ", ".join(tags) or "none"
        raise UsageError(f"{path}: {reason} names {wanted!r}, which holds no ranks' files. Tags there: {there}.")
    return path / wanted


def _trainer_checkpoints(path: Path) -> list[Path]:
    """checkpoint-N folders, newest first."""
    numbered = [(int(match[1]), entry) for entry in path.iterdir() if (match := TRAINER_FOLDER.fullmatch(entry.name))]
    return [entry for _, entry in sorted(numbered, reverse=True) if entry.is_dir()]


def _newest_complete(path: Path, candidates: list[Path]) -> OpenedCheckpoint:
    """The newest checkpoint that can be read; those passed over are named with the reason."""
    marked = any((folder / MARKER).is_file() for folder in candidates)
    passed = []
    for folder in candidates:
        try:
            if marked:
                _require_finished(folder)
            opened = open_checkpoint(folder)
        except UsageError as error:
            passed.append(f"passed over {folder.name}: {error}")
            continue
        opened.notes = [f"took {folder}, the newest complete checkpoint", *passed]
        return opened
    raise UsageError(f"{path}: none of its checkpoints is complete:\n  " + "\n  ".join(passed))


def _require_finished(folder: Path) -> None:
    if wrong := what_is_wrong(folder):
        raise UsageError(wrong)


def _no_such_folder(path: Path) -> str:
    if path.exists():
        return f"{path}: a file, not a folder; give the folder checkpoint-N (or global_stepN) that holds it."
    parent = path.parent
    if not parent.is_dir():
        return f"{path}: no such folder (and no {parent} either)."
    siblings = [entry.name for entry in parent.iterdir() if entry.is_dir()]
    close = nearest(path.name, siblings) or sorted(siblings)[:5]
    hint = f" Did you mean {' or '.join(str(parent / name) for name in close)}?" if close else ""
    return f"{path}: no such folder.{hint}"
