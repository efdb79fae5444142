from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.alignment import AnchorsRow
from coordinator.db.tables.federations import ChunkRow, PayloadRow, WeightsRow
from coordinator.errors import Unavailable
from coordinator.http.downloads import StoredBody
from coordinator.storage import garbage_collection, payloads
from coordinator.storage.payloads import StagedPayload
from coordinator.weights.store import assign
from schemas.wire.digests import digest_of
from tests.scene.database import row_count
from tests.unit.coordinator.rows import client_row, federation_row

BODY = os.urandom(2 * 2**20 + 77)
LONG_AGO = timedelta(seconds=-5)


def test_any_range_of_a_payload_is_readable(database: Database) -> None:
    with database.write() as session:
        payload_id, digest = payloads.store_bytes(session, BODY)
    assert digest == digest_of(BODY)

    @given(edges=st.tuples(st.integers(0, len(BODY)), st.integers(0, len(BODY))))
    @settings(max_examples=40, deadline=None)
    def check(edges: tuple[int, int]) -> None:
        begin, end = sorted(edges)
        with database.read() as session:
            assert payloads.read(session, payload_id, begin, end) == BODY[begin:end]

    check()
    assert b"".join(payloads.stream(database, payload_id, 3, len(BODY))) == BODY[3:]
    with database.read() as session, pytest.raises(LookupError):
        payloads.read(session, payload_id, 5, len(BODY) + 1)


def test_ids_of_collected_payloads_are_not_reused(database: Database) -> None:
    def keep(body: bytes) -> int:
        with database.write() as session:
            return payloads.store_bytes(session, body)[0]

    collected: list[int] = []
    for number in range(3):
        collected.append(keep(b"another %d" % number))
        assert garbage_collection.collect(database, grace=LONG_AGO) == 1
        payloads.discard(database, [staged_id := staged(database, b"never finished", 100)])
        collected.append(staged_id.payload_id)
    assert collected == sorted(set(collected))


def test_equal_bytes_are_stored_once(database: Database) -> None:
    def keep(_: int) -> int:
        with database.write() as session:
            return payloads.store(session, digest_of(BODY), len(BODY), payloads.pieces(io.BytesIO(BODY)))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(keep, range(4)))) == 1
    assert row_count(database, PayloadRow) == 1
    assert row_count(database, ChunkRow) == 9


def staged(database: Database, body: bytes, step: int) -> StagedPayload:
    with database.write() as session:
        payload_id = payloads.stage(session)
    for at in range(0, len(body), step):
        with database.write() as session:
            payload_id.append(session, body[at : at + step])
    return payload_id


def test_a_staged_payload_is_adopted_under_its_digest(database: Database) -> None:
    staged_payload = staged(database, BODY, 700_001)
    with database.write() as session:
        payload_id = staged_payload.adopt(session)
    with database.read() as session:
        assert payloads.read(session, payload_id, 0, len(BODY)) == BODY
        assert session.scalars(select(PayloadRow.digest)).one() == digest_of(BODY)


def test_a_collected_staged_payload_is_unavailable(database: Database) -> None:
    payload_id = staged(database, BODY, 2**20)
    assert garbage_collection.collect(database, grace=LONG_AGO) == 1  # as when the clock is set on by hours
    with pytest.raises(Unavailable, match="clock"), database.write() as session:
        payload_id.append(session, BODY)
    with pytest.raises(Unavailable, match="clock"), database.write() as session:
        payload_id.adopt(session)
    assert row_count(database, PayloadRow) == row_count(database, ChunkRow) == 0


def test_an_equal_payload_replaces_a_staged_one(database: Database) -> None:
    first, second = staged(database, BODY, 2**20), staged(database, BODY, 2**19)
    with database.write() as session:
        assert first.adopt(session) == second.adopt(session)
    assert row_count(database, PayloadRow) == 1
    assert row_count(database, ChunkRow) == 9


