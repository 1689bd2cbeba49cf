"""The bars of the libraries belong on rank 0's terminal: a log file would fill with them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import datasets
import pytest
import transformers

from zerotune.training import setup


@pytest.fixture(autouse=True)
def bars_again():
    datasets.enable_progress_bars()
    yield
    datasets.enable_progress_bars()
    transformers.utils.logging.enable_progress_bar()


@pytest.mark.parametrize(("rank", "terminal", "shown"), [("0", True, True), ("0", False, False), ("1", True, False)])
def test_bars_are_for_a_terminal(rank, terminal, shown, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: terminal, write=lambda _: None))
    setup.quiet_libraries()
    assert datasets.are_progress_bars_disabled() is not shown
