"""Payloads move between rows and a store despite kills; unused objects are swept."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from benchmarks.s3_server import S3Server
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.db.tables.federations import ChunkRow, PayloadRow
from coordinator.errors import SettingsUnusable, Unavailable
from coordinator.storage import garbage_collection, object_store, payload_moves, payloads, server_key
from tests.scene.database import row_count

pytest.importorskip("obstore")

BODIES = [os.urandom(2 * 2**20 + 77), os.urandom(9 * 2**20 + 1), b"small"]
LONG_AGO = timedelta(seconds=-5)
KEY = SecretStr(base64.urlsafe_b64encode(bytes(32)).decode().rstrip("="))


def store_bodies(database: Database) -> list[int]:
    server_key.load(database, KEY)
    with database.write() as session:
        return [payloads.store_bytes(session, body)[0] for body in BODIES]


def move_payloads(database: Database, to: str, smallest: int = payload_moves.SMALLEST) -> list[int]:
    return list(payload_moves.move(database, to, smallest=smallest))


def places(database: Database) -> list[str | None]:
    with database.read() as session:
        return list(session.scalars(select(PayloadRow.place).order_by(PayloadRow.id)))


def objects(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*-*") if file.is_file()]


def assert_all_is_read(database: Database, ids: list[int]) -> None:
    for payload_id, body in zip(ids, BODIES, strict=True):
        assert b"".join(payloads.stream(database, payload_id, 0, len(body))) == body
        with database.read() as session:
            assert payloads.read(session, payload_id, 3, len(body)) == body[3:]
            with pytest.raises(LookupError):
                payloads.read(session, payload_id, 0, len(body) + 1)
        target = bytearray(len(body) - 2)
        with database.driver_connection() as driver:
            payloads.read_into(driver, payload_id, 1, memoryview(target))
        assert target == body[1:-1]


def test_large_payloads_move_to_a_store_and_back(database: Database, tmp_path: Path) -> None:
    ids, store = store_bodies(database), f"file://{tmp_path / 'store'}"
    before = row_count(database, ChunkRow)
    assert move_payloads(database, store) == [len(body) for body in BODIES[:2]]
    assert move_payloads(database, store) == []
    assert_all_is_read(database, ids)
    assert row_count(database, ChunkRow) == 1
    assert [place is None for place in places(database)] == [False, False, True]
    assert not list(payload_moves.missing(database))
    second = f"file://{tmp_path / 'second'}"
    assert len(move_payloads(database, second)) == 2
    assert_all_is_read(database, ids)
    assert len(move_payloads(database, payload_moves.ROWS, 0)) == 2
    assert places(database) == [None] * 3
    assert row_count(database, ChunkRow) == before
    assert_all_is_read(database, ids)
    for place in (store, second):
        assert payload_moves.sweep(database, place) == 0  # young objects may belong to a running move
        assert payload_moves.sweep(database, place, unused=LONG_AGO) == 2
    assert not objects(tmp_path)


def test_moved_bytes_are_not_stored_again(database: Database, tmp_path: Path) -> None:
    ids = store_bodies(database)
    move_payloads(database, f"file://{tmp_path}")
    assert store_bodies(database) == ids
    assert row_count(database, ChunkRow) == 1


def test_a_sweep_deletes_objects_without_a_payload(database: Database, tmp_path: Path) -> None:
    ids, store = store_bodies(database), f"file://{tmp_path}"
    move_payloads(database, store)
    object_store.put(f"{payload_moves.home(database, store)}/9-abandoned", [b"never committed"])
    (tmp_path / "of-another").write_bytes(b"another database's")
    assert payload_moves.sweep(database, store, unused=LONG_AGO) == 1
    assert_all_is_read(database, ids)
    while garbage_collection.collect(database, grace=LONG_AGO):
        pass
    assert payload_moves.sweep(database, store, unused=LONG_AGO) == 2
    assert [file.name for file in objects(tmp_path)] == ["of-another"]


def test_missing_and_changed_objects_are_named(database: Database, tmp_path: Path) -> None:
    ids, store = store_bodies(database), f"file://{tmp_path}"
    move_payloads(database, store)
    first, second = sorted(objects(tmp_path), key=lambda file: file.stat().st_size)
    first.unlink()
    second.write_bytes(bytes(len(BODIES[1])))
    (fault,) = payload_moves.missing(database)
    assert fault.startswith(f"payload {ids[0]}: ")
    with database.read() as session, pytest.raises(LookupError, match="has no such object"):
        payloads.read(session, ids[0], 0, 9)
    with pytest.raises(LookupError, match="has no such object"):
        move_payloads(database, payload_moves.ROWS, 0)
    with database.write() as session:
        session.execute(update(PayloadRow).where(PayloadRow.id == ids[0]).values(place=None))
    with pytest.raises(LookupError, match=f"payload {ids[1]} at .* does not have its digest"):
        move_payloads(database, payload_moves.ROWS, 0)
    assert places(database)[1] is not None


def test_unavailable_stores_are_reported(database: Database, tmp_path: Path) -> None:
    store_bodies(database)
    with pytest.raises(SettingsUnusable, match="write s3://BUCKET/PREFIX"):
        payload_moves.require(database, "ftp://example.org/payloads")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(Unavailable, match="does not answer"):
        payload_moves.require(database, f"file://{tmp_path / 'file'}")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["payload-put", "payload-moved"])
def test_moves_survive_kills_before_the_commit(tmp_path: Path, place: str) -> None:
    url = f"sqlite:///{tmp_path / 'tessera.db'}"
    store = f"file://{tmp_path / 'store'}"
    with closing(Database(url)) as database:
        migrate.upgrade(database)
        ids = store_bodies(database)
        code = (
            "from coordinator.observability import fault_points; fault_points.arm()\n"
            "from coordinator.cli.service import move_payloads; import sys; move_payloads(sys.argv[1])"
        )
        environment = {**os.environ, "TESSERA_DATABASE_URL": url, "TESSERA_CRASH": f"{place}:2"}
        killed = subprocess.run([sys.executable, "-c", code, store], env=environment, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert [at is None for at in places(database)] == [False, True, True]
        assert_all_is_read(database, ids)
        assert len(objects(tmp_path / "store")) == 2
        del environment["TESSERA_CRASH"]
        subprocess.run([sys.executable, "-c", code, store], env=environment, check=True)
        assert_all_is_read(database, ids)
        assert payload_moves.sweep(database, store, unused=LONG_AGO) == 1
        assert_all_is_read(database, ids)


@pytest.mark.s3
@pytest.mark.slow
def test_payloads_move_to_s3_in_parts_and_back(database: Database, s3: S3Server) -> None:
    ids, bucket = store_bodies(database), s3.bucket
    payload_moves.require(database, bucket)
    assert len(move_payloads(database, bucket)) == 2
    assert_all_is_read(database, ids)
    place, size = str(places(database)[0]), len(BODIES[0])
    for begin, end in ((size - 1, size + 9), (size + 1, size + 9)):
        with pytest.raises(LookupError, match="has no bytes"):
            object_store.read(place, begin, end)
    object_store.put(f"{payload_moves.home(database, bucket)}/9-abandoned", [b"never committed"])
    assert payload_moves.sweep(database, bucket, unused=timedelta(days=-1)) == 1
    assert len(move_payloads(database, payload_moves.ROWS, 0)) == 2
    assert_all_is_read(database, ids)
    assert payload_moves.sweep(database, bucket, unused=timedelta(days=-1)) == 2
    with pytest.raises(Unavailable, match="does not answer"):
        payload_moves.require(database, "s3://no-such-bucket/tessera")
