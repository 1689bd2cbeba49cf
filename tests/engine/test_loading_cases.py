"""The partitioned loader: offload, hpZ, NVMe, types, stages, tied weights, absent keys, pickles, and the first steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine import forked_ranks, tiny_models
from tests.engine.test_loading import differences, ds_config

pytestmark = pytest.mark.slow
WORLD = 4
PINNED = {"offload_param": {"device": "cpu", "pin_memory": True}}
HPZ = {"zero_hpz_partition_size": 2}


def same_as_stock(folder: str, cases: dict) -> dict[str, list[str]]:
    """Load under several configs, by the loader and by from_pretrained; what differs, by case."""
    import deepspeed
    import torch
    from deepspeed.utils import groups
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    from zerotune.loading import load_pretrained

    deepspeed.init_distributed(verbose=False)
    found = {}
    for name, (dtype, zero) in cases.items():
        torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch_dtype)
        config = ds_config(dtype, **zero)
        alive = HfDeepSpeedConfig(config)
        stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch_dtype)
        del alive
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # DeepSpeed makes the groups of hpZ once in a process
        mine = load_pretrained(folder, ds_config=config)
        found[name] = differences(mine, whole, stock) + different_secondary(mine, stock)
    return found


def different_secondary(mine, stock) -> list[str]:
    import torch

    pairs = [(one.ds_secondary_tensor, other.ds_secondary_tensor) for one, other in zip(
        mine.parameters(), stock.parameters(), strict=True)]  # fmt: skip
    return [
        f"secondary {one} {other}" for one, other in pairs
        if (one is None) != (other is None) or (one is not None and not torch.equal(one, other))
    ]  # fmt: skip


@pytest.mark.parametrize(("stored", "dtypes"), [("bfloat16", ("fp32", "fp16")), ("float32", ("bf16", "fp16", "fp32"))])
def test_types_offload_and_hpz_are_those_of_from_pretrained(stored, dtypes, tmp_path):
    folder = tiny_models.save("llama tied", tmp_path / "model", dtype=stored)
    cases = {dtype: (dtype, {}) for dtype in dtypes} | {"pinned": (dtypes[0], PINNED), "hpz": (dtypes[0], HPZ)}
    for rank in forked_ranks.run(same_as_stock, WORLD, str(folder), cases):
        assert rank == {name: [] for name in cases}


def change(folder: Path, edit) -> Path:
    """Let `edit` change the weights {key: tensor} of a folder, which become one file."""
    from safetensors.torch import load_file, save_file

    weights = {}
    for path in folder.glob("*.safetensors"):
        weights |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    edit(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


def store_head(same: bool):
    def edit(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        if not same:
            weights["lm_head.weight"][-1, -1] += 1  # in the last rank's part only

    return edit


def whole_values(model) -> dict:
    """Every parameter gathered, as nested lists."""
    import deepspeed

    values = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        with deepspeed.zero.GatheredParameters([param], enabled=hasattr(param, "ds_id")):
            values[name] = param.detach().float().clone()
    return values


def odd_folders(folders: dict[str, str]) -> dict:
    """What the loader makes of unusual folders, on every rank."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from zerotune.errors import UsageError
    from zerotune.loading import load_pretrained

    deepspeed.init_distributed(verbose=False)
    rank = torch.distributed.get_rank()
    found = {}
    for name in ("tied, stored twice", "tied, stored otherwise"):
        model = load_pretrained(folders[name], ds_config=ds_config())
        whole = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.bfloat16)
        found[name] = differences(model, whole)
    for name in ("absent", "too many"):
        try:
            load_pretrained(folders[name], ds_config=ds_config())
        except UsageError as error:
            found[name] = str(error)
    torch.manual_seed(rank)
    absent = load_pretrained(folders["absent"], ds_config=ds_config(), allow_keys=["^lm_head"])
    values = whole_values(absent)["lm_head.weight"]
    found["absent, allowed"] = (values.sum().item(), values.std().item())
    too_many = load_pretrained(folders["too many"], ds_config=ds_config(), allow_keys=["^extra"])
    whole = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.bfloat16)
    found["too many, allowed"] = differences(too_many, whole)
    pickled = load_pretrained(folders["pickled"], ds_config=ds_config(), allow_pickle=True)
    found["pickled"] = differences(pickled, whole)
    found["stage 2"] = unequal(
        load_pretrained(folders["llama"], ds_config=ds_config(stage=2)), whole.to(torch.bfloat16)
    )
    t5 = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"], dtype=torch.float16)
    found["fp32 kept"] = unequal(
        load_pretrained(folders["t5"], ds_config=ds_config("fp16", stage=1), dtype="float16",
                        model_class=AutoModelForSeq2SeqLM), t5)  # fmt: skip
    try:  # rank 1 sees another folder
        load_pretrained(folders["llama" if rank == 0 else "tied, stored twice"], ds_config=ds_config())
    except UsageError as error:
        found["not the same"] = str(error)
    try:  # rank 1 sees none
        load_pretrained(folders["llama"] if rank == 0 else folders["llama"] + "/none", ds_config=ds_config())
    except UsageError as error:
        found["one rank"] = str(error)
    return found


