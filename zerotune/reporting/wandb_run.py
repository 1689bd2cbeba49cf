"""Weights & Biases without surprises: one run per job, never a prompt, offline when there is no key or network."""

from __future__ import annotations

import netrc
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlparse

from transformers import TrainerCallback

NETWORK_PATIENCE_S = 3.0
ID_FILE = Path("wandb") / "run_id"  # in the output folder; it goes with W&B's own files there


def prepare(output_dir: Path, resuming: bool, project: str = "zerotune") -> str:
    """Set W&B's environment before the Trainer starts its run on rank 0; return the mode and why, in words.

    An explicit WANDB_MODE, WANDB_PROJECT, WANDB_DIR or WANDB_RUN_ID of the user is kept. A resumed job goes on
    with the run that it began.
    """
    if resuming and (output_dir / ID_FILE).is_file():
        os.environ.setdefault("WANDB_RUN_ID", (output_dir / ID_FILE).read_text().strip())
        os.environ.setdefault("WANDB_RESUME", "allow")
    os.environ.setdefault("WANDB_PROJECT", project)
    os.environ.setdefault("WANDB_DIR", str(output_dir))
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_LOG_MODEL", "false")
    os.environ.setdefault("WANDB_WATCH", "false")
    if mode := os.environ.get("WANDB_MODE"):
        return f"{mode} (WANDB_MODE)"
    why = _why_offline()
    os.environ["WANDB_MODE"] = "offline" if why else "online"
    return f"offline ({why}; upload later with: wandb sync {output_dir}/wandb/offline-run-*)" if why else "online"


class KeepRunId(TrainerCallback):
    """Write the run's id into the output folder, for `prepare` of the job that resumes this one."""

    def on_train_begin(self, args, state, control, **kwargs):
        run = sys.modules["wandb"].run if "wandb" in sys.modules else None
        if state.is_world_process_zero and run is not None:
            path = Path(args.output_dir) / ID_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(run.id + "\n")


def _why_offline() -> str | None:
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    if not _has_key(host.hostname):
        return "no API key"
    try:
        with socket.create_connection((host.hostname, host.port or 443), timeout=NETWORK_PATIENCE_S):
            return None
    except OSError:
        return f"{host.hostname} cannot be reached"


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def finish() -> None:
    """Close the run and wait until everything is written or sent; nothing happens when none was started."""
    if "wandb" in sys.modules and sys.modules["wandb"].run is not None:
        sys.modules["wandb"].finish()
