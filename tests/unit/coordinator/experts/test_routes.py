"""Routes of banks: views for people and members, and downloads of revisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.storage import event_log
from schemas.messages.experts import ExpertManifest
from schemas.wire.envelope import slots, unpack
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.stored_bank import LAYOUT, PLAN, StoredBody, store_bank


@pytest.fixture(scope="module")
def member(coordinator: Served) -> Silo:
    return coordinator.enrol(coordinator.federation(**PLAN), "aster")


@pytest.fixture(scope="module")
def bodies(coordinator: Served, member: Silo) -> list[StoredBody]:
    return store_bank(coordinator.database, member.federation_id)


def path(member: Silo, *place: object) -> str:
    return "/".join([f"/v1/federations/{member.federation_id}/experts", *map(str, place)])


def shown(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_bank_shows_its_experts_rounds_and_reasons(
    coordinator: Served, member: Silo, bodies: list[StoredBody]
) -> None:
    bank = shown(coordinator.admin.get(path(member)))
    assert shown(member.http.get(path(member))) == bank
    assert [(expert["expert"], expert["status"]) for expert in bank["experts"]] == [
        (1, "active"),
        (2, "merged"),
        (3, "active"),
        (4, "archived"),
        (5, "active"),
    ]
    first, second = bank["experts"][:2]
    newest = bodies[-1].revision
    assert (first["revision"], first["digest"], first["bytes"]) == (6, newest.digest, newest.bytes)
    assert (second["revision"], second["digest"], second["bytes"]) == (0, None, 0)
    assert (second["merged_into"], second["ended"], second["prior"]) == (1, 5, 0.0)
    assert bank["rounds"][0] == {
        "round": 6,
        "members": 15,
        "users": {"1": 8, "3": 3, "4": 0, "5": 4},
        "rejects": 0,
    }
    assert [
        (event["change"], event["round"], event["expert"], event["peer"]) for event in bank["events"]
    ] == [
        ("pruned", 6, 4, None),
        ("born", 5, 5, 0),
        ("merged", 5, 2, 1),
    ]
    assert bank["events"][1]["reason"].startswith("5 of 15 members fit no expert")
    assert bank["events"][1]["numbers"]["rejects"] == 5


def test_rounds_of_a_bank_come_in_pages(coordinator: Served, member: Silo, bodies: list[StoredBody]) -> None:
    page = shown(coordinator.admin.get(path(member), params={"limit": 2}))
    assert ([r["round"] for r in page["rounds"]], page["next"]) == ([6, 5], "5")
    page = shown(coordinator.admin.get(path(member), params={"limit": 2, "after": page["next"]}))
    assert ([r["round"] for r in page["rounds"]], page["events"], page["next"]) == ([4], [], None)
    assert len(page["experts"]) == 5
    assert slug(coordinator.admin.get(path(member), params={"after": "five"})) == "validation"


def test_a_bank_is_shown_before_its_first_round(coordinator: Served) -> None:
    bank = shown(coordinator.admin.get(f"/v1/federations/{coordinator.federation(**PLAN)}/experts"))
    assert [(expert["expert"], expert["status"]) for expert in bank["experts"]] == [
        (expert, "active") for expert in range(1, 7)
    ]
    assert (bank["rounds"], bank["experts"][0]["utilisation"]) == ([], None)


def test_a_federation_without_a_bank_shows_empty_lists(coordinator: Served) -> None:
    answer = coordinator.admin.get(f"/v1/federations/{coordinator.federation()}/experts")
    assert shown(answer) == {"experts": [], "rounds": [], "events": [], "next": None}
    assert slug(coordinator.admin.get("/v1/federations/fed_none/experts")) == "not-found"


def test_a_revision_is_a_body_of_the_expert(member: Silo, bodies: list[StoredBody]) -> None:
    for stored in bodies[1:]:
        answer = member.http.get(path(member, 1, stored.revision.round_number))
        assert answer.content == stored.body
        assert answer.headers["etag"] == f'"{stored.revision.digest}"'
        assert answer.headers["content-type"] == "application/vnd.tessera.adapter+safetensors"
    with unpack(answer.content, encoding=None, expected=slots(LAYOUT), max_bytes=10_000) as envelope:
        manifest = envelope.manifest(ExpertManifest)
        assert (manifest.federation, manifest.expert, manifest.round) == (member.federation_id, 1, 6)
        np.testing.assert_array_equal(envelope.read("l0.q.B").ravel(), np.arange(12, 20))


def test_revisions_support_ranges_and_if_none_match(member: Silo, bodies: list[StoredBody]) -> None:
    newest, place = bodies[-1], path(member, 1, 6)
    part = member.http.get(place, headers={"Range": "bytes=100-"})
    assert (part.status_code, part.content) == (206, newest.body[100:])
    again = member.http.get(place, headers={"If-None-Match": f'"{newest.revision.digest}"'})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("place", [(1, 7), (2, 6), (9, 6)])
def test_an_unknown_revision_is_not_found(
    member: Silo, bodies: list[StoredBody], place: tuple[int, int]
) -> None:
    assert slug(member.http.get(path(member, *place))) == "not-found"


def test_a_deleted_revision_is_not_found(coordinator: Served, member: Silo, bodies: list[StoredBody]) -> None:
    with coordinator.database.write() as session:
        place = {"federation_id": member.federation_id, "expert": 1, "round_number": 4}
        session.execute(update(ExpertRevisionRow).filter_by(**place).values(payload_id=None))
    assert slug(member.http.get(path(member, 1, 4))) == "not-found"
    assert shown(member.http.get(path(member)))["experts"][0]["revision"] == 6


def test_experts_are_counted_by_state(coordinator: Served, bodies: list[StoredBody]) -> None:
    assert coordinator.counted('tessera_experts{state="archived"}') >= 1
    assert coordinator.counted('tessera_experts{state="active"}') >= 3


def test_changes_of_a_bank_are_events(coordinator: Served, member: Silo, bodies: list[StoredBody]) -> None:
    with coordinator.database.read() as session:
        events = event_log.since(session, member.federation_id, 0, client_id=member.client_id)
    changes = [event.data for event in events if event.kind == "expert"]
    listed = shown(member.http.get(path(member)))["events"]
    assert sorted(changes, key=str) == sorted(listed, key=str)
    assert len(changes) == 3


def test_changes_of_deleted_rounds_stay_in_the_list(coordinator: Served) -> None:
    federation_id = coordinator.federation(**PLAN)
    store_bank(coordinator.database, federation_id)
    with coordinator.database.write() as session:
        assert event_log.delete_of_rounds(session, federation_id, 6, most=100) > 0
    with coordinator.database.read() as session:
        events = event_log.since(session, federation_id, 0)
    assert [event.data["change"] for event in events if event.kind == "expert"] == ["pruned"]
    bank = shown(coordinator.admin.get(f"/v1/federations/{federation_id}/experts"))
    assert len(bank["events"]) == 3
