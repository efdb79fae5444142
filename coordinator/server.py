"""Run the service in this process: check that it can start, print its address, stop gracefully."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_settings import SettingsError
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, OperationalError

from coordinator.app import create_app
from coordinator.auth.oidc import require_issuer
from coordinator.db import backup as copies
from coordinator.db import migrate as migrations
from coordinator.db.engine import Database, unsafe_settings
from coordinator.db.failures import explain, explain_file, explain_sqlite
from coordinator.db.single_process import only_replica
from coordinator.enrolment import first_admin
from coordinator.errors import SettingsUnusable
from coordinator.http.limits.connections import connections
from coordinator.http.listen_address import require_free
from coordinator.observability import fault_points, logs
from coordinator.settings import PREFIX, SECRETS_DIR, Settings, suggestions, unread, variable_names
from coordinator.storage import object_store, server_key
from schemas.identity.plain_http import is_exposed
from schemas.messages.faults import faults_of
from schemas.private_files import close_umask, tighten
from schemas.trackers.options import TrackerMissing

_GRACE_SECONDS = 10
# Longer than the five seconds of clients: the server must not close a connection as a request is sent.
_KEEP_ALIVE_SECONDS = 20
_RETRY_SECONDS = 1
_OTHER_FILES = 500
_ENDINGS = ("", "-wal", "-shm", "-journal", "-serving", "-signing-key")
_MALLOC_ARENAS = -8  # M_ARENA_MAX of malloc.h

log = logs.logger(__name__)


def serve(*, host: str | None = None, port: int | None = None) -> None:
    """Serve until stopped.

    Raises:
        SettingsUnusable: the settings or the database do not allow it.
    """
    # Before any file is created, since the database and the key hold secrets.
    close_umask()
    settings = load_settings(host=host, port=port)
    logs.configure(settings.log_level, settings.log_format)
    fault_points.arm()
    _warn_of_unread()
    for hint in listening_hints(settings):
        log.warning("listens-on", detail=hint)
    require_issuer(settings)
    if settings.payload_store:
        object_store.require_url(settings.payload_store)
    require_free(settings.host, settings.port)  # before a database is created
    with opened_database(settings) as database, only_replica(database):
        migrations.prepare(database)
        _restrict_files(database)
        with database.read() as session:
            unsafe = unsafe_settings(session)
        if unsafe:
            log.warning("database-may-lose-commits", off=unsafe)
        server_key.load(database, settings.signing_key)
        file = first_admin.make_token(database) if settings.admin_token is None else None
    if file is not None:
        print(f"The first admin's token is in {file}: keep it elsewhere and delete the file", flush=True)
    # Before the first thread starts: each would get a heap of its own.
    _limit_heaps()
    _raise_file_limit(settings.connections)
    server = Server(create_app(settings), settings)
    # After the application is built: its objects live as long as the process.
    _freeze_objects()
    try:
        server.run()
    except SystemExit as error:
        at = f"{settings.host}:{settings.port}"
        raise SettingsUnusable(f"cannot listen on {at}; see the log, or set TESSERA_PORT") from error


def _warn_of_unread() -> None:
    """Log the variables that no setting reads, each with the nearest one that is read."""
    if misspelt := unread(variable_names()):
        log.warning("unknown-variables", names=misspelt, did_you_mean=suggestions(misspelt))


def listening_hints(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each consequence of the host that a client would only report as refused."""
    if settings.host == "::":
        yield "IPv6 only: set TESSERA_HOST=0.0.0.0 for clients with IPv4 addresses"
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    if is_exposed(f"http://{address}") and not settings.trusted_proxies:
        yield (
            "plain HTTP on a network: agents of other machines refuse it; put a proxy with TLS in front and "
            "set TESSERA_TRUSTED_PROXIES, or set insecure = true in their silo.toml in a trusted network"
        )


def _freeze_objects() -> None:
    """Exclude existing objects from garbage collection, during which all requests wait."""
    gc.collect()
    gc.freeze()


