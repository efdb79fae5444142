"""Progress reports of clients inside a round; people see the newest report."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import deliver, join, plan, running, url, values, wait_for

REPORT = {"step": 3, "steps": 20, "loss": 1.5, "tokens_per_second": 900.0, "seconds_left": 31.0}


def report(silo: Silo, number: int, **changes: Any) -> httpx.Response:
    return silo.http.put(url(silo, number, "/progress"), json=REPORT | changes)


def shown_progress(served: Served, silo: Silo, number: int) -> dict[str, Any] | None:
    clients = served.admin.get(url(silo, number)).json()["clients"]
    return next(client["progress"] for client in clients if client["client_id"] == silo.client_id)


def test_the_newest_report_is_shown_until_the_update(coordinator: Served) -> None:
    federation_id, (silo, peer) = running(coordinator)
    assert slug(report(silo, 1)) == "not-joined"
    assert slug(report(silo, 9)) == "not-found"
    join(silo, 1)
    assert shown_progress(coordinator, silo, 1) is None
    claims = coordinator.admin.get(url(silo, 1)).json()["claims"]
    assert report(silo, 1).status_code == report(silo, 1, step=4).status_code == 204
    shown = shown_progress(coordinator, silo, 1)
    assert shown is not None
    assert shown.pop("at")
    assert shown == REPORT | {"step": 4}
    rows = silo.http.get(url(silo, 1)).json()["clients"]
    assert [client["progress"]["step"] for client in rows] == [4]
    assert peer.http.get(url(peer, 1)).json()["clients"] == []
    assert coordinator.admin.get(url(silo, 1)).json()["claims"] == claims
    deliver(silo, 1, values(1.0))
    assert shown_progress(coordinator, silo, 1) is None
    deliver(peer, 1, values(1.0))
    wait_for(coordinator, federation_id, 1, "published")
    assert slug(report(peer, 1)) == "round-closed"


def test_the_report_ends_with_the_round(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator)
    join(silo, 1)
    assert report(silo, 1).status_code == 204
    assert shown_progress(coordinator, silo, 1) is not None
    assert coordinator.admin.post(f"/v1/federations/{federation_id}/finish").status_code == 200
    assert shown_progress(coordinator, silo, 1) is None


def test_reports_are_few_and_small(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator)
    join(silo, 1)
    assert slug(report(silo, 1, note="x" * 2000)) == "body-too-large"
    answers = [report(silo, 1, step=step) for step in range(7)]
    assert [answer.status_code for answer in answers if answer.status_code != 204][:1] == [429]
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.parametrize("changes", [{"step": -1}, {"loss": "low"}, {"seconds_left": 1e300}, {"steps": 0}])
def test_malformed_reports_are_refused(coordinator: Served, changes: dict[str, Any]) -> None:
    _, (silo, _) = running(coordinator)
    join(silo, 1)
    assert slug(report(silo, 1, **changes)) == "validation"


def test_secure_sum_plans_refuse_a_reported_loss(coordinator: Served) -> None:
    summed = plan(privacy={"secure_sum": {"minimum": 2, "masking": "none"}})
    _, (silo, _) = running(coordinator, **summed)
    join(silo, 1)
    assert slug(report(silo, 1)) == "validation"
    assert report(silo, 1, loss=None).status_code == 204
