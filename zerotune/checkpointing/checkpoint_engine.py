"""DeepSpeed's own way in: a checkpoint engine that hands what it should write to a `BackgroundSaver`.

`DeepSpeedEngine.step` calls `commit` of an engine that says it is decoupled right before the optimizer changes
anything (deepspeed 0.18.9 and 0.19.8, runtime/engine.py): there training waits for the copies, if it has to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo, TorchCheckpointEngine

from zerotune.checkpointing import snapshot
from zerotune.checkpointing.background import BackgroundSaver


class BackgroundCheckpointEngine(TorchCheckpointEngine):
    """Saves through `saver` while it has a checkpoint open, and as DeepSpeed's default does otherwise."""

    def __init__(self, saver: BackgroundSaver):
        super().__init__()
        self.zipfile_serialization = True
        self.saver = saver
        self.info: CheckpointCommitInfo | None = None

    def create(self, info):
        if self.saver.open_save is not None:
            self.info = replace(info, save_latest=False)  # the saver writes `latest`, when the files are there
            self.saver.open_save.latest = info.tag

    def save(self, state_dict, path):
        if self.saver.open_save is None:
            super().save(state_dict, path)
            return
        module = state_dict.get("module") or {}
        for name in state_dict.get("buffer_names") or ():
            if name in module:  # a forward pass may change buffers; weights and moments wait for the optimizer
                module[name] = module[name].clone()
        self.saver.add(state_dict, Path(path))

    def is_decoupled(self):
        return self.saver.open_save is not None or self.saver.copying is not None

    def get_commit_info(self):
        return self.info

    def commit(self, info):
        self.saver.wait_until_copied()
        return True


def install(engine, saver: BackgroundSaver) -> str | None:
    """Let `engine` (a DeepSpeedEngine) save through `saver`; returns why it cannot do so in the background, or None."""
    present = engine.checkpoint_engine
    if type(present) is not TorchCheckpointEngine or not present.zipfile_serialization:
        saver.in_background = False
        return "the config's checkpoint block chooses its own way of writing"
    engine.checkpoint_engine = BackgroundCheckpointEngine(saver)
    if engine.zenflow or engine.super_offload():
        saver.in_background = False
        return "ZenFlow and SuperOffload change the optimizer states at any time"
    return None


def state_bytes(engine) -> int:
    """Bytes of the tensors that this rank will save, found without saving; 0 where they lie on NVMe."""
    if engine.zero_nvme_offload_optimizer():
        return 0
    states = []
    if engine.save_zero_checkpoint or engine.save_non_zero_checkpoint:
        states.append(engine.optimizer.state_dict())
    if engine.save_non_zero_checkpoint:  # under stage 3 weights lie in the optimizer's files alone
        partitioned = engine.zero_optimization_partition_weights()
        states.append(list(engine.module.buffers()) if partitioned else engine.module.state_dict())
    return snapshot.tensor_bytes(states)
