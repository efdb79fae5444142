"""Copy an SQLite database while it is in use; PostgreSQL has pg_dump."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from coordinator.db.engine import Database
from coordinator.db.failures import explain_file, explain_sqlite
from coordinator.errors import SettingsUnusable

_PAGES = 4096  # 64 MiB per step and progress report
_BUSY_SECONDS = 60.0


def copy(database: Database, target: Path, *, progress: Callable[[int, int], None]) -> None:
    """Write one consistent state of the database to a new file, and sync it to disk.

    Writers wait meanwhile; after 10 to 30 seconds they get a 503. `progress` is called with the copied and
    total pages.

    Raises:
        SettingsUnusable: the database is not SQLite, does not exist or is damaged, or the file exists.
    """
    if not database.is_sqlite:
        raise SettingsUnusable(
            "TESSERA_DATABASE_URL is a PostgreSQL database; back it up with pg_dump --format custom"
        )
    source = Path(database.url.database or "")
    if not source.is_file():
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: no such file: {source}; check the path")
    # Written under another name first: an interrupted copy must not pass for a backup.
    partial = target.with_name(f"{target.name}.partial")
    if target.exists():
        raise SettingsUnusable(f"{target} exists; write the backup to a new file")
    try:
        _copy(source, partial, progress)
        os.link(partial, target)  # unlike a rename it replaces nothing
    except OSError as error:
        raise SettingsUnusable(explain_file(error, target)) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise SettingsUnusable(f"the copy is not complete: {explain_sqlite(error, target)}") from error
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {explain_sqlite(error, source)}") from error
    finally:
        partial.unlink(missing_ok=True)
    _sync(target.parent)


def _copy(source: Path, partial: Path, progress: Callable[[int, int], None]) -> None:
    partial.unlink(missing_ok=True)
    # Created with its mode, since the copy contains what the database does.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    uri = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as origin,
        closing(sqlite3.connect(partial)) as copied,
    ):
        # One read transaction around all steps: otherwise each commit would restart the copy.
        origin.isolation_level = None
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
        origin.backup(
            copied, pages=_PAGES, progress=lambda _, remaining, total: progress(total - remaining, total)
        )
        origin.execute("ROLLBACK")
        # Otherwise a damaged copy would be noticed only when it is needed.
        fault = _fault(copied)
    if fault != "ok":
        raise SettingsUnusable(
            f"{source} is damaged, and so is its copy ({fault}); restore an earlier backup"
        )
    _sync(partial)


def _fault(connection: sqlite3.Connection) -> str:
    try:
        return str(connection.execute("PRAGMA quick_check").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
