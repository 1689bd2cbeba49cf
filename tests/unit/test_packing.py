"""Cutting and packing token segments: nothing lost, nothing twice, full blocks, neighbours apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotune.training.data.packing import best_fit, cut, fill_block

LENGTHS = st.lists(st.integers(0, 90), max_size=60)


def tokens_of(segments):
    return sorted((one.example, at) for one in segments for at in range(one.start, one.start + one.length))


@given(LENGTHS, st.integers(8, 40))
def test_text_is_cut_without_loss_but_for_single_tokens(lengths, block):
    segments = cut(lengths, block, splittable=True)
    assert all(2 <= one.length <= block for one in segments)
    lost = sum(lengths) - sum(one.length for one in segments)
    assert lost == sum(length % block == 1 for length in lengths)


@given(LENGTHS, st.integers(8, 40))
def test_an_answer_is_never_cut(lengths, block):
    segments = cut(lengths, block, splittable=False)
    assert [(one.example, one.start, one.length) for one in segments] == [
        (at, 0, length) for at, length in enumerate(lengths) if 2 <= length <= block
    ]


@given(LENGTHS, st.integers(8, 40))
def test_every_token_is_packed_once_within_its_block(lengths, block):
    segments = cut(lengths, block, splittable=True)
    blocks = best_fit(segments, block)
    assert all(sum(one.length for one in row) <= block for row in blocks)
    assert tokens_of(one for row in blocks for one in row) == tokens_of(segments)


def test_short_lines_fill_over_nine_tenths():
    lengths = np.random.default_rng(0).integers(5, 120, 4000).tolist()
    blocks = best_fit(cut(lengths, 512, splittable=False), 512)
    assert sum(lengths) / (len(blocks) * 512) > 0.99


def test_a_block_restarts_positions_and_never_predicts_across_a_border():
    first, second = np.array([5, 6, 7]), np.array([8, 9])
    made = fill_block([(first, first), (second, np.array([-100, 9]))], 8, pad_id=0)
    assert made["input_ids"].tolist() == [5, 6, 7, 8, 9, 0, 0, 0]
    assert made["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert made["labels"].tolist() == [-100, 6, 7, -100, 9, -100, -100, -100]
    assert made["real_tokens"] == 5


@pytest.mark.parametrize("pad_id", [0, 7])
def test_padding_is_masked_by_place_not_by_token(pad_id):
    ids = np.array([7, 0, 7])  # real tokens that happen to be the pad token keep their labels
    assert fill_block([(ids, ids)], 4, pad_id)["labels"].tolist() == [-100, 0, 7, -100]
