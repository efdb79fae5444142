"""The progress lines of `make demo-tiny`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from client_agent.transport.admin_client import Operator
from examples.agents import Agents
from examples.demo_tiny.federated import _follow
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.rounds import PLAN, deliver, running, values, wait_for


class SingleLook:
    """Agents whose progress is read once."""

    def until(self, condition: Callable[[], bool], awaited: str, *, every: float = 0.3) -> None:
        assert condition()


def test_progress_names_the_round_and_the_share(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 2, **(PLAN | {"rounds": {"total": 4, "min_clients": 2}}))
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_for(coordinator, federation_id, 1, "published")
    reports: list[tuple[str, float]] = []

    def report(text: str, done: float) -> None:
        reports.append((text, done))

    agents = cast("Agents", SingleLook())
    with Operator(coordinator.url, ADMIN_TOKEN) as operator:
        path = f"/v1/federations/{federation_id}"
        _follow(operator, path, agents, report, rounds=4, until=lambda view: view["round"] == 2)
    assert reports == [("round 2 open, 0 of 0 delivered", 0.25)]
