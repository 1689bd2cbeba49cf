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
    """What this rank heard, and what all ranks agreed on: the name of the signal, None without one."""

    heard: str | None = None
    agreed: str | None = None


request = Request()


@contextlib.contextmanager
def listening() -> Iterator[Request]:
    """Inside, the signals are noted and nothing more. A second one is too: launchers send what a user sent again."""

    def note(number, frame):
        request.heard = signal.Signals(number).name

    request.heard = request.agreed = None
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopOnSignal(TrainerCallback):
    """After a signal to any rank: save at the end of the step, and train no further.

    Args:
        gather: every rank's value, by rank.
    """

    def __init__(self, gather: Callable[[str | None], list]):
        self.gather = gather

    def on_step_end(self, args, state, control, **kwargs):
        request.agreed = next((name for name in self.gather(request.heard) if name), None)
        if request.agreed:
            control.should_save = control.should_training_stop = True
