"""Where a checkpoint's optimizer states lie, by name: files made by hand, read back and compared with numpy."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest

from zerotune.checkpointing.resharding import kind
from zerotune.checkpointing.resharding.stored import index, zero_folder
from zerotune.checkpointing.same_run import RankStates
from zerotune.checkpointing.shard_plan import Slot
from zerotune.checkpointing.torch_archive import StoredTensor
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks
from zerotune.checkpointing.zero_files import RankFiles
from zerotune.errors import UsageError

GROUPS = [{"a": (3, 5), "b": (7,)}, {"c": (2, 2, 2), "d": (1,), "e": (4, 4)}]
KEYS = ("fp32", "exp_avg", "exp_avg_sq")


def values(key: str, name: str) -> np.ndarray:
    size = math.prod(next(group[name] for group in GROUPS if name in group))
    return (np.arange(size) + 1000 * ord(name) + 0.25 * KEYS.index(key)).astype(np.float32)


def flat(stage: int, key: str, group: dict, ranks: int) -> list[np.ndarray]:
    """One group's vectors, rank by rank, as DeepSpeed lays them out."""
    if stage == 3:
        cut = {name: -(-math.prod(shape) // ranks) for name, shape in group.items()}
        padded = {name: np.pad(values(key, name), (0, cut[name] * ranks - len(values(key, name)))) for name in group}
        return [
            np.concatenate([padded[name][rank * cut[name] : (rank + 1) * cut[name]] for name in group])
            for rank in range(ranks)
        ]
    whole = np.concatenate([values(key, name) for name in group])
    size = -(-len(whole) // (2 * ranks)) * 2
    padded = np.pad(whole, (0, size * ranks - len(whole)))
    ends = len(whole) if key == "fp32" else len(padded)  # the masters are saved without padding
    return [padded[rank * size : min((rank + 1) * size, max(ends, rank * size))] for rank in range(ranks)]


def run(folder: Path, stage: int, ranks: int) -> RankStates:
    """The trees of a run's files, whose vectors lie in files of `folder`."""

    def stored(array: np.ndarray, name: str) -> StoredTensor:
        (folder / name).write_bytes(array.tobytes())
        return StoredTensor(folder / name, "F32", 0, array.shape, (1,))

    vectors = {
        (key, rank, number): stored(part, f"{key}-{rank}-{number}")
        for key in KEYS
        for number, group in enumerate(GROUPS)
        for rank, part in enumerate(flat(stage, key, group, ranks))
    }
    optimizers = []
    for rank in range(ranks):
        state = {
            number: {"step": 6, **{key: vectors[key, rank, number] for key in KEYS[1:]}}
            for number in range(len(GROUPS))
        }
        groups = [{"lr": 0.1 * (1 + number), "betas": (0.9, 0.99), "params": [number]} for number in range(len(GROUPS))]
        masters = [vectors["fp32", rank, number] for number in range(len(GROUPS))]
        paddings = [vectors["exp_avg", rank, n].num_elements - masters[n].num_elements for n in range(len(GROUPS))]
        names = ("optimizer_state_dict", "fp32_flat_groups")
        if stage < 3:
            names = ("base_optimizer_state", "single_partition_of_fp32_groups")
        optimizers.append(
            {names[0]: {"state": state, "param_groups": groups}, names[1]: masters, "group_paddings": paddings}
        )
    model = {"module": {}, "buffer_names": [], "param_shapes": GROUPS, "global_steps": 6, "ds_config": {}}
    models = [copy.deepcopy(model) for _ in range(ranks if stage == 3 else 1)]
    files = RankFiles(
        folder, [folder / f"model{n}" for n in range(len(models))], [folder / f"o{n}" for n in range(ranks)]
    )
    return RankStates(files, stage, models, optimizers)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_element_is_found(tmp_path, stage, ranks):
    found = index(run(tmp_path, stage, ranks))
    reader = RangeReader()
    assert found.masters == list("abcde")
    for key in KEYS:
        tensors = found.weights.tensors if key == "fp32" else found.tensors[key]
        for name in found.masters:
            slot = Slot(name, tensors[name], "F32", 0)
            chunks = [raw for _, raw, _ in converted_chunks(reader, slot, 0, tensors[name].num_elements)]
            assert np.array_equal(np.concatenate(chunks).view(np.float32), values(key, name)), (key, name)
    reader.close()


def test_numbers_and_settings_go_by_name(tmp_path):
    found = index(run(tmp_path, 3, 2))
    assert found.scalars["d"] == {"step": 6}
    assert found.hyperparameters["b"] == {"lr": 0.1, "betas": (0.9, 0.99)}
    assert found.hyperparameters["e"]["lr"] == 0.2


def test_before_the_first_step_there_are_no_states(tmp_path):
    states = run(tmp_path, 2, 2)
    for optimizer in states.optimizers:
        optimizer["base_optimizer_state"]["state"] = {}
    found = index(states)
    assert found.tensors == {}
    assert found.scalars["a"] == {}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda s: s.optimizers[1]["optimizer_state_dict"]["state"][0].update(step=7), "o0 and o1 disagree .*6.*7"),
        (lambda s: s.models[1]["param_shapes"][0].update(b=(8,)), "model1 and model0 name different parameters"),
        (lambda s: s.optimizers[1]["optimizer_state_dict"]["state"][1].pop("exp_avg"), "'exp_avg' is there for some"),
        (lambda s: s.optimizers[0].update(optimizer_state_dict=[]), "elastic_checkpoint"),
        (lambda s: s.optimizers[0].update(group_paddings=[3, 0]), "state exp_avg holds 12 numbers for 12 weights"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, spoil, told):
    states = run(tmp_path, 3, 2)
    spoil(states)
    with pytest.raises(UsageError, match=told):
        index(states)


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"a plain safetensors model \(it holds model.safetensors\)"):
        zero_folder(tmp_path)
    (tmp_path / "latest").write_text("global_step7\n")
    with pytest.raises(UsageError, match="names global_step7, which is not there"):
        zero_folder(tmp_path)


def test_a_kind_of_run_in_words(tmp_path):
    states = run(tmp_path, 3, 2)
    zero = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    states.models[0]["ds_config"] = {"zero_optimization": zero, "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    assert str(kind.of_checkpoint(states)) == "2 ranks, stage 3, optimizer on CPU, parameters on NVMe, bf16"
    assert str(kind.of_checkpoint(run(tmp_path, 1, 1))) == "1 rank, stage 1, no offload, fp32"
