"""More requests at once than threads: all answered, without mutual waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.scene.coordinator import ADMIN_TOKEN, Served

AT_ONCE = 150  # nearly four times as many as there are threads, and connections to the database

Call = tuple[str, str, dict[str, Any] | None]


@pytest.mark.slow
def test_concurrent_reads_are_answered(coordinator: Served) -> None:
    about = f"/v1/federations/{coordinator.federation()}"
    paths = ["/v1/hello", "/v1/tokens", about, f"{about}/plan", f"{about}/rounds", f"{about}/clients"]
    calls: list[Call] = [("GET", path, None) for path in paths]
    assert _at_once(coordinator, calls * (AT_ONCE // len(calls))) == {200: AT_ONCE}


@pytest.mark.slow
def test_concurrent_reads_and_writes_are_answered(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    calls: list[Call] = []
    for number in range(AT_ONCE // 3):
        calls += [
            ("POST", "/v1/tokens", {"role": "auditor", "name": f"auditor {number}"}),
            (
                "POST",
                f"/v1/federations/{federation_id}/enrolment-tokens",
                {"client_name": f"hospital-{number}"},
            ),
            ("GET", f"/v1/federations/{federation_id}", None),
        ]
    assert _at_once(coordinator, calls) == {201: AT_ONCE // 3 * 2, 200: AT_ONCE // 3}


def _at_once(coordinator: Served, calls: list[Call]) -> Counter[int]:
    """Count the answers by status; a call whose answer does not come within a minute raises."""

    async def call() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            base_url=coordinator.url,
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=60,
            limits=httpx.Limits(max_connections=None),
        ) as client:
            return await asyncio.gather(
                *(client.request(method, path, json=content) for method, path, content in calls)
            )

    return Counter(answer.status_code for answer in asyncio.run(call()))
