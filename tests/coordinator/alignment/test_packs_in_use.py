"""What a stored pack changes for its clients and for other packs, and what its downloads count."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from coordinator.alignment import store
from coordinator.db.engine import Database, now
from coordinator.db.tables.federations import PayloadRow
from coordinator.storage import garbage_collection
from tests.coordinator.alignment.test_alignment import (
    ANCHORS,
    ERRORS,
    MODULES,
    OTHER,
    PIVOT,
    RANDOM_SET,
    aligned,
    body,
    deliver,
    refused,
    tensors,
)
from tests.hostile.scene import request_bytes
from tests.served import Served
from tests.signed import signed
from tests.taking_part import join, put, try_join, update_body, upload_headers, url, values, wait_for


def test_a_newcomer_whose_pack_selects_nothing_joins_with_nothing(coordinator: Served) -> None:
    fid = aligned(coordinator)
    pack = deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT)).json()["digest"]
    assert deliver(coordinator.admin, fid, OTHER, body(fid, OTHER, selected=[])).status_code == 201
    silos = [coordinator.enrol(fid, name) for name in ("a", "b")]
    coordinator.admin.post(f"/v1/federations/{fid}/start")
    for silo, base in [(silo, join(silo, 1)) for silo in silos]:
        assert put(silo, 1, update_body(silo, 1, base, values(1.0), pack=pack)).status_code == 201
    wait_for(coordinator, fid, 1, "published")
    newcomer = coordinator.enrol(fid, "new", base_model=OTHER)
    joined = try_join(newcomer, 2)
    assert joined.status_code == 200, joined.text
    served = newcomer.http.get(url(newcomer, 2, "/weights"))
    assert len(served.content) == joined.json()["weights"]["bytes"]


def test_a_slower_agent_hears_of_the_pivots_pack_though_others_were_made_on_it(coordinator: Served) -> None:
    fid = aligned(coordinator)
    fast, slow = (coordinator.enrol(fid, name) for name in ("fast", "slow"))
    other = coordinator.enrol(fid, "other", base_model=OTHER)
    for silo, base_model in ((fast, PIVOT), (other, OTHER)):
        assert deliver(silo.http, fid, base_model, body(fid, base_model)).status_code == 201
    made_by_itself = body(fid, PIVOT, alignment_set="sha256:" + "6" * 64)
    assert refused(deliver(slow.http, fid, PIVOT, made_by_itself)) == (409, "upload-conflict")


@pytest.mark.parametrize("error", [0.5, 0.6])
def test_what_is_aligned_too_badly_is_not_shared(coordinator: Served, error: float) -> None:
    fid = aligned(coordinator, alignment={"pivot": PIVOT, "max_error": 0.5})
    errors = {"b0.q": ERRORS | {"b_task": error}, "b0.v": ERRORS | {"b_task": 0.4}}
    bad = body(fid, PIVOT, selected=["b0.v", "b0.q"], errors=errors)
    assert refused(deliver(coordinator.admin, fid, PIVOT, bad)) == (422, "metadata")
    good = body(fid, PIVOT, selected=["b0.v"], errors=errors)
    assert deliver(coordinator.admin, fid, PIVOT, good).status_code == 201


def test_random_frames_are_not_judged_by_their_errors(coordinator: Served) -> None:
    fid = aligned(coordinator, alignment={"pivot": PIVOT, "frames": "random", "max_error": 0.1})
    content = body(fid, PIVOT, tensors(PIVOT, responses=False), selected=MODULES, alignment_set=RANDOM_SET)
    assert deliver(coordinator.admin, fid, PIVOT, content).status_code == 201


def test_random_frames_need_neither_responses_nor_errors(coordinator: Served) -> None:
    fid = aligned(coordinator, frames="random")
    made = tensors(PIVOT, responses=False)
    content = body(fid, PIVOT, made, errors={}, selected=MODULES)
    assert refused(deliver(coordinator.admin, fid, PIVOT, content)) == (422, "metadata")
    content = body(fid, PIVOT, made, errors={}, selected=MODULES, alignment_set=RANDOM_SET)
    assert deliver(coordinator.admin, fid, PIVOT, content).status_code == 201


def test_packs_and_anchors_are_counted_as_traffic(coordinator: Served) -> None:
    fid = aligned(coordinator)
    silo = coordinator.enrol(fid, "a")
    coordinator.admin.put(f"/v1/federations/{fid}/anchors", json=ANCHORS)
    before = coordinator.counted("tessera_bytes_up_total"), coordinator.counted("tessera_bytes_down_total")
    content = body(fid, PIVOT)
    assert deliver(silo.http, fid, PIVOT, content).status_code == 201
    assert deliver(silo.http, fid, PIVOT, content).status_code == 200
    anchors = silo.http.get(f"/v1/federations/{fid}/anchors").content
    pack = silo.http.get(f"/v1/federations/{fid}/alignments/{PIVOT}").content
    coordinator.admin.get(f"/v1/federations/{fid}/anchors")
    down = len(anchors) + len(pack)
    shown = coordinator.admin.get(f"/v1/federations/{fid}/clients/{silo.client_id}").json()
    assert shown["bytes"] == {"up": len(content), "down": down}
    after = coordinator.counted("tessera_bytes_up_total"), coordinator.counted("tessera_bytes_down_total")
    assert after == (before[0] + len(content), before[1] + down)


def test_who_reads_what_is_replaced_may_finish(coordinator: Served) -> None:
    fid = aligned(coordinator)
    assert deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    database = Database(coordinator.database_url)
    with database.write() as session:
        rows = store.anchors(session, fid), store.pack(session, fid, PIVOT)
        before = [row.payload_id for row in rows if row is not None]
        long_ago = now(session) - timedelta(days=9)
        session.execute(update(PayloadRow).where(PayloadRow.id.in_(before)).values(created_at=long_ago))
    assert deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT, selected=["b0.v"])).status_code == 201
    garbage_collection.collect(database)
    with database.read() as session:
        kept = session.scalars(select(PayloadRow.id).where(PayloadRow.id.in_(before))).all()
    database.close()
    assert sorted(kept) == sorted(before)


def test_a_pack_that_cannot_be_kept_is_refused_before_it_is_sent(coordinator: Served) -> None:
    fid = aligned(coordinator)
    silo = coordinator.enrol(fid, "a")
    assert deliver(silo.http, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    path = f"/v1/federations/{fid}/alignments/{PIVOT}"
    other = body(fid, PIVOT, selected=["b0.v"])
    request = signed(coordinator, silo, "PUT", path, other, **upload_headers(other))
    place = coordinator.admin.base_url
    with socket.create_connection((place.host, place.port), timeout=5) as line:
        line.sendall(request_bytes(request, body=b""))
        assert line.recv(2**16).startswith(b"HTTP/1.1 409 ")
