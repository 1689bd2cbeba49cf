"""DeepSpeed compiles its operators on first use, minutes in all: here once, two at a time, before any time limit counts."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

OPERATORS = ("CPUAdam", "ShareMemComm", "FusedAdam", "CPUAdagrad", "CPULion", "AsyncIO")
COMPILE = """
import sys
from deepspeed.accelerator import get_accelerator
builder = get_accelerator().create_op_builder(sys.argv[1] + "Builder")
if builder is not None and builder.is_compatible(verbose=False):
    builder.load(verbose=False)
"""


@pytest.fixture(scope="session", autouse=True)
def operators(request):
    """Compiled when a test is selected that starts engines. One that does not compile shows in the tests that need it."""
    if any(item.get_closest_marker("slow") for item in request.session.items):
        with ThreadPoolExecutor(2) as two:
            list(two.map(_compile, OPERATORS))


def _compile(name: str) -> None:
    subprocess.run([sys.executable, "-c", COMPILE, name], capture_output=True, timeout=1200, check=False)
