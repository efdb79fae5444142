"""Revoking a client: its update counts, its round closes without it, and no deadlock occurs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
from sqlalchemy import update

from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import ClientRow, ParticipationRow
from coordinator.federations import store as federations
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import deliver, join, plan, running, show, values, wait_for
from tests.unit.coordinator.aggregation.closed_round import simple


def test_updates_of_revoked_clients_count_towards_the_quorum(coordinator: Served) -> None:
    rounds = {"min_clients": 3, "quorum": 2, "collect_seconds": 1.0, "total": 1}
    federation_id, silos = running(coordinator, clients=3, **plan(rounds=rounds))
    for silo in silos:
        join(silo, 1)
    for silo in silos[:2]:
        deliver(silo, 1, values(1.0))
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    shown = wait_for(coordinator, federation_id, 1, "published")
    assert [client["state"] for client in shown["clients"]] == ["revoked", "arrived", "joined"]


def test_revoking_the_last_expected_client_closes_its_round(
    serve: Callable[..., Served], database_url: str
) -> None:
    served = serve(database_url, tick_seconds=3600.0)
    federation_id, silos = running(served, clients=3, **plan(rounds={"total": 1}))
    for silo in silos:
        join(silo, 1)
    for silo in silos[:2]:
        deliver(silo, 1, values(1.0))
    assert show(served, federation_id, 1)["state"] == "collecting"
    assert (
        served.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[2].client_id}").status_code
        == 204
    )
    shown = wait_for(served, federation_id, 1, "published", 5.0)
    assert shown["counts"]["joined"] == 3
    assert [client["state"] for client in shown["clients"]] == ["arrived", "arrived", "revoked"]


def test_revoking_during_a_byte_count_does_not_deadlock(postgres_database: Database) -> None:
    closed = simple(postgres_database, clients=1)
    client_id = closed.clients[0]
    with postgres_database.write() as session:
        row = lock_federation(session, closed.federation_id)
        session.execute(update(ParticipationRow).values(state="joined"))
        session.execute(update(federations.RoundRow).values(state="collecting"))
        assert row.state == "running"

    def revoke() -> bool:
        with postgres_database.write() as session:
            lock_federation(session, closed.federation_id)
            return federations.revoke(session, closed.federation_id, client_id)

    with ThreadPoolExecutor(1) as pool:
        with postgres_database.write() as session:
            session.execute(update(ParticipationRow).values(bytes_down=1))
            revoking = pool.submit(revoke)
            sleep(0.3)
            session.execute(update(ClientRow).values(bytes_down=1))
        assert revoking.result(timeout=10)


def test_a_round_without_enough_members_asks_for_another(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    assert show(coordinator, federation_id, 1)["advice"] is None
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    advice = (
        "1 of 2 required clients is a member; enrol another client, or finish this federation and create one "
        "with a smaller rounds.min_clients"
    )
    assert show(coordinator, federation_id, 1)["advice"] == advice
    (listed,) = silos[1].http.get(f"/v1/federations/{federation_id}/rounds").json()["items"]
    assert listed["advice"] == advice
    coordinator.enrol(federation_id, "replacement")
    assert show(coordinator, federation_id, 1)["advice"] is None


@pytest.mark.parametrize("place", ["9" * 20, "x", "-1", "\u0661"])
def test_an_invalid_page_position_is_refused(coordinator: Served, place: str) -> None:
    federation_id = coordinator.federation()
    refused = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds", params={"after": place})
    assert (refused.status_code, slug(refused), refused.json()["field"]) == (422, "validation", "after")
