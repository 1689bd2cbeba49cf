"""The global batch of a resumed run: kept by accumulation, or the clash told with values that work."""

from __future__ import annotations

import pytest

from zerotune.errors import UsageError
from zerotune.training.global_batch import ACCUMULATION, MICRO, Batch, keep, refuse_other_order

WAS = Batch(ranks=2, micro=4, accumulation=3)


@pytest.mark.parametrize(
    ("ranks", "given", "micro", "accumulation"),
    [
        (2, {}, 4, 3),
        (1, {}, 4, 6),
        (4, {}, 3, 2),  # 4 does not divide 6: the largest smaller micro batch that does
        (24, {}, 1, 1),
        (2, {MICRO: 2}, 2, 6),
        (1, {ACCUMULATION: 2}, 12, 2),
        (4, {MICRO: 6, ACCUMULATION: 1}, 6, 1),
    ],
)
def test_what_the_user_left_open_is_fitted(ranks, given, micro, accumulation):
    training = {MICRO: 8, ACCUMULATION: 1, **given}
    now = keep(WAS, ranks, training, set(given))
    assert (training[MICRO], training[ACCUMULATION]) == (micro, accumulation) == (now.micro, now.accumulation)
    assert now.total == WAS.total


@pytest.mark.parametrize(
    ("ranks", "given", "told"),
    [
        (5, {}, r"24 = 2 rank\(s\) x 4 x 3 accumulated, which 5 ranks cannot share evenly. .*: 1, 2, 3, 4, 6, 8, 12, 24"),
        (2, {MICRO: 8}, r"--per_device_train_batch_size 8 on 2 rank\(s\) cannot make 24.*: 1 x 12, 2 x 6, 3 x 4, 4 x 3"),
        (1, {MICRO: 4, ACCUMULATION: 3}, r"size 4 and --gradient_accumulation_steps 3 on 1 rank\(s\) cannot make 24"),
    ],
)  # fmt: skip
def test_a_clash_names_values_that_work(ranks, given, told):
    with pytest.raises(UsageError, match=told):
        keep(WAS, ranks, {MICRO: 8, ACCUMULATION: 1, **given}, set(given))


def test_orders_that_depend_on_the_parts_are_refused_when_these_change():
    now = Batch(1, 4, 6)
    refuse_other_order(WAS, now, {"train_sampling_strategy": "random", "dataloader_drop_last": False})
    refuse_other_order(WAS, WAS, {"train_sampling_strategy": "group_by_length", "dataloader_drop_last": True})
    with pytest.raises(UsageError, match="--dataloader_drop_last"):
        refuse_other_order(WAS, now, {"dataloader_drop_last": True})
    with pytest.raises(UsageError, match="--train_sampling_strategy group_by_length"):
        refuse_other_order(WAS, now, {"train_sampling_strategy": "group_by_length"})
