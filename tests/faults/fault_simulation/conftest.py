"""Fixtures of all schedules of a test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fault_simulation.campaign import prepared


@pytest.fixture(scope="session")
def prepared_process() -> Iterator[None]:
    """Pay once for what every schedule needs."""
    with prepared():
        yield
