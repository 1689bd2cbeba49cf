"""What a launch line says about a run: the script's own flags, and how many ranks on how many machines.

deepspeed 0.19.8 launcher/runner.py, torch 2.13 distributed/run.py, accelerate 1.15 commands/launch.py, mpirun.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from zerotune.errors import UsageError

from .shell import UNKNOWN, Command, commands

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
LAUNCHERS = ("deepspeed", "torchrun", "accelerate")
# Without a launcher of their own these start one rank, or as many as mpirun and srun were told.
# Words that stand before a launcher: srun, env and their options.
MAX_BEFORE = 40
STARTERS = ("mpirun", "mpiexec", "srun")


@dataclass(frozen=True)
class Launch:
    """words: the script's own. ranks, nodes: None when the line doesn't tell. accelerate_file: of --config_file."""

    words: list[str]
    ranks: int | None = None
    nodes: int | None = None
    accelerate_file: str | None = None
    launcher: bool = False

    @property
    def arguments_file(self) -> str | None:
        """A JSON or YAML file as the script's only word: HfArgumentParser's idiom."""
        alone = (
            len(self.words) == 1 and self.words[0].endswith((".json", ".yaml", ".yml")) and UNKNOWN not in self.words[0]
        )
        return self.words[0] if alone else None


def read_launch(text: str) -> Launch:
    """The training command of a text: the last one with a launcher, else with flags; flags alone are taken as such.

    Raises:
        UsageError: words, and neither a launcher nor a flag among them.
    """
    found = commands(text)
    launches = [launch for launch in map(_launch, found) if launch is not None]
    if launches:
        return max(reversed(launches), key=_weight)
    flagged = [command.words for command in found if any(word.startswith("--") for word in command.words)]
    if found and not flagged:
        raise UsageError(f"--training-args: no flags and no launcher in {text.strip()[:60]!r}; @FILE reads a script")
    return Launch(flagged[-1] if flagged else [])


def _weight(launch: Launch) -> tuple[bool, bool]:
    """Scripts install and convert things too: what names a DeepSpeed config counts first, then what has a launcher."""
    return _has_config(launch.words), launch.launcher


def _has_config(words: list[str]) -> bool:
    return any(word.partition("=")[0] in ("--deepspeed", "--ds", "--deepspeed_config") for word in words)


def _launch(command: Command) -> Launch | None:
    if command.words[0].startswith("--"):
        return None
    words = [PurePosixPath(word).name for word in command.words[:MAX_BEFORE]]
    for number, word in enumerate(words):
        if word not in LAUNCHERS and not word.startswith("python"):
            continue
        rest = command.words[number + 1 :]
        if re.fullmatch(r"python[\d.]*", word):
            if rest[:1] == ["-m"] and rest[1:2] and rest[1] in MODULES:
                return _launched(MODULES[rest[1]], rest[2:], command)
            flags = _script(rest)[1]
            if any(starter in words[:number] for starter in STARTERS):
                return Launch(flags, _starter_ranks(command.words[:number]))
            alone = 1 if _has_config(flags) else None  # else it may be a program that starts others
            return Launch(flags, alone, alone)
        if word in LAUNCHERS:
            if word == "accelerate" and rest[:1] != ["launch"]:
                continue
            return _launched(word, rest[1:] if word == "accelerate" else rest, command)
    return None


def _launched(launcher: str, words: list[str], command: Command) -> Launch:
    options, flags = _script(words)
    known = _options(options)
    if launcher == "torchrun":
        per_node, nodes = _count(known.get("nproc_per_node", "1")), _count(known.get("nnodes", "1"))
        return Launch(flags, per_node and nodes and per_node * nodes, nodes, launcher=True)
    if launcher == "accelerate":
        nodes = _count(known.get("num_machines", ""))
        file = known.get("config_file", UNKNOWN)
        return Launch(flags, _count(known.get("num_processes", "")), nodes, None if UNKNOWN in file else file, True)
    return Launch(flags, *_deepspeed(known, command.environment), launcher=True)


def _deepspeed(known: dict, environment: dict) -> tuple[int | None, int | None]:
    """Ranks and nodes. Without a hostfile one machine is meant, as far as the line tells."""
    if "include" in known:
        hosts = [host.partition(":") for host in known["include"].split("@")]
        sizes = [len(slots.split(",")) if slots and UNKNOWN not in slots else None for _, _, slots in hosts]
        return (sum(sizes) if None not in sizes else None), len(hosts)
    several = "hostfile" in known
    nodes = _count(known.get("num_nodes", "" if several else "1"))
    per_node = _count(known.get("num_gpus", known.get("num_accelerators", "")))
    visible = environment.get("CUDA_VISIBLE_DEVICES", UNKNOWN)
    if (
        per_node is None
        and not ({"num_gpus", "exclude", "num_nodes"} & set(known))
        and UNKNOWN not in visible
        and not several
    ):
        per_node = len([device for device in visible.split(",") if device.strip()]) or None
    return (per_node * nodes if per_node and nodes else None), nodes


def _script(words: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's words and the script's. The script is the first *.py, or what follows -m or --module."""
    for number, word in enumerate(words):
        if word in ("-m", "--module") and number + 1 < len(words):
            return words[:number], words[number + 2 :]
        if word.endswith(".py") and not word.startswith("-"):
            return words[:number], words[number + 1 :]
    for number, word in enumerate(words):  # a script under another name: after the first value that no option takes
        if not word.startswith("-") and (
            number == 0 or "=" in words[number - 1] or not words[number - 1].startswith("-")
        ):
            return words[:number], words[number + 1 :]
    return words, []


def _options(words: list[str]) -> dict[str, str]:
    """A launcher's options by name, with - as _."""
    short = {"-H": "hostfile", "-i": "include", "-e": "exclude"}
    found, name = {}, None
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            name, equals, value = word.lstrip("-").partition("=")
            name = short.get(word, name.replace("-", "_"))
            found[name] = value if equals else ""
            name = None if equals else name
        elif name is not None:
            found[name], name = word, None
    return found


def _starter_ranks(words: list[str]) -> int | None:
    for option in ("-np", "-n", "--np", "--ntasks"):
        for number, word in enumerate(words):
            if word == option and number + 1 < len(words):
                return _count(words[number + 1])
            if word.startswith(f"{option}="):
                return _count(word.partition("=")[2])
    return None


def _count(text: str) -> int | None:
    """A number of things; None for what only the machine or the shell can tell (auto, gpu, 1:4, $N)."""
    return int(text) if re.fullmatch(r"[1-9]\d{0,6}", text) else None
