"""The effect of a stored pack on its clients and on other packs, and its counted downloads."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from coordinator.alignment import store
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import PayloadRow
from coordinator.federations.store import federation
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.storage import garbage_collection
from tests.scene.alignment import (
    ANCHORS,
    ERRORS,
    LARGE,
    MODULES,
    PIVOT,
    RANDOM_SET,
    aligned,
    deliver_pack,
    pack_body,
    pack_tensors,
    put_pack,
    refusal,
)
from tests.scene.coordinator import Served
from tests.scene.rounds import join, put, try_join, update_body, upload_headers, url, values, wait_for
from tests.scene.signed_requests import request_bytes, signed


def test_a_newcomer_with_an_empty_selection_may_join(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    pack = put_pack(coordinator.admin, federation_id, PIVOT).json()["digest"]
    assert put_pack(coordinator.admin, federation_id, LARGE, selected=[]).status_code == 201
    silos = [coordinator.enrol(federation_id, name) for name in ("a", "b")]
    coordinator.start_federation(federation_id)
    for silo, base in [(silo, join(silo, 1)) for silo in silos]:
        assert put(silo, 1, update_body(silo, 1, base, values(1.0), pack=pack)).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    newcomer = coordinator.enrol(federation_id, "new", base_model=LARGE)
    joined = try_join(newcomer, 2)
    assert joined.status_code == 200, joined.text
    served = newcomer.http.get(url(newcomer, 2, "/weights"))
    assert len(served.content) == joined.json()["weights"]["bytes"]


def test_a_second_pivot_pack_is_a_conflict(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    fast, slow = (coordinator.enrol(federation_id, name) for name in ("fast", "slow"))
    second = coordinator.enrol(federation_id, "other", base_model=LARGE)
    for silo, base_model in ((fast, PIVOT), (second, LARGE)):
        assert put_pack(silo.http, federation_id, base_model).status_code == 201
    made_by_itself = pack_body(federation_id, PIVOT, alignment_set="sha256:" + "6" * 64)
    assert refusal(deliver_pack(slow.http, federation_id, PIVOT, made_by_itself)) == (409, "upload-conflict")


@pytest.mark.parametrize("error", [0.5, 0.6])
def test_modules_above_max_error_are_not_shared(coordinator: Served, error: float) -> None:
    federation_id = aligned(coordinator, alignment={"pivot": PIVOT, "max_error": 0.5})
    errors = {"b0.q": ERRORS | {"b_task": error}, "b0.v": ERRORS | {"b_task": 0.4}}
    bad = pack_body(federation_id, PIVOT, selected=["b0.v", "b0.q"], errors=errors)
    assert refusal(deliver_pack(coordinator.admin, federation_id, PIVOT, bad)) == (422, "metadata")
    good = pack_body(federation_id, PIVOT, selected=["b0.v"], errors=errors)
    assert deliver_pack(coordinator.admin, federation_id, PIVOT, good).status_code == 201


def test_random_frames_are_not_judged_by_their_errors(coordinator: Served) -> None:
    federation_id = aligned(coordinator, alignment={"pivot": PIVOT, "frames": "random", "max_error": 0.1})
    content = pack_body(
        federation_id, PIVOT, pack_tensors(PIVOT, responses=False), selected=MODULES, alignment_set=RANDOM_SET
    )
    assert deliver_pack(coordinator.admin, federation_id, PIVOT, content).status_code == 201


def test_random_frames_need_no_responses_or_errors(coordinator: Served) -> None:
    federation_id = aligned(coordinator, frames="random")
    sent = pack_tensors(PIVOT, responses=False)
    content = pack_body(federation_id, PIVOT, sent, errors={}, selected=MODULES)
    assert refusal(deliver_pack(coordinator.admin, federation_id, PIVOT, content)) == (422, "metadata")
    content = pack_body(federation_id, PIVOT, sent, errors={}, selected=MODULES, alignment_set=RANDOM_SET)
    assert deliver_pack(coordinator.admin, federation_id, PIVOT, content).status_code == 201


def test_packs_and_anchors_are_counted_as_traffic(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    silo = coordinator.enrol(federation_id, "a")
    coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS)
    before = coordinator.counted("tessera_bytes_up_total"), coordinator.counted("tessera_bytes_down_total")
    content = pack_body(federation_id, PIVOT)
    assert deliver_pack(silo.http, federation_id, PIVOT, content).status_code == 201
    assert deliver_pack(silo.http, federation_id, PIVOT, content).status_code == 200
    anchors = silo.http.get(f"/v1/federations/{federation_id}/anchors").content
    pack = silo.http.get(f"/v1/federations/{federation_id}/alignments/{PIVOT}").content
    coordinator.admin.get(f"/v1/federations/{federation_id}/anchors")
    down = len(anchors) + len(pack)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{silo.client_id}").json()
    assert shown["bytes"] == {"up": len(content), "down": down}
    after = coordinator.counted("tessera_bytes_up_total"), coordinator.counted("tessera_bytes_down_total")
    assert after == (before[0] + len(content), before[1] + down)


def test_replaced_packs_stay_readable_for_open_downloads(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    assert put_pack(coordinator.admin, federation_id, PIVOT).status_code == 201
    database = coordinator.database
    with database.write() as session:
        rows = store.anchors(session, federation_id), store.pack(session, federation_id, PIVOT)
        before = [row.payload_id for row in rows if row is not None]
        long_ago = database_time(session) - timedelta(days=9)
        session.execute(update(PayloadRow).where(PayloadRow.id.in_(before)).values(created_at=long_ago))
    assert put_pack(coordinator.admin, federation_id, PIVOT, selected=["b0.v"]).status_code == 201
    garbage_collection.collect(database)
    with database.read() as session:
        remaining = session.scalars(select(PayloadRow.id).where(PayloadRow.id.in_(before))).all()
    assert sorted(remaining) == sorted(before)


def test_weights_of_an_ended_round_survive_the_finish(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    assert put_pack(coordinator.admin, federation_id, PIVOT).status_code == 201
    silo = coordinator.enrol(federation_id, "a")
    coordinator.start_federation(federation_id)
    joined = try_join(silo, 1).json()
    before = silo.http.get(url(silo, 1, "/weights"))
    assert put_pack(coordinator.admin, federation_id, PIVOT, selected=["b0.v"]).status_code == 201
    again = try_join(silo, 2).json()
    assert again["weights"]["digest"] != joined["weights"]["digest"]
    coordinator.admin.post(f"/v1/federations/{federation_id}/finish")
    assert silo.http.get(url(silo, 1, "/weights")).content == before.content
    brief = silo.http.get(f"/v1/federations/{federation_id}/rounds/current").json()
    assert brief["state"] == "finished"
    assert brief["weights"] == again["weights"]
    final = silo.http.get(url(silo, brief["round"], "/weights"))
    assert len(final.content) == brief["weights"]["bytes"]


def test_weights_of_a_replaced_pack_are_not_found(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    pack = put_pack(coordinator.admin, federation_id, PIVOT).json()["digest"]
    silos = [coordinator.enrol(federation_id, name) for name in ("a", "b")]
    coordinator.start_federation(federation_id)
    for silo, base in [(silo, join(silo, 1)) for silo in silos]:
        assert put(silo, 1, update_body(silo, 1, base, values(1.0), pack=pack)).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    join(silos[0], 2)
    coordinator.admin.post(f"/v1/federations/{federation_id}/pause")
    with coordinator.database.write() as session:
        row = rounds.get_round(session, federation_id, 2, lock=True)
        transitions.abandon(session, federation(session, federation_id), row, "deadline-passed")
    assert put_pack(coordinator.admin, federation_id, PIVOT, selected=["b0.v"]).status_code == 201
    # The weights of round 1 are stored, and are not those from which the client started round 2.
    assert silos[0].http.get(url(silos[0], 2, "/weights")).status_code == 404
    assert silos[0].http.get(url(silos[0], 1, "/weights")).status_code == 200


def test_a_conflicting_pack_is_refused_before_its_body(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    silo = coordinator.enrol(federation_id, "a")
    assert put_pack(silo.http, federation_id, PIVOT).status_code == 201
    path = f"/v1/federations/{federation_id}/alignments/{PIVOT}"
    second = pack_body(federation_id, PIVOT, selected=["b0.v"])
    request = signed(coordinator, silo, "PUT", path, second, **upload_headers(second))
    with coordinator.line() as line:
        line.sendall(request_bytes(request, body=b""))
        assert line.recv(2**16).startswith(b"HTTP/1.1 409 ")