def _limit_heaps() -> None:
    """Limit glibc to two heaps for all threads: one per thread would retain the memory of bodies."""
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
        if set_option is not None:
            set_option(_MALLOC_ARENAS, 2)


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of open files to one per connection and those of the database."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            log.warning("few-open-files", allowed=allowed, needed=needed)


def migrate() -> None:
    """Migrate the database to this version.

    Raises:
        SettingsUnusable: the database cannot be used.
    """
    close_umask()
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    _warn_of_unread()
    with opened_database(settings) as database:
        migrations.upgrade(database)
        _restrict_files(database)


def backup(target: Path, *, progress: Callable[[int, int], None]) -> None:
    """Copy the database to a new file; `progress` is called with the copied and total pages.

    Raises:
        SettingsUnusable: it cannot be copied.
    """
    close_umask()
    with closing(Database(load_settings().database_url)) as database:
        copies.copy(database, target, progress=progress)


def load_settings(**overrides: Any) -> Settings:
    """Read the environment and the secret files; `overrides` come from the command line.

    Raises:
        SettingsUnusable: a variable has an unusable value; the message names the variable without the
            value.
    """
    folder = os.environ.get(SECRETS_DIR)
    if folder and not Path(folder).is_dir():
        raise SettingsUnusable(
            f"{SECRETS_DIR}: there is no folder {folder}; create it or correct the variable"
        )
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
        _require_trackers(settings)
        return settings
    except SettingsError as error:
        raise SettingsUnusable(
            f"{SECRETS_DIR}: user {os.geteuid()} cannot read it ({error.__cause__ or error}); change its mode"
        ) from error
    except ValidationError as error:
        faults = faults_of(error.errors(include_input=False, include_url=False), Settings)
        raise SettingsUnusable("; ".join(f"{_variable(path)}: {text}" for path, text in faults)) from None


def _require_trackers(settings: Settings) -> None:
    try:
        settings.trackers.require_installed()
    except (ValueError, TrackerMissing) as error:
        raise SettingsUnusable(f"{PREFIX}REPORT_TO: {error}") from None


class Server(uvicorn.Server):
    """A uvicorn server that prints its address, and ends event streams when it stops."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=connections(settings.upload_bytes_per_second, settings.connections),
                ws="none",
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=settings.trusted_proxies,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self._app = app

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"Tessera listens on {self.url}", flush=True)

    @property
    def url(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: requests finish, streams end; a second interrupt forces it."""
        self._app.state.stopping.set()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


@contextmanager
def opened_database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    try:
        if not database.is_sqlite:
            _wait_for_database(database, settings.database_wait_seconds)
        yield database
    except DatabaseError as error:
        shown = database.url.render_as_string()
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {shown}: {explain(error, database.url)}") from error
    except sqlite3.Error as error:  # of migrations, which use the driver too
        file = Path(database.url.database or "")
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {explain_sqlite(error, file)}") from error
    except OSError as error:  # of the files beside the database
        raise SettingsUnusable(explain_file(error)) from error
    finally:
        database.close()


def _restrict_files(database: Database) -> None:
    """Deny other users access to an SQLite database's files; its folder may be shared."""
    if database.is_sqlite and database.url.database:
        closed = tighten(Path(f"{database.url.database}{ending}") for ending in _ENDINGS)
        if closed:
            log.warning("files-were-open-to-others", closed=[str(path) for path in closed])


def _wait_for_database(database: Database, seconds: float) -> None:
    """Wait for a database that is starting, or short of connections for a moment.

    Raises:
        OperationalError: it did not answer in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with database.read() as session:
                session.execute(text("SELECT 1"))
            return
        except OperationalError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("database-does-not-answer", reason=explain(error, database.url))
        time.sleep(_RETRY_SECONDS)


def _variable(path: str) -> str:
    return f"{PREFIX}{path.replace('.', '_').upper()}"
