"""Fixtures that several folders of tests share."""

import pytest

from tests.jobs import Jobs


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> Jobs:
    """Starts train.py with caches and a working folder of this test session."""
    return Jobs(tmp_path_factory.mktemp("jobs"))
