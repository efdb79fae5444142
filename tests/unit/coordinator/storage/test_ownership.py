"""Two databases with one key, such as a restored copy: neither deletes in a store that both have used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from benchmarks.s3_server import S3Server
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import PayloadStoreRow
from coordinator.storage import object_store, payload_moves, server_key
from coordinator.storage.ownership import Ownership
from tests.scene.threads import run_at_once
from tests.unit.coordinator.storage.copies import (
    ANY_AGE,
    KEY,
    Restore,
    assert_refused,
    expire,
    store_and_move,
)

pytest.importorskip("obstore")

REPLICAS = 4


def objects(folder: Path) -> set[str]:
    return {file.name for home in folder.iterdir() if home.is_dir() for file in home.iterdir()}


def test_a_restored_copy_deletes_nothing_in_a_store(
    database: Database, tmp_path: Path, restore: Restore
) -> None:
    store = f"file://{tmp_path}"
    store_and_move(database, store)
    copy = restore(database)
    expire(database)
    store_and_move(database, store, 2)  # the copy has no rows of these
    before = objects(tmp_path)
    assert_refused(copy, database, store=store)
    assert objects(tmp_path) == before
    assert not list(payload_moves.missing(database))
    assert len(list(payload_moves.move(copy, payload_moves.ROWS, smallest=0))) == 1


def test_a_dispute_stops_a_copy_that_renewed_first(
    database: Database, tmp_path: Path, restore: Restore
) -> None:
    store = f"file://{tmp_path}"
    store_and_move(database, store, 2)
    copy = restore(database)
    expire(copy)
    payload_moves.ownership(copy, store).renew()
    assert_refused(database, copy, store=store)
    assert len(objects(tmp_path)) == 2


def test_taking_over_allows_moves_and_deletions_again(
    database: Database, tmp_path: Path, restore: Restore
) -> None:
    store = f"file://{tmp_path}"
    store_and_move(database, store)
    copy = restore(database)
    expire(database)
    store_and_move(database, store, 2)
    assert_refused(copy, store=store)
    payload_moves.ownership(copy, store).take_over()
    assert len(list(payload_moves.move(copy, store))) == 1
    assert payload_moves.sweep(copy, store) == 0
    assert len(objects(tmp_path)) == 4
    assert payload_moves.sweep(copy, store, unused=ANY_AGE) == 2
    assert not list(payload_moves.missing(copy))
    assert_refused(database, copy, store=store)  # the first is still in use: that is a new dispute


def test_a_copy_without_an_ownership_row_disputes_it(
    database: Database, tmp_path: Path, restore: Restore
) -> None:
    store = f"file://{tmp_path}"
    server_key.load(database, KEY)
    copy = restore(database)
    store_and_move(database, store)
    assert_refused(copy, database, store=store)


def test_an_unclaimed_store_is_claimed_before_a_sweep(database: Database, tmp_path: Path) -> None:
    store, hours = f"file://{tmp_path}", timedelta(hours=1)
    store_and_move(database, store)
    (marker,) = tmp_path.glob("*.owner")
    marker.unlink()
    object_store.put(f"{payload_moves.home(database, store)}/9-abandoned", [b"of a killed coordinator"])
    (abandoned,) = tmp_path.rglob("9-abandoned")
    os.utime(abandoned, (0, 0))
    assert payload_moves.sweep(database, store, unused=2 * hours) == 0
    assert marker.exists()
    with database.write() as session:
        session.execute(update(PayloadStoreRow).values(owned_since=database_time(session) - 3 * hours))
    assert payload_moves.sweep(database, store, unused=2 * hours) == 1
    assert not list(payload_moves.missing(database))


def test_deleting_missing_objects_is_no_error(database: Database, tmp_path: Path) -> None:
    base = f"file://{tmp_path}/swept"
    for name in "ac":
        object_store.put(f"{base}/{name}", [b"an orphan"])
    object_store.delete([f"{base}/{name}" for name in "abc"])
    assert not list((tmp_path / "swept").iterdir())


def test_replicas_replace_the_token_together(database: Database, tmp_path: Path) -> None:
    store, tokens = f"file://{tmp_path}", set()
    server_key.load(database, KEY)
    base = payload_moves.home(database, store)
    start = threading.Barrier(REPLICAS, timeout=60)

    def replica() -> None:
        with closing(Database(database.url)) as connection:
            owner = Ownership(connection, base)
            for _ in range(5):
                if start.wait() == 0 and tokens:
                    expire(database)
                start.wait()
                owner.renew()
                tokens.add(object_store.small(f"{base}.owner"))

    assert not run_at_once(dict.fromkeys(range(REPLICAS), replica), barrier=start)
    assert len(tokens) >= 5
    assert not list(tmp_path.glob("*.disputed"))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["owner-written", "owner-put"])
def test_ownership_survives_kills_during_renewal(database: Database, tmp_path: Path, place: str) -> None:
    store = f"file://{tmp_path}"
    store_and_move(database, store)
    program = (
        "import sys; from coordinator.observability import fault_points; fault_points.arm()\n"
        "from coordinator.db.engine import Database; from coordinator.storage import payload_moves\n"
        "payload_moves.ownership(Database(sys.argv[1]), sys.argv[2]).renew()"
    )
    url = database.url.render_as_string(hide_password=False)
    for _ in range(2):
        expire(database)
        killed = subprocess.run(
            [sys.executable, "-c", program, url, store],
            env=os.environ | {"TESSERA_CRASH": f"{place}:1"},
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
    assert payload_moves.sweep(database, store, unused=ANY_AGE) == 0
    expire(database)
    store_and_move(database, store)
    assert not list(tmp_path.glob("*.disputed"))


@pytest.mark.s3
@pytest.mark.slow
def test_a_restored_copy_deletes_nothing_in_s3(database: Database, s3: S3Server, restore: Restore) -> None:
    store_and_move(database, s3.bucket)
    copy = restore(database)
    expire(database)
    store_and_move(database, s3.bucket, 2)
    assert_refused(copy, database, store=s3.bucket)
    assert not list(payload_moves.missing(database))
    payload_moves.ownership(database, s3.bucket).take_over()
    assert len(list(payload_moves.move(database, s3.bucket))) == 1
    assert payload_moves.sweep(database, s3.bucket, unused=ANY_AGE) == 0
    assert_refused(copy, store=s3.bucket)