def test_adopt_all_reuses_equal_payloads(
    database: Database,
) -> None:
    older = staged(database, BODY, 2**20)
    with database.write() as session:
        assert payloads.adopt_all(session, [older]) == {older.payload_id: older.payload_id}
    new, same = staged(database, b"new", 2), staged(database, BODY, 2**19)
    with database.write() as session:
        adopted = payloads.adopt_all(session, [new, same, new])
    assert adopted == {new.payload_id: new.payload_id, same.payload_id: older.payload_id}
    first, two, third = (staged(database, body, 2) for body in (b"twin", b"twin", b"other"))
    with database.write() as session:
        adopted = payloads.adopt_all(session, [first, two, third])
    assert adopted == {first.payload_id: first.payload_id, two.payload_id: first.payload_id} | {
        third.payload_id: third.payload_id
    }
    with database.read() as session:
        digests = sorted(session.scalars(select(PayloadRow.digest)))
        assert digests == sorted(map(digest_of, [BODY, b"new", b"twin", b"other"]))
        assert payloads.read(session, third.payload_id, 0, 5) == b"other"


def test_old_unreferenced_payloads_are_collected(database: Database) -> None:
    with database.write() as session:
        referenced, digest = payloads.store_bytes(session, b"kept")
        payloads.store_bytes(session, b"orphan")
        session.add(federation_row("f", database_time(session)))
        session.flush()
        session.add(AnchorsRow(federation_id="f", payload_id=referenced, digest=digest, bytes=4, count=1))
    staged(database, BODY, 2**20)
    assert garbage_collection.collect(database) == 0
    assert garbage_collection.collect(database, grace=LONG_AGO) == 2
    assert garbage_collection.collect(database, grace=LONG_AGO) == 0
    with database.read() as session:
        assert payloads.read(session, referenced, 0, 4) == b"kept"
    assert row_count(database, ChunkRow) == 1


@pytest.fixture
def shared(database: Database) -> tuple[int, list[bytes]]:
    """Values that two clients share, each behind a head of its own; old enough to be collected."""
    values, heads = os.urandom(1000), [b"first", b"the second"]
    with database.write() as session:
        now = database_time(session)
        session.add(federation_row("f", now))
        session.flush()
        payload_id, digest = payloads.store_bytes(session, heads[0] + values)
        for i, head in enumerate(heads):
            session.add(client_row("f", f"c{i}", now))
            session.flush()
            stored = StoredBody(payload_id, digest, len(head) + 1000, "x", head=head, begin=len(heads[0]))
            assign(session, "f", f"c{i}", 1, stored, now)
    return payload_id, [head + values for head in heads]


def test_payloads_of_shared_weights_are_not_collected(
    database: Database, shared: tuple[int, list[bytes]]
) -> None:
    payload_id, bodies = shared
    with database.write() as session:
        payloads.store_bytes(session, b"orphan")
        session.execute(delete(WeightsRow).where(WeightsRow.client_id == "c0"))
    assert garbage_collection.collect(database, grace=LONG_AGO) == 1
    with database.read() as session:
        row = session.scalars(select(WeightsRow)).one()
        tail = payloads.read(session, payload_id, row.begin, row.begin + 1000)
    assert (row.head or b"") + tail == bodies[1]
    with database.write() as session:
        session.execute(delete(WeightsRow))
    assert garbage_collection.collect(database, grace=LONG_AGO) == 1
    assert row_count(database, ChunkRow) == 0


def test_payloads_stored_during_collection_stay_complete(database: Database) -> None:
    bodies = [os.urandom(100) for _ in range(20)]
    with database.write() as session:
        session.add(federation_row("f", database_time(session)))
        for body in bodies:
            payloads.store_bytes(session, body)

    def refer(body: bytes) -> None:
        with database.write() as session:
            payload_id, digest = payloads.store_bytes(session, body)
            session.merge(
                AnchorsRow(federation_id="f", payload_id=payload_id, digest=digest, bytes=100, count=1)
            )

    with ThreadPoolExecutor(2) as pool:
        collecting = pool.submit(garbage_collection.collect, database, grace=LONG_AGO)
        for body in bodies:
            refer(body)
        collecting.result()
    with database.read() as session:
        row = session.scalars(select(AnchorsRow)).one()
        assert payloads.read(session, row.payload_id, 0, 100) == bodies[-1]
