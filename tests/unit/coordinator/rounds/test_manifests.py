"""Signed manifests of rounds, the plan and the roster, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from coordinator.db.engine import database_time
from coordinator.db.tables.identity import RosterRow
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import name_of, public_key
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import PLAN, one_round, plan, running, url

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def join_document(silo: Silo, number: int) -> dict[str, Any]:
    answer = silo.http.post(url(silo, number, "/join"))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def is_signed_by(served: Served, document: dict[str, Any]) -> bool:
    key = public_key(served.http().get("/v1/hello").json()["signing_key"])
    return is_signed("tessera-round-v1", document, document["signature"], key)


def test_a_join_returns_one_constant_signed_manifest(coordinator: Served) -> None:
    federation_id, (silo, peer) = running(coordinator)
    first = join_document(silo, 1)
    manifest = first["manifest"]
    assert is_signed_by(coordinator, manifest)
    assert not is_signed_by(coordinator, manifest | {"deadline": "2030-01-01T00:00:00.000000Z"})
    assert (manifest["federation"], manifest["client"], manifest["round"]) == (
        federation_id,
        silo.client_id,
        1,
    )
    assert manifest["weights"] == first["weights"]["digest"]
    assert manifest["deadline"] is None
    assert manifest["previous"] is None
    second = join_document(peer, 1)["manifest"]
    assert second["deadline"] is not None, "the second join begins the collecting"
    assert join_document(silo, 1) == first
    shown = silo.http.get(url(silo, 1, "/manifest"))
    assert shown.json() == manifest
    assert slug(silo.http.get(url(silo, 2, "/manifest"))) == "not-found"
    assert slug(coordinator.admin.get(url(silo, 1, "/manifest"))) == "forbidden"


def test_manifests_are_a_chain_to_the_final_weights(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 2, "min_clients": 2}))
    silo = silos[0]
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    first = silo.http.get(url(silo, 1, "/manifest")).json()
    second = join_document(silo, 2)["manifest"]
    assert second["previous"] == {"round": 1, "hash": hash_of(first)}
    one_round(coordinator, federation_id, silos, 2, [1.0, 3.0])
    ends = [silo.http.get(url(silo, 1).replace("/1", "/current")).json() for _ in range(2)]
    assert ends[0] == ends[1]
    final = ends[0]["manifest"]
    assert is_signed_by(coordinator, final)
    assert (final["round"], final["weights"]) == (3, ends[0]["weights"]["digest"])
    assert final["previous"] == {"round": 2, "hash": hash_of(second)}


def test_final_manifests_keep_their_roster_despite_clock_changes(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 3, **plan(rounds={"total": 1, "min_clients": 2}))
    with coordinator.database.write() as session:  # when they were enrolled the clock was an hour ahead
        ahead = database_time(session) + timedelta(hours=1)
        session.execute(update(RosterRow).where(RosterRow.federation_id == federation_id).values(at=ahead))
    one_round(coordinator, federation_id, silos[:2], 1, [1.0, 3.0])

    def final() -> dict[str, Any]:
        answer = silos[0].http.get(url(silos[0], 1).replace("/1", "/current"))
        return dict(answer.json()["manifest"])

    before = final()
    joined = silos[0].http.get(url(silos[0], 1, "/manifest")).json()
    assert (before["round"], before["roster_version"]) == (2, 3)
    assert before["roster_hash"] == joined["roster_hash"]
    deleted = coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[2].client_id}")
    assert deleted.status_code == 204
    assert final() == before, "what comes after the end changes nothing"
    with coordinator.database.read() as session:
        links = select(RosterRow.at).where(RosterRow.federation_id == federation_id)
        times = list(session.scalars(links.order_by(RosterRow.version)))
    assert times == sorted(times)
    assert len(times) == 4


def test_plan_bytes_match_the_digest_in_manifests(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator)
    served = silo.http.get(f"/v1/federations/{federation_id}/plan")
    assert join_document(silo, 1)["manifest"]["plan"] == digest_of(served.content)
    assert served.json() == coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]
    stranger = coordinator.enrol(coordinator.federation(), "a")
    assert slug(stranger.http.get(f"/v1/federations/{federation_id}/plan")) == "not-found"


@pytest.mark.parametrize("policy", ["server", "tofu", "pinned"])
def test_the_roster_is_a_chain_named_by_manifests(coordinator: Served, policy: str) -> None:
    federation_id, (silo, peer) = running(coordinator, **PLAN, privacy={"roster_policy": policy})
    path = f"/v1/federations/{federation_id}/roster"
    assert (
        coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{peer.client_id}").status_code
        == 204
    )
    first = coordinator.admin.get(path, params={"limit": 2}).json()
    second = coordinator.admin.get(path, params={"after": first["next"]}).json()
    entries = first["items"] + second["items"]
    assert [(e["version"], e["event"]) for e in entries] == [(1, "enrolled"), (2, "enrolled"), (3, "revoked")]
    assert entries[2]["client"] == peer.client_id
    assert {e["public_key"] for e in entries[:2]} >= {name_of(silo.key)}
    for before, after in zip([None, *entries], entries, strict=False):
        assert after["previous"] == (hash_of(before) if before else None)
    manifest = join_document(silo, 1)["manifest"]
    assert (manifest["roster_version"], manifest["roster_hash"]) == (3, hash_of(entries[2]))
    response = silo.http.get(path)
    assert (response.status_code == 200) == (policy != "server"), (
        "who else is in is not every client's to know"
    )
    assert slug(coordinator.admin.get(path, params={"after": "x"})) == "validation"
