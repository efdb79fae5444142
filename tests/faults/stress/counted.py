"""A pytest plugin, `-p tests.faults.stress.counted`: the coordinator's answered requests in the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.scene.coordinator import Served

_ANSWERED = re.compile(r"^tessera_request_seconds_count\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="session", autouse=True)
def _counted(
    backend: str, coordinator: Served, record_testsuite_property: Callable[[str, object], None]
) -> Iterator[None]:
    yield
    metrics = coordinator.admin.get("/metrics").text
    answered = sum(float(count) for count in _ANSWERED.findall(metrics))
    record_testsuite_property("summary", f"{answered:,.0f} requests on {backend}")
