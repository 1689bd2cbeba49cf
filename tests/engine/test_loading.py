"""The partitioned loader beside from_pretrained: every architecture, on 1, 2 and 4 ranks, bit for bit."""

from __future__ import annotations

import time

import pytest

from tests.engine import forked_ranks, tiny_models

pytestmark = pytest.mark.slow
WORLDS = (1, 2, 4)


def ds_config(dtype: str = "bf16", **zero) -> dict:
    switches = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return {"train_micro_batch_size_per_gpu": 1, **switches, "zero_optimization": {"stage": 3, **zero}}


def tied(model) -> dict[str, int]:
    """Every name of a parameter with the number of the parameter it stands for."""
    numbers = {}
    return {
        name: numbers.setdefault(id(one), len(numbers)) for name, one in model.named_parameters(remove_duplicate=False)
    }


def differences(model, whole, partitioned=None) -> list[str]:
    """What a partitioned model has other than the same model loaded whole, and loaded by from_pretrained under ZeRO-3."""
    import torch
    from deepspeed import comm
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    wrong = [] if tied(model) == tied(whole) else ["tied otherwise"]
    expected = dict(whole.named_parameters())
    stock = dict(partitioned.named_parameters()) if partitioned else {}
    for name, param in model.named_parameters():
        flat = expected[name].detach().reshape(-1)
        part = param.ds_tensor
        start = part.ds_numel * comm.get_rank()
        mine = flat[start : start + part.ds_numel].to(part.dtype)
        if not torch.equal(part[: mine.numel()].cpu(), mine) or part[mine.numel() :].any():
            wrong.append(f"{name}: values")
        if (param.ds_status, param.numel()) != (ZeroParamStatus.NOT_AVAILABLE, 0):
            wrong.append(f"{name}: not partitioned")
        if tuple(param.ds_shape) != tuple(expected[name].shape) or param.requires_grad != expected[name].requires_grad:
            wrong.append(f"{name}: shape or requires_grad")
        if stock and facts(param) != facts(stock[name]):
            wrong.append(f"{name}: {facts(param)} where from_pretrained has {facts(stock[name])}")
    for name, buffer in whole.named_buffers():
        found = model.get_buffer(name)
        if found.dtype != buffer.dtype or not torch.equal(found.cpu(), buffer):
            wrong.append(f"{name}: buffer")
    if partitioned and [name for name, _ in model.named_buffers()] != [name for name, _ in partitioned.named_buffers()]:
        wrong.append("other buffers")
    if model.generation_config.to_dict() != whole.generation_config.to_dict():
        wrong.append("generation config")
    return wrong


def facts(param) -> tuple:
    part = param.ds_tensor
    return (
        *(part.ds_numel, part.numel(), part.dtype, part.device, part.status, part.final_location, part.is_pinned()),
        *(param.dtype, param.ds_numel, param.ds_numel_aligned, param.ds_persist, param.device, type(param)),
    )


def compare_all(folders: dict[str, str], with_stock: bool) -> dict[str, list[str]]:
    """On every rank: load each model whole, by the loader, and (it is slow) by from_pretrained under ZeRO-3."""
    import deepspeed
    import torch
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    from zerotune.loading import load_pretrained

    deepspeed.init_distributed(verbose=False)
    found = {}
    for variant, folder in folders.items():
        auto = tiny_models.model_class(variant.split()[0])
        whole = auto.from_pretrained(folder, dtype=torch.bfloat16)
        alive = HfDeepSpeedConfig(ds_config())
        stock = auto.from_pretrained(folder, dtype=torch.bfloat16) if with_stock else None
        del alive
        mine = load_pretrained(folder, ds_config=ds_config(), model_class=auto)
        found[variant] = differences(mine, whole, stock)
        if mine.load_report.compared == 0:
            found[variant].append("no value was compared with the files")
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: str(tiny_models.save(name, root / name.replace(" ", "_"))) for name in tiny_models.VARIANTS}


@pytest.fixture(scope="module")
def compared(folders):
    made = {}
    for world in WORLDS:
        started = time.monotonic()
        made[world] = forked_ranks.run(compare_all, world, folders, world == 2)
        print(f"{world} rank(s): {time.monotonic() - started:.1f} s")
    return made


@pytest.mark.parametrize("variant", tiny_models.VARIANTS)
@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_from_pretrained(compared, world, variant):
    assert [rank[variant] for rank in compared[world]] == [[]] * world