def unequal(model, whole) -> list[str]:
    import torch

    pairs = zip(model.state_dict().items(), whole.state_dict().items(), strict=True)
    return [name for (name, one), (other, two) in pairs if name != other or one.dtype != two.dtype
            or not torch.equal(one, two)]  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    import torch
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("odd")
    llama = tiny_models.save("llama", root / "llama")
    pickled = root / "pickled"
    pickled.mkdir()
    for path in llama.glob("*config.json"):
        shutil.copy(path, pickled)
    weights = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).state_dict()
    torch.save(weights, pickled / "pytorch_model.bin")
    folders = {
        "llama": llama,
        "t5": tiny_models.save("t5", root / "t5", dtype="float32"),
        "pickled": pickled,
        "tied, stored twice": change(tiny_models.save("llama tied", root / "twice"), store_head(same=True)),
        "tied, stored otherwise": change(tiny_models.save("llama tied", root / "other"), store_head(same=False)),
        "absent": change(tiny_models.save("llama", root / "absent"), lambda weights: weights.pop("lm_head.weight")),
        "too many": change(
            tiny_models.save("llama", root / "many"), lambda weights: weights.update({"extra.weight": torch.ones(3)})
        ),
    }
    return forked_ranks.run(odd_folders, 2, {name: str(folder) for name, folder in folders.items()})


@pytest.mark.parametrize(
    "case",
    ["tied, stored twice", "tied, stored otherwise", "too many, allowed", "pickled", "stage 2", "fp32 kept"],
)
def test_odd_folders_are_loaded_as_from_pretrained_does(odd, case):
    assert [rank[case] for rank in odd] == [[], []]


def test_keys_that_do_not_fit_are_named(odd):
    for rank in odd:
        assert "not in the files (1):\n    lm_head.weight" in rank["absent"]
        assert "not in the model (1):\n    extra.weight" in rank["too many"]


def test_absent_weights_that_are_allowed_are_drawn_once(odd):
    (total, spread), other = odd[0]["absent, allowed"], odd[1]["absent, allowed"]
    assert (total, spread) == other
    assert 0.015 < spread < 0.025


def test_all_ranks_stop_when_one_does(odd):
    assert len({rank["one rank"] for rank in odd}) == 1
    assert "no such folder. (seen by rank 1)" in odd[0]["one rank"]
    assert all("see different weight files" in rank["not the same"] for rank in odd)


def train_all(folder: str) -> dict:
    """Both ways under each config, on every rank."""
    import deepspeed

    deepspeed.init_distributed(verbose=False)
    return {
        name: [train(folder, how, zero, name == "lora") for how in ("loader", "from_pretrained")]
        for name, zero in TRAINED.items()
    }


def train(folder: str, how: str, zero: dict, lora: bool) -> dict:
    """Three optimizer steps of a model that the loader or from_pretrained made; losses and the weights afterwards."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    from zerotune.loading import load_pretrained

    config = ds_config("bf16", **zero) | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
    alive = HfDeepSpeedConfig(config)
    load = load_pretrained if how == "loader" else AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.bfloat16)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], r=4))
    params = [param for param in model.parameters() if param.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=params, config=config)
    del alive
    tokens = torch.arange(16).view(2, 8) + torch.distributed.get_rank()
    losses = []
    for _ in range(3):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    sums = {name: values.double().sum().item() for name, values in whole_values(engine.module).items()}
    return {"losses": losses, "sums": sums}


TRAINED = {
    "plain": {},
    "offload": {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
    "lora": {},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("peft")
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("trained") / "model")
    return forked_ranks.run(train_all, 2, str(folder))


@pytest.mark.parametrize("case", TRAINED)
def test_it_trains_as_one_that_from_pretrained_made(trained, case):
    for rank in trained:
        mine, stock = rank[case]
        assert mine == stock
        assert mine["losses"][-1] < mine["losses"][0]


def on_nvme(folder: str, nvme: str) -> dict:
    """Load with the parameters on NVMe by both ways; where they are, and their values when gathered."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    from zerotune.loading import load_pretrained

    deepspeed.init_distributed(verbose=False)
    offload = {"device": "nvme", "nvme_path": nvme, "buffer_count": 4, "buffer_size": 4_000_000}
    config = ds_config(offload_param=offload)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    alive = HfDeepSpeedConfig(config)
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    places = [(one.ds_tensor.status, one.ds_tensor.final_location) for one in stock.parameters()]
    del alive, stock
    mine = load_pretrained(folder, ds_config=config)
    same_places = [(one.ds_tensor.status, one.ds_tensor.final_location) for one in mine.parameters()] == places
    values = whole_values(mine)
    return {
        "on NVMe": sum(where == "nvme" for _, where in places),
        "same places": same_places,
        "wrong": [name for name, one in values.items() if not torch.equal(one, whole[name].float())],
    }


def test_partitions_on_nvme(tmp_path):
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        pytest.skip("needs libaio")
    folder = tiny_models.save("llama", tmp_path / "model", vocab_size=40_001)  # smaller partitions stay in memory
    for rank in forked_ranks.run(on_nvme, 2, str(folder), str(tmp_path / "nvme")):
        assert rank == {"on NVMe": 2, "same places": True, "wrong": []}
