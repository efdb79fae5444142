"""`tessera serve` and `migrate` name the reason and the remedy when they cannot start."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from coordinator.db import migrate as migrations
from coordinator.db.engine import Database
from coordinator.db.failures import explain, explain_file, explain_sqlite
from coordinator.db.single_process import only_replica
from coordinator.errors import SettingsUnusable
from coordinator.http.listen_address import require_free
from coordinator.server import migrate, serve
from tests.scene.postgres_server import PostgresServer


def _refusal_of_migrate(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    monkeypatch.setenv("TESSERA_DATABASE_URL", url)
    monkeypatch.setenv("TESSERA_DATABASE_WAIT_SECONDS", "0")
    with pytest.raises(SettingsUnusable) as refused:
        migrate()
    return str(refused.value)


def test_port_in_use_leaves_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESSERA_DATABASE_URL", f"sqlite:///{tmp_path / 'tessera.db'}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsUnusable, match=rf"another program listens on 127.0.0.1:{port}; stop it"):
            serve(host="127.0.0.1", port=port)
    assert not list(tmp_path.iterdir())
    assert "token" not in capsys.readouterr().out


def test_foreign_and_unknown_hosts_are_named() -> None:
    with pytest.raises(SettingsUnusable, match=r"203\.0\.113\.5 is not an address of this machine"):
        require_free("203.0.113.5", 0)
    with pytest.raises(SettingsUnusable, match=r"nosuch\.invalid is not a name or address"):
        require_free("nosuch.invalid", 0)
    require_free("127.0.0.1", 0)


def test_tables_of_another_program_are_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cookies.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE cookies (name)")
    message = _refusal_of_migrate(monkeypatch, f"sqlite:///{file}")
    assert "is the database of another program (tables: cookies); name a new file" in message
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("cookies",)]


def test_database_of_another_version_is_named(
    fresh_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_database("sqlite")
    database = Database(url)
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert "another version of Tessera; install" in migrations.outdated(database)
    with pytest.raises(SettingsUnusable, match=r"another version of Tessera, to 9999; this version"):
        migrations.prepare(database)
    database.close()
    assert "restore a backup from before its migration" in _refusal_of_migrate(monkeypatch, url)


def test_folder_as_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is a folder; name a file in it" in _refusal_of_migrate(monkeypatch, f"sqlite:///{tmp_path}")
    database = Database(f"sqlite:///{tmp_path}")
    with pytest.raises(SettingsUnusable, match="is a folder; name a file"), only_replica(database):
        pass


def test_file_of_another_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("no database\n" * 99)
    message = _refusal_of_migrate(monkeypatch, f"sqlite:///{tmp_path / 'notes.txt'}")
    assert "is a file of another program, and no SQLite database; name another file" in message


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://tessera.db", "three slashes before its path"),
        ("postgresql://ada@host:abc/x", "is not a database URL"),
    ],
)
def test_migrate_explains_a_wrong_database_url(
    monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    assert reason in _refusal_of_migrate(monkeypatch, url)


def test_full_disk_asks_for_space(tmp_path: Path) -> None:
    error = _sqlite_error(tmp_path)
    assert error.sqlite_errorcode == sqlite3.SQLITE_FULL
    message = explain_sqlite(error, tmp_path / "tessera.db")
    assert message == f"the disk of {tmp_path} is full; free space there, or name a file on another disk"
    full = OSError(28, os.strerror(28), str(tmp_path / "key"))
    assert "No space left on device; free space on the disk of" in explain_file(full)


def _sqlite_error(folder: Path) -> sqlite3.OperationalError:
    """Return SQLite's error of a file that may not grow further."""
    connection = sqlite3.connect(folder / "small.db")
    connection.execute("CREATE TABLE texts (text)")
    connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(sqlite3.OperationalError) as full:
        connection.execute("INSERT INTO texts VALUES (zeroblob(100000))")
    connection.close()
    return full.value


_FAILED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("message", "explanation"),
    [
        ('FATAL:  password authentication failed for user "ada"', "the password of user ada is wrong"),
        ("fe_sendauth: no password supplied", "set TESSERA_DATABASE_PASSWORD"),
        ('FATAL:  database "clinics" does not exist', "the server has no database clinics; create it"),
        ('FATAL:  role "ada" does not exist', "the server has no user ada; create the user"),
        ("FATAL:  sorry, too many clients already", "no free connection; raise its max_connections"),
        ("Connection refused\n\tIs the server running", "no PostgreSQL listens on db:5432; start it"),
        ('FATAL:  no pg_hba.conf entry for host "x", user "ada"', "add a line to its pg_hba.conf"),
        ("FATAL:  the database system is starting up", "TESSERA_DATABASE_WAIT_SECONDS"),
        ("something with hunter2", "something with ***; check the server"),
    ],
)
def test_error_of_postgresql_has_its_remedy(message: str, explanation: str) -> None:
    error = OperationalError(None, None, psycopg.OperationalError(_FAILED + message))
    text = explain(error, make_url("postgresql+psycopg://ada:hunter2@db/clinics"))
    assert explanation in text
    assert "hunter2" not in text


def test_refusals_of_a_real_server_are_explained(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = _refusal_of_migrate(monkeypatch, postgres.url("no_such_database"))
    assert "the server has no database no_such_database; create it, or correct the URL" in missing
    stranger = postgres.url("postgres").replace("postgres@", "nobody@")
    assert "the server has no user nobody" in _refusal_of_migrate(monkeypatch, stranger)
    closed = _refusal_of_migrate(monkeypatch, "postgresql://ada@127.0.0.1:1/x")
    assert "no PostgreSQL listens on 127.0.0.1:1; start it" in closed
