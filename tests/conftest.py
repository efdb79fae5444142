"""Fixtures of all tests: databases, one fresh per test, and a coordinator on a loopback port."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from benchmarks.s3_server import NoServer, S3Server, s3_server
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.observability import logs
from tests.house.durations import Guard
from tests.house.rotation import SHARDS, shard_of, shard_of_commit
from tests.scene.coordinator import Served, start
from tests.scene.database import ask
from tests.scene.postgres_server import PostgresServer

_numbers = itertools.count()
_MEMORY = Path("/dev/shm")
_ENOUGH_MEMORY = 2**31
_EXAMPLES = 40
"""Of a property; the next run draws others."""
_unused: list[Path] = []  # a coordinator may stop after its database's fixture has ended


hypothesis.settings.register_profile("tests", max_examples=_EXAMPLES, deadline=None)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard",
        default="all",
        choices=("all", "auto", *map(str, range(SHARDS))),
        help="run one part of the selected tests: its number, or auto for the one whose turn it is",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of xdist report to the process that started them
        config.pluginmanager.register(Guard(), "durations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests on PostgreSQL as slow, put the fault schedules last, and keep the requested shard.

    The fast tests check the same on SQLite. A test that is `slow` or `long` by itself stays in its group.
    """
    for item in items:
        spec: Any = getattr(item, "callspec", None)
        runs_on_postgres = spec is not None and spec.params.get("backend") == "postgres"
        runs_on_postgres |= "postgres" in getattr(item, "fixturenames", ())
        if runs_on_postgres and not any(map(item.get_closest_marker, ("long", "system"))):
            item.add_marker(pytest.mark.slow)
    # Schedules replace clocks and threads of their process, which running coordinators need.
    items.sort(key=lambda item: "fault_simulation" in item.path.parts)
    shard = config.getoption("shard")
    if shard != "all":
        turn = shard_of_commit() if shard == "auto" else int(shard)
        others = [item for item in items if shard_of(item.nodeid) != turn]
        items[:] = [item for item in items if shard_of(item.nodeid) == turn]
        config.hook.pytest_deselected(items=others)


def pytest_report_header(config: pytest.Config) -> str | None:
    shard = config.getoption("shard")
    if shard == "all":
        return None
    turn = shard_of_commit() if shard == "auto" else int(shard)
    return f"shard {turn} of 0 to {SHARDS - 1}; repeat it with SHARD={turn}, run all with SHARD=all"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how long CI has taken so far; pytest's own last line stays the last."""
    began = os.environ.get("TESSERA_CI_BEGAN")
    if began is not None:
        minutes, seconds = divmod(int(time.time() - float(began)), 60)
        terminalreporter.write_line(f"CI has taken {minutes} min {seconds} s of 20 min")


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    """Configure the service's logging for pytest's capture."""
    logs.configure("info", "json")
    logging.getLogger("httpx").setLevel("WARNING")  # the coordinator logs the same requests


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this test run, with a migrated database to copy."""
    with PostgresServer() as server:
        server.create("tessera_template")
        _migrate(server.url("tessera_template"))
        yield server


@pytest.fixture(scope="session")
def databases() -> Iterator[Path]:
    """A folder for SQLite files: in memory where there is enough, since every commit waits for the disk."""
    is_roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH_MEMORY
    with tempfile.TemporaryDirectory(prefix="tessera-tests-", dir=_MEMORY if is_roomy else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def sqlite_template(databases: Path) -> Path:
    """A migrated SQLite file to copy."""
    path = databases / "template.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def fresh_database(request: pytest.FixtureRequest, databases: Path) -> Callable[[str], str]:
    """Return a function that creates a migrated database of a backend and returns its URL."""

    def make(backend: str) -> str:
        if backend == "sqlite":
            template: Path = request.getfixturevalue("sqlite_template")
            folder = databases / str(next(_numbers))
            folder.mkdir()
            copy = folder / "tessera.db"
            shutil.copy(template, copy)
            return f"sqlite:///{copy}"
        server: PostgresServer = request.getfixturevalue("postgres")
        name = f"tessera_{next(_numbers)}"
        server.create(name, template="tessera_template")
        return server.url(name)

    return make


@pytest.fixture
def fresh_postgres(postgres: PostgresServer, fresh_database: Callable[[str], str]) -> Callable[[], str]:
    """Return a function that creates a migrated PostgreSQL database; tests that use it are slow."""
    return lambda: fresh_database("postgres")


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """The kind of database; a test that uses this fixture runs on both kinds."""
    return str(request.param)


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest, backend: str, fresh_database: Callable[[str], str]
) -> Iterator[str]:
    """A migrated database for one test."""
    while _unused:
        shutil.rmtree(_unused.pop())
    url = fresh_database(backend)
    server: PostgresServer | None = request.getfixturevalue("postgres") if backend == "postgres" else None
    yield url
    if server is not None:
        server.drop(url.rpartition("/")[2])
    else:
        _unused.append(Path(url.removeprefix("sqlite:///")).parent)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The opened database of `database_url`."""
    with closing(Database(database_url)) as opened:
        yield opened


@pytest.fixture
def sqlite_database(fresh_database: Callable[[str], str]) -> Iterator[Database]:
    """A migrated SQLite database, opened."""
    with closing(Database(fresh_database("sqlite"))) as opened:
        yield opened


@pytest.fixture
def postgres_database(fresh_postgres: Callable[[], str]) -> Iterator[Database]:
    """A migrated PostgreSQL database, opened."""
    with closing(Database(fresh_postgres())) as opened:
        yield opened


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> str:
    """A PostgreSQL database without any table."""
    name = f"empty_{next(_numbers)}"
    postgres.create(name)
    return postgres.url(name)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of S3 with one bucket; its variables are those of this process."""
    pytest.importorskip("obstore")
    try:
        with s3_server(tmp_path) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            yield server
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start a coordinator: `serve(database_url, lease_seconds=1.0)`; it stops with the test."""
    with ExitStack() as stack:

        def begin(database_url: str, **settings: Any) -> Served:
            served = start(database_url, **settings)
            stack.callback(served.stop)
            return served

        yield begin


@pytest.fixture(scope="session")
def coordinator(backend: str, fresh_database: Callable[[str], str]) -> Iterator[Served]:
    """One coordinator for all tests without special settings; each creates its own federations.

    Everything is five times as fast as by default, polling included.
    """
    served = start(fresh_database(backend), tick_seconds=0.2, retry_seconds=0.1, polls_per_second=20)
    yield served
    served.stop()


@pytest.fixture(autouse=True)
def _finish_federations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Finish the federations that a test leaves open: a coordinator checks all open rounds at every tick."""
    if "coordinator" not in request.fixturenames:
        yield
        return
    served: Served = request.getfixturevalue("coordinator")
    before = served.with_open_rounds()  # those of fixtures that serve more tests
    yield
    for federation_id in served.with_open_rounds() - before:
        served.admin.post(f"/v1/federations/{federation_id}/finish")


def _migrate(url: str) -> None:
    with closing(Database(url)) as database:
        migrate.upgrade(database)


@pytest.fixture
def rows() -> Callable[[str, str], list[tuple[Any, ...]]]:
    """Read rows of a database past the service: `rows(url, "SELECT ...")`."""
    return ask
