"""Backups: a coordinator restored from one continues with its clients, rounds and weights."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.db.backup import copy
from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from tests.scene.agent_processes import tessera
from tests.scene.coordinator import Served
from tests.scene.postgres_server import PostgresServer
from tests.scene.rounds import deliver, join, one_round, plan, running, show, values, wait_for, weights

Backup = Callable[[str], str]


@pytest.fixture
def back_up_and_restore(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Backup:
    """Back up a database with the documented commands; return the URL of the restored copy."""

    def sqlite(url: str) -> str:
        done = _tessera_backup(url, tmp_path / "backup.db")
        assert done.returncode == 0, done.stderr
        return f"sqlite:///{tmp_path / 'backup.db'}"

    def postgres(url: str) -> str:
        server: PostgresServer = request.getfixturevalue("postgres")
        with tempfile.NamedTemporaryFile(dir="/tmp") as dump:  # where the server's user may read and write
            server.dump(url.rpartition("/")[2], Path(dump.name))
            server.create("restored", template="template0")
            server.restore("restored", Path(dump.name))
        return server.url("restored")

    return sqlite if backend == "sqlite" else postgres


def _tessera_backup(url: str, file: Path) -> subprocess.CompletedProcess[str]:
    return tessera("backup", file, TESSERA_DATABASE_URL=url)


@pytest.mark.slow
def test_rounds_continue_from_a_restored_backup(
    serve: Callable[..., Served], database_url: str, back_up_and_restore: Backup
) -> None:
    first = serve(database_url, tick_seconds=0.05, retry_seconds=0.1)
    federation_id, silos = running(first, **plan(rounds={"total": 3}))
    one_round(first, federation_id, silos, 1, [1.0, 2.0])
    deliver(silos[0], 2, values(7.0))
    restored = back_up_and_restore(database_url)
    before = show(first, federation_id, 2)
    first.stop()

    second = serve(restored, tick_seconds=0.05, retry_seconds=0.1)
    for silo in silos:
        silo.http = second.signing(silo.key)
    after = show(second, federation_id, 2)
    assert {**after, "seconds": None} == {**before, "seconds": None}
    join(silos[1], 2)
    assert weights(silos[1], 2)["b0.q.P"].mean() == pytest.approx(1.5)
    deliver(silos[1], 2, values(9.0))
    wait_for(second, federation_id, 2, "published")
    one_round(second, federation_id, silos, 3, [1.0, 1.0])
    assert weights(silos[0], 4)["b0.q.P"].mean() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_backup_during_deliveries_is_consistent(
    serve: Callable[..., Served], database_url: str, tmp_path: Path
) -> None:
    served = serve(database_url, tick_seconds=0.02, retry_seconds=0.1)
    federation_id, silos = running(served, **plan(rounds={"total": 6}))
    enough = threading.Event()

    def deliver_on() -> None:
        for number in range(1, 7):
            one_round(served, federation_id, silos, number, [1.0, 3.0])
            enough.set()

    delivering = threading.Thread(target=deliver_on)
    delivering.start()
    enough.wait(20)
    for number in range(2):
        done = _tessera_backup(database_url, tmp_path / f"{number}.db")
        assert done.returncode == 0, done.stderr
    delivering.join()
    for number in range(2):
        restored = serve(f"sqlite:///{tmp_path / f'{number}.db'}", tick_seconds=3600.0)
        rounds = restored.admin.get(f"/v1/federations/{federation_id}/rounds").json()["items"]
        assert all(entry["state"] == "published" for entry in rounds[1:])
        counted = [show(restored, federation_id, entry["round"])["counts"] for entry in rounds[1:]]
        assert counted == [{"joined": 2, "arrived": 2, "late": 0, "dropped": 0, "rejected": 0}] * (
            len(rounds) - 1
        )
        restored.stop()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_backup_overwrites_no_file(database_url: str, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    target.write_text("precious")
    done = _tessera_backup(database_url, target)
    assert done.returncode == 1
    assert "write the backup to a new file" in done.stderr
    assert target.read_text() == "precious"


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_damaged_database_is_not_backed_up(database_url: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    content = bytearray(Path(database_url.removeprefix("sqlite:///")).read_bytes())
    content[16384 * 2 : 16384 * 6] = bytes(16384 * 4)
    damaged.write_bytes(content)
    database = Database(f"sqlite:///{damaged}")
    with pytest.raises(SettingsUnusable, match="is damaged"):
        copy(database, tmp_path / "backup.db", progress=lambda done, total: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.db"]
    database.close()


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_the_backup_command_refers_postgresql_to_pg_dump(database_url: str, tmp_path: Path) -> None:
    done = _tessera_backup(database_url, tmp_path / "backup.db")
    assert done.returncode == 1
    assert "pg_dump" in done.stderr
    assert list(tmp_path.iterdir()) == []


_KILLED_WHILE_WRITING = """
import os, signal, sys
from sqlalchemy import text
from coordinator.db.engine import Database
with Database(sys.argv[1]).write() as session:
    session.execute(text("PRAGMA cache_size = 10"))
    session.execute(text("UPDATE federations SET name = 'half written'"))
    session.execute(text("DELETE FROM updates"))
    session.execute(text("INSERT INTO payloads (digest, bytes, created_at) SELECT hex(randomblob(99)), 0,"
        " '2026-01-01 00:00:00' FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 9999) SELECT i FROM n)"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_restoring_over_a_killed_writer_needs_journal_removal(
    serve: Callable[..., Served], database_url: str, tmp_path: Path
) -> None:
    first = serve(database_url, tick_seconds=0.05, retry_seconds=0.1)
    federation_id, silos = running(first, **plan(rounds={"total": 3}))
    one_round(first, federation_id, silos, 1, [1.0, 2.0])
    assert _tessera_backup(database_url, tmp_path / "backup.db").returncode == 0
    one_round(first, federation_id, silos, 2, [1.0, 2.0])
    first.stop()
    killed = subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING, database_url], check=False)
    assert killed.returncode == -9
    file = Path(database_url.removeprefix("sqlite:///"))
    beside = [path for path in file.parent.glob(f"{file.name}-*") if path.stat().st_size]
    assert beside, "nothing was left to be played back"

    shutil.copy(file, tmp_path / "careless.db")
    for path in beside:
        shutil.copy(path, tmp_path / path.name.replace(file.name, "careless.db"))
    shutil.copy(tmp_path / "backup.db", tmp_path / "careless.db")
    assert database_content(tmp_path / "careless.db") != database_content(tmp_path / "backup.db"), (
        "why it has to be removed"
    )

    for path in beside:
        path.unlink()
    shutil.copy(tmp_path / "backup.db", file)
    assert database_content(file) == database_content(tmp_path / "backup.db")
    second = serve(database_url, tick_seconds=0.05, retry_seconds=0.1)
    for silo in silos:
        silo.http = second.signing(silo.key)
    for number in (2, 3):
        one_round(second, federation_id, silos, number, [1.0, 2.0])


def database_content(file: Path) -> list[str]:
    """Return the content of a database, or its error."""
    with closing(sqlite3.connect(file)) as connection:
        try:
            result = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            return [*result, *connection.iterdump()]
        except sqlite3.DatabaseError as error:
            return [str(error)]
