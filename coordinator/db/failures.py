"""Describe why a database, or a file beside it, cannot be used, and what to do about it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

_SPACE = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM)
# SQLite's extended codes have the primary code in their last byte.
_PRIMARY = 0xFF

_FREE = "raise its max_connections, or stop other programs that use it"
_POSTGRESQL: tuple[tuple[str, str, str], ...] = (
    # A part of the message, the reason, and the remedy. Errors of connecting have no SQLSTATE.
    (
        "password authentication failed",
        "the password of user {user} is wrong",
        "correct it in the URL or in TESSERA_DATABASE_PASSWORD",
    ),
    (
        "no password supplied",
        "the server wants a password for user {user}",
        "set TESSERA_DATABASE_PASSWORD, or write the password into the URL",
    ),
    (
        "no pg_hba.conf entry",
        "the server admits no connection of user {user} to {name} from this machine",
        "add a line to its pg_hba.conf and reload it, or set sslmode in the URL",
    ),
    ("too many c", "the server has no free connection", _FREE),
    ("remaining connection slots", "the server has no free connection", _FREE),
    (
        "Connection refused",
        "no PostgreSQL listens on {place}",
        "start it, or correct host and port in the URL",
    ),
    ("No such file or directory", "no PostgreSQL listens on {place}", "start it, or correct the URL"),
    ("failed to resolve host", "the name of the host is unknown", "correct the host in the URL"),
    ("could not translate host", "the name of the host is unknown", "correct the host in the URL"),
    (
        "timeout expired",
        "{place} does not answer within ten seconds",
        "check host, port and firewalls",
    ),
    ("starting up", "the server is starting", "wait, or raise TESSERA_DATABASE_WAIT_SECONDS"),
    ("shutting down", "the server is stopping", "start it again"),
    ("SSL", "the encrypted connection fails: {message}", "correct sslmode and the certificates of the URL"),
    ("certificate", "the encrypted connection fails: {message}", "correct sslrootcert in the URL"),
)
_POSTGRESQL_STATES: dict[str, tuple[str, str]] = {
    "53100": ("the disk of the server is full: {message}", "free space there"),
    "53300": ("the server has no free connection", _FREE),
    "42501": ("user {user} lacks a permission: {message}", "make this user the owner of the database"),
    "42P07": (
        "it has a table of another program under a name that is needed here: {message}",
        "name an empty database in the URL",
    ),
    "25006": ("the server is a standby, which only reads", "name the primary server in the URL"),
    "3D000": ("the server has no database {name}", "create it, or correct the URL"),
    "57014": ("a statement took too long: {message}", "check the load of the server and locks"),
}


def explain(error: DBAPIError, url: URL) -> str:
    """Return why a database cannot be used and the remedy, without the password, in one line."""
    if isinstance(error.orig, sqlite3.Error):
        return explain_sqlite(error.orig, Path(url.database or ""))
    message = " ".join(str(error.orig).split())
    # Drivers may repeat the URL in their messages.
    if url.password:
        message = message.replace(url.password, "***")
    reason, remedy = _postgresql_reason(getattr(error.orig, "sqlstate", None), message)
    place = f"{url.host or 'the local socket'}:{url.port or 5432}"
    return f"{reason}; {remedy}".format(user=url.username, name=url.database, place=place, message=message)


def _postgresql_reason(state: str | None, message: str) -> tuple[str, str]:
    if state in _POSTGRESQL_STATES:
        return _POSTGRESQL_STATES[state]
    if message.endswith("does not exist"):
        if "database " in message:
            return _POSTGRESQL_STATES["3D000"]
        if "role " in message:
            return "the server has no user {user}", "create the user, or correct the URL"
    for part, reason, remedy in _POSTGRESQL:
        if part in message:
            return reason, remedy
    return "{message}", "check the server, and the URL"


def explain_sqlite(error: sqlite3.Error, path: Path) -> str:
    """Return why an SQLite file cannot be used, and the remedy."""
    match getattr(error, "sqlite_errorcode", 0) & _PRIMARY:
        case sqlite3.SQLITE_FULL:
            return f"the disk of {_folder(path)} is full; free space there, or name a file on another disk"
        case sqlite3.SQLITE_CANTOPEN:
            return f"{path} {_unopened(path)}"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return (
                f"user {os.geteuid()} cannot write {path} and new files in {_folder(path)}; change their "
                "owner or mode, or mount the disk for writing"
            )
        case sqlite3.SQLITE_NOTADB:
            return f"{path} is a file of another program, and no SQLite database; name another file"
        case sqlite3.SQLITE_CORRUPT:
            return f"{path} is damaged; restore a backup"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another program has locked {path}; stop it"
        case sqlite3.SQLITE_IOERR:
            return f"{path} cannot be read or written ({error}); check the disk and the kernel's log"
    return f"{path}: {error}; check the file, and the URL"


def _unopened(path: Path) -> str:
    if path.is_dir():
        return f"is a folder; name a file in it, such as sqlite:///{path / 'tessera.db'}"
    if not _folder(path).is_dir():
        return f"is in no folder: there is no folder {_folder(path)}; create it, or correct the path"
    return f"cannot be opened by user {os.geteuid()}; change the owner or mode of the file and of its folder"


def explain_file(error: OSError, path: Path | None = None) -> str:
    """Return why a file cannot be written or read, and the remedy; `path` replaces the error's file."""
    file = path or Path(str(error.filename or ""))
    reason = f"{file}: {error.strerror or error}"
    if error.errno in _SPACE:
        return f"{reason}; free space on the disk of {_folder(file)}, or use a file on another disk"
    if error.errno == errno.EROFS:
        return f"{reason}; mount the disk for writing, or use a file on another disk"
    if error.errno in _DENIED:
        return f"{reason}; change the owner or mode of {_folder(file)} for user {os.geteuid()}"
    return f"{reason}; check the path"


def _folder(path: Path) -> Path:
    return path.absolute().parent
