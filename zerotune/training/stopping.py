"""SIGTERM and SIGUSR1: finish the step, save, end in order.

The signal may reach one rank only, or ranks at different steps. At the end of every step the ranks tell each other
whether one came, and stop at the same step.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transformers import TrainerCallback

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@dataclass
class Request:
    """The signal that this rank heard (0: none), and the name of the one that all ranks agreed on."""

    heard: int = 0
    agreed: str | None = None


request = Request()


@contextlib.contextmanager
def listening() -> Iterator[Request]:
    """Inside, the signals are noted and nothing more. A second one is too: launchers send what a user sent again."""

    def note(number, frame):
        request.heard = int(number)

    request.heard, request.agreed = 0, None
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopOnSignal(TrainerCallback):
    """After a signal to any rank: save at the end of the step, and train no further.

    Args:
        highest: the highest of all ranks' numbers.
    """

    def __init__(self, highest: Callable[[int], int]):
        self.highest = highest

    def on_step_end(self, args, state, control, **kwargs):
        if number := self.highest(request.heard):
            request.agreed = signal.Signals(number).name
            control.should_save = control.should_training_stop = True
