"""A round to be hostile to, and the check that hostility leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.coordinator.updates.target import LIMIT, Rows, Target
from tests.served import Served, slug
from tests.taking_part import (
    PLAN,
    join,
    put,
    running,
)


@pytest.fixture(scope="module")
def target(coordinator: Served) -> Target:
    # One client short of the second, so that the round stays open whatever the others do.
    changes = {"limits": {"max_update_bytes": LIMIT, "max_norm": 50.0}}
    _, (silo, other, newcomer) = running(coordinator, clients=3, **(PLAN | changes))
    join(other, 1)
    return Target(coordinator, silo, join(silo, 1), newcomer)


@pytest.fixture
def leaves_no_trace(target: Target, rows: Rows) -> Iterator[None]:
    def stored() -> list[tuple[Any, ...]]:
        tables = ("payloads", "payload_chunks", "updates", "signatures", "events")
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
        return rows(target.served.database_url, f"SELECT {counts}")

    before = stored()
    yield
    assert stored() == before
    # and what is good is still taken: another base would not even get this far
    probe = put(target.silo, 1, target.manifest(base="sha256:" + "0" * 64))
    assert slug(probe) == "base-mismatch"
