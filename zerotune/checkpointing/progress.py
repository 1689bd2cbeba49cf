"""A progress bar in bytes, shown on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(wanted: bool, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of bytes; it may be called from any thread."""
    if not wanted or not sys.stderr.isatty():
        yield lambda num_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("exporting"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=total_bytes)
        yield lambda num_bytes: bar.advance(task, num_bytes)
