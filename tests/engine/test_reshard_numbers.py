"""Numbers beside the tensors: step counts in each optimizer's way, the loss scaler of fp16 (which no CPU engine has)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow


def test_steps_are_counted_as_the_optimizer_counts():
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    from zerotune.checkpointing.resharding.restore import counted

    param = torch.nn.Parameter(torch.zeros(4))
    of_torch, of_deepspeed = torch.optim.AdamW([param]), DeepSpeedCPUAdam([param])
    for optimizer in (of_torch, of_deepspeed):
        param.grad = torch.ones(4)
        optimizer.step()
        own = optimizer.state[param]["step"]
        for value in (1, 1.0):
            found = counted(optimizer, optimizer.param_groups[0], param, value)
            assert type(found) is type(own)
            assert found == own
            assert getattr(found, "dtype", None) == getattr(own, "dtype", None)


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_loss_scale_goes_on_where_the_kind_of_scaler_is_the_same(tmp_path, dynamic):
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler

    from zerotune.checkpointing.resharding.restore import restore_counters
    from zerotune.checkpointing.torch_archive import read_archive

    def scaler():
        return DynamicLossScaler(2.0**16, 1000, 1.0, 1, False)

    saved = scaler()
    saved.cur_scale, saved.cur_iter, saved.last_overflow_iter = 2.0**15, 3, 0
    torch.save(saved, tmp_path / "scaler.pt")
    engine_state = {"global_steps": 7, "global_samples": 56, "skipped_steps": 1, "lr_scheduler": None}
    stored = SimpleNamespace(
        loss_scaler=read_archive(tmp_path / "scaler.pt").state,
        engine=engine_state,
        weights=SimpleNamespace(world_size=2),
    )
    mine = scaler() if dynamic else LossScaler(4.0)
    engine = SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=mine), lr_scheduler=None)
    restore_counters(stored, engine)
    assert (engine.global_steps, engine.global_samples, engine.skipped_steps) == (7, 56, 1)
    if dynamic:
        assert mine.cur_scale == 2.0**15
        assert vars(mine) == vars(saved)  # the type too, which the reader does not import
    else:
        assert mine.cur_scale == 4.0
