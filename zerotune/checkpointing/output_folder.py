"""The folder that an export writes: refused before work begins, filled at the end in one go."""

import re
import shutil
from pathlib import Path

from zerotune.checkpointing.shard_plan import Shard
from zerotune.errors import UsageError

WORK = ".zerotune-export"
OWN_WEIGHTS = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
SPARE_BYTES = 64 << 20  # config, tokenizer and the file system's own needs


class OutputFolder:
    """`out` and the working folder inside it.

    Attributes:
        out: where the model will be.
        work: `out`/.zerotune-export, holds shards until all are whole and checked.
        companions: inside `work`, for config, tokenizer and README.
    """

    def __init__(self, out: Path, overwrite: bool, sources=()):
        """Create the folders.

        Raises:
            UsageError: `out` is a file, is not empty, holds the checkpoint itself, or cannot be written.
        """
        self.out = out
        self.work = out / WORK
        self.companions = self.work / "companions"
        self._created = not out.exists()
        self._resumed = self.work.is_dir()
        _refuse_taken(out, overwrite, sources)
        try:
            self.companions.mkdir(parents=True, exist_ok=True)
            probe = self.work / "writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(f"{out}: cannot be written ({error.strerror}); choose another folder.") from None

    def require_room(self, shards: list[Shard]) -> None:
        """Compare the free disk with what is left to write; files that the working folder holds count as written.

        Raises:
            UsageError: says how much is needed and free.
        """
        held = sum(path.stat().st_blocks * 512 for path in self.work.iterdir() if path.is_file())
        needed = sum(shard.num_bytes for shard in shards) + SPARE_BYTES - held
        free = shutil.disk_usage(self.out).free
        if needed > free:
            self.discard()
            raise UsageError(
                f"{self.out}: no room: the export needs {needed / 1e9:.2f} GB more and {free / 1e9:.2f} GB are free. "
                "Free some, choose another disk, or export in bf16."
            )

    def publish(self, files: list[str], index: str | None) -> None:
        """Move the finished shards and the companions to their names and drop the weights of an earlier export."""
        for name in files:
            (self.work / name).replace(self.out / name)
        for path in self.companions.iterdir():
            _replace(path, self.out / path.name)
        keep = {*files, "model.safetensors.index.json"} if index else set(files)
        if index:
            (self.companions / "index").write_text(index, encoding="utf-8")
            (self.companions / "index").replace(self.out / "model.safetensors.index.json")
        for path in self.out.iterdir():
            if OWN_WEIGHTS.fullmatch(path.name) and path.name not in keep:
                path.unlink()
        shutil.rmtree(self.work)

    def discard(self) -> None:
        """Remove what this export made: the working folder, and `out` if it did not exist before.

        A working folder that an earlier export left stays: its finished files may be wanted.
        """
        if self._resumed:
            return
        shutil.rmtree(self.work, ignore_errors=True)
        if self._created and self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()


def finished_shards(out: Path) -> list[str]:
    """Names of the shards that a stopped export left finished in `out`."""
    work = out / WORK
    return sorted(path.name for path in work.iterdir() if path.suffix == ".safetensors") if work.is_dir() else []


def _refuse_taken(out: Path, overwrite: bool, sources) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; give a folder.")
    if any(source is not None and out.resolve() == source.resolve() for source in sources):
        raise UsageError(f"{out}: holds the checkpoint itself; give another folder.")
    try:
        there = sorted(path.name for path in out.iterdir() if path.name != WORK) if out.is_dir() else []
    except OSError as error:
        raise UsageError(f"{out}: cannot be read ({error.strerror}); choose another folder.") from None
    if there and not overwrite:
        raise UsageError(
            f"{out}: is not empty (it holds {', '.join(there[:4])}{', ...' if len(there) > 4 else ''}). "
            "Give another folder, or --overwrite to replace the model in it."
        )


def _replace(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        source.replace(target)
