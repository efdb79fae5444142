"""Isolation, locks and errors of database sessions."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from coordinator.db import sqlite
from coordinator.db.engine import Database, database_time, unsafe_settings
from coordinator.db.tables.federations import FederationRow, PayloadRow
from coordinator.storage import payloads
from tests.scene.postgres_server import PostgresServer


def test_postgresql_readers_see_a_read_only_snapshot(postgres_database: Database) -> None:
    database = postgres_database
    counted = select(func.count()).select_from(FederationRow)

    def row(name: str) -> FederationRow:
        return FederationRow(id=name, name=name, state="open", plan={}, events=0, created_at=moment)

    with database.read() as session:
        moment = database_time(session)
        assert session.scalar(counted) == 0
        with database.write() as writer:
            writer.add(row("a"))
        assert session.scalar(counted) == 0
    with database.read() as session:
        assert session.scalar(counted) == 1
        session.add(row("b"))
        with pytest.raises(DBAPIError):
            session.flush()
    with database.write() as session:
        session.add(row("b"))
    with database.read() as session:
        assert session.scalar(counted) == 2


def test_read_alone_releases_its_connection_after_errors(database: Database) -> None:
    with database.write() as session:
        payload_id, _ = payloads.store_bytes(session, b"abc")
    for _ in range(50):  # more than the pool has connections
        with pytest.raises(LookupError):
            payloads.read_alone(database, payload_id, 0, 4)
    with database.write() as session:  # nobody reads any more, or SQLite would not commit
        payloads.store_bytes(session, b"def")
    assert payloads.read_alone(database, payload_id, 1, 3) == b"bc"


def test_sqlite_writers_time_out_and_release_their_turn(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MILLISECONDS", 50)
    database = sqlite_database

    def store(body: bytes) -> int:
        with database.write() as session:
            return payloads.store_bytes(session, body)[0]

    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            first, _ = payloads.store_bytes(session, b"first")
            with pytest.raises(OperationalError, match="locked"):
                pool.submit(store, b"second").result()
        with pytest.raises(LookupError), database.write():
            raise LookupError  # who fails gives the turn back too
        second = pool.submit(store, b"second").result()
    assert payloads.read_alone(database, first, 0, 5) == b"first"
    assert payloads.read_alone(database, second, 0, 6) == b"second"


def test_sqlite_readers_pass_between_two_writers(sqlite_database: Database) -> None:
    database, body = sqlite_database, bytes(4 * 2**20)  # more than a writer's cache, so that readers wait
    counted = select(func.count()).select_from(PayloadRow)

    def write() -> None:
        with database.write() as session:
            payloads.stage(session).write(session, body)
            is_writing.set()
            may_end.wait(10)

    def read() -> int:
        with database.autocommit() as connection:
            return connection.execute(counted).scalar_one()

    is_writing, may_end = threading.Event(), threading.Event()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(write)
        is_writing.wait(10)
        reading = pool.submit(read)
        second = pool.submit(write)
        assert wait([reading], timeout=0.2).not_done
        may_end.set()
        assert reading.result(timeout=10) == 1  # what the first has written, before the second has
        first.result()
        second.result()
    assert read() == 2


def test_sqlite_readers_give_up_in_time(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MILLISECONDS", 50)
    with closing(sqlite3.connect(str(sqlite_database.url.database))) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OperationalError, match="locked"), sqlite_database.read() as session:
            session.scalar(select(func.count()).select_from(FederationRow))
        other.rollback()
    with sqlite_database.read() as session:
        assert session.scalar(select(func.count()).select_from(FederationRow)) == 0


def test_a_server_that_may_lose_commits_is_named(postgres: PostgresServer, database: Database) -> None:
    with database.read() as session:
        unsafe = unsafe_settings(session)
    assert unsafe == ([] if database.is_sqlite else ["fsync", "full_page_writes"])  # the tests' own server


@pytest.mark.slow
def test_durable_postgresql_settings_give_no_warning() -> None:
    with PostgresServer(durable=True) as server:
        server.create("safe")
        database = Database(server.url("safe"))
        with database.read() as session:
            assert unsafe_settings(session) == []
        database.close()


def test_database_errors_do_not_contain_parameters(database: Database) -> None:
    secret = b"a vector of a signature"
    with pytest.raises(DBAPIError) as failed, database.write() as session:
        session.execute(
            text("INSERT INTO payload_chunks (payload_id, begin, data) VALUES (-1, 0, :data)"),
            {"data": secret},
        )
    assert "payload_chunks" in str(failed.value)
    assert repr(secret)[2:-1] not in str(failed.value)
