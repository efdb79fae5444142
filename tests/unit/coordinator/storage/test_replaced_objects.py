"""Objects that were replaced in the store are not read as the moved payload."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select

from benchmarks.s3_server import S3Server
from coordinator.cli.service import check_payloads
from coordinator.db.engine import Database
from coordinator.db.tables.federations import PayloadRow
from coordinator.storage import object_store, payload_moves, payloads, server_key
from coordinator.storage.object_store import BLOCK_BYTES, PIECE_BYTES
from tests.unit.coordinator.storage.copies import KEY

pytest.importorskip("obstore")

BODY = os.urandom(2 * BLOCK_BYTES + 3 * PIECE_BYTES + 77)
CHANGED = BLOCK_BYTES + PIECE_BYTES + 5
"""The byte that is replaced: in the second block, and in its second piece."""


def store_and_move_body(database: Database, store: str) -> int:
    server_key.load(database, KEY)
    with database.write() as session:
        payload_id, _ = payloads.store_bytes(session, BODY)
    assert list(payload_moves.move(database, store)) == [len(BODY)]
    return payload_id


def place_of(database: Database) -> str:
    with database.read() as session:
        return str(session.scalars(select(PayloadRow.place)).one())


def digests_of(database: Database) -> bytes | None:
    with database.read() as session:
        return session.scalars(select(PayloadRow.piece_digests)).one()


def changed_body() -> bytes:
    return BODY[:CHANGED] + bytes([BODY[CHANGED] ^ 1]) + BODY[CHANGED + 1 :]


def replace_file(database: Database) -> None:
    Path(urlsplit(place_of(database)).path).write_bytes(changed_body())


def read_range(database: Database, payload_id: int, begin: int, end: int) -> bytes:
    target = bytearray(end - begin)
    with database.driver_connection() as driver:
        payloads.read_into(driver, payload_id, begin, memoryview(target))
    return bytes(target)


RANGES = [
    (0, 1),
    (0, len(BODY)),
    (PIECE_BYTES - 1, PIECE_BYTES + 1),
    (BLOCK_BYTES - 3, 2 * BLOCK_BYTES + 9),
    (len(BODY) - 1, len(BODY)),
    (7, 7),
]


def assert_is_read(database: Database, payload_id: int) -> None:
    for begin, end in RANGES:
        assert read_range(database, payload_id, begin, end) == BODY[begin:end]
        assert payloads.read_alone(database, payload_id, begin, end) == BODY[begin:end]
    assert b"".join(payloads.stream(database, payload_id, 0, len(BODY))) == BODY


def assert_is_refused(database: Database, payload_id: int) -> None:
    for begin, end in ((0, len(BODY)), (CHANGED, CHANGED + 1), (CHANGED - 3, CHANGED - 1)):
        with pytest.raises(LookupError, match=rf"{place_of(database)} is not what was moved there"):
            read_range(database, payload_id, begin, end)
        with pytest.raises(LookupError, match="is not what was moved there"):
            payloads.read_alone(database, payload_id, begin, end)
    with pytest.raises(LookupError, match="is not what was moved there"):
        list(payloads.stream(database, payload_id, 0, len(BODY)))


def test_a_replaced_object_is_refused_by_all_readers(database: Database, tmp_path: Path) -> None:
    payload_id = store_and_move_body(database, f"file://{tmp_path}")
    replace_file(database)
    assert_is_refused(database, payload_id)


def test_ranges_of_an_object_are_those_moved(database: Database, tmp_path: Path) -> None:
    payload_id = store_and_move_body(database, f"file://{tmp_path}")
    assert digests_of(database) == object_store.piece_digests(BODY)
    assert_is_read(database, payload_id)


def test_pieces_outside_a_replaced_one_are_readable(database: Database, tmp_path: Path) -> None:
    payload_id = store_and_move_body(database, f"file://{tmp_path}")
    replace_file(database)
    assert read_range(database, payload_id, 0, BLOCK_BYTES) == BODY[:BLOCK_BYTES]


def test_payloads_moved_back_have_no_piece_digests(database: Database, tmp_path: Path) -> None:
    payload_id = store_and_move_body(database, f"file://{tmp_path}")
    assert len(list(payload_moves.move(database, payload_moves.ROWS))) == 1
    assert digests_of(database) is None
    assert_is_read(database, payload_id)


def test_a_check_of_digests_names_the_replaced_object(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    payload_id = store_and_move_body(database, f"file://{tmp_path}")
    monkeypatch.setenv("TESSERA_DATABASE_URL", database.url.render_as_string(hide_password=False))
    check_payloads(digests=True)
    assert capsys.readouterr().out == "no payload is missing or replaced in the store\n"
    replace_file(database)
    check_payloads(digests=False)
    assert capsys.readouterr().out == "no payload is missing in the store\n"
    with pytest.raises(BaseException, match="1"):
        check_payloads(digests=True)
    assert capsys.readouterr().out == (
        f"payload {payload_id}: {place_of(database)} does not have its digest; restore a backup\n"
    )


@pytest.mark.s3
@pytest.mark.slow
def test_a_replaced_object_in_s3_is_refused(database: Database, s3: S3Server) -> None:
    payload_id = store_and_move_body(database, s3.bucket)
    assert_is_read(database, payload_id)
    object_store._block.cache_clear()
    object_store.put(place_of(database), [changed_body()])
    assert_is_refused(database, payload_id)
    (fault,) = payload_moves.missing(database, digests=True)
    assert "does not have its digest" in fault
