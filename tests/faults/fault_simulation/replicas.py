"""Logical replicas: the application and the ticker over one database, each with its own memory.

A request is one task, each of the ticker's loops another; one looks for the clients that wait for a round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from coordinator.app import BYTES_PER_COMMIT, UPDATES_PER_COMMIT, create_app
from coordinator.auth.last_seen import LastSeenWriter
from coordinator.auth.nonces import ReadNonces
from coordinator.db.group_commit import GroupCommit
from coordinator.enrolment.failure_delay import FailureDelays
from coordinator.http.limits.body_deadline import BodyDeadline
from coordinator.observability.metrics import Metrics
from coordinator.rounds.long_poll import LongPolls
from coordinator.secure_sum import session_terms
from coordinator.settings import Settings
from coordinator.storage import server_key
from coordinator.workers import Ticker
from schemas.identity.keys import decode
from tests.faults.fault_simulation.scheduler import Flag, Process, Violation
from tests.faults.fault_simulation.storage import replicas_database
from tests.faults.fault_simulation.waits import look_for_waiting
from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY

if TYPE_CHECKING:
    from datetime import datetime

    from coordinator.db.engine import Database
    from tests.faults.fault_simulation.network import Sent
    from tests.faults.fault_simulation.world import World

LEASE_SECONDS = 12.0
TICK_SECONDS = 4.0
RETRY_SECONDS = 8.0
AUTHORITY = "localhost"
_BLOCK_BYTES = 2**20
_CROWDED, _CROWD_SECONDS = 0.25, 4.0  # how often who keeps updates is slow, and for how long at most


@dataclass
class Answer:
    """The application's response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_half(self) -> bool:
        """Whether the response is incomplete, so that a server would close the connection."""
        promised = next((int(value) for name, value in self.headers if name.lower() == b"content-length"), 0)
        return len(self.body) < promised  # nobody here asks with HEAD


@cache
def _application(number: int) -> FastAPI:
    """One application per replica, made once; its state is new with every start."""
    settings = Settings(
        _env_file=None,
        admin_token=ADMIN_TOKEN,
        signing_key=SIGNING_KEY,
        lease_seconds=LEASE_SECONDS,
        tick_seconds=TICK_SECONDS,
        retry_seconds=RETRY_SECONDS,
        failed_enrolments_per_minute=1000,
        polls_per_second=1e6,  # its clock is this machine's
        storage_reserve_mib=0,
    )
    app = create_app(settings)
    # Bodies come whole here, and wait for no event loop: how slow they may be is tested elsewhere.
    app.user_middleware = [layer for layer in app.user_middleware if layer.cls is not BodyDeadline]
    app.state.locks = _OpenLocks()
    return app


class _OpenLocks:
    """Stand-in for the locks of uploads, which never blocks: the database alone must serialise them."""

    @asynccontextmanager
    async def hold(self, _: object) -> AsyncIterator[None]:
        """Resume all waiting tasks at once."""
        yield


class _SeenAtOnce(LastSeenWriter):
    """The product's writer without its task in an event loop: whoever is seen is written by its request."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    def record(self, client_id: str, now: datetime) -> None:
        """Record that a client was seen, and write it."""
        super().record(client_id, now)
        self.flush(self._database)


class _SlowGroupCommit(GroupCommit):
    """The product's group commit with one leader, which is sometimes slow, so that others queue."""

    def __init__(self, world: World, items: str) -> None:
        super().__init__(max_leaders=1, max_batch=UPDATES_PER_COMMIT, max_bytes=BYTES_PER_COMMIT)
        self._world = world
        self._items = items

    def _serve(self, name: Hashable, first: Any, do: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        scheduler = self._world.scheduler
        if scheduler.dice.random() < _CROWDED:
            scheduler.sleep(scheduler.dice.uniform(0.0, _CROWD_SECONDS))
        super()._serve(name, first, partial(self._counted, do))

    def _counted(self, do: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]) -> Sequence[Any]:
        if len(items) > 1:
            self._world.count(f"{self._items} kept together")
        return do(items)


class Replica(Process):
    """One process of the coordinator, from its start to its death."""

    def __init__(self, world: World, number: int, *, life: int = 0) -> None:
        super().__init__(f"replica-{number}.{life}")
        self.number = number
        self.life = life
        self._world = world
        self.database = replicas_database(number)
        self.database.host = world
        self._app = _application(number)
        self._start()

    def _start(self) -> None:
        world, state = self._world, self._app.state
        long_polls = LongPolls(self.database, state.stopping)
        ticker = Ticker(
            self.database,
            lease_seconds=LEASE_SECONDS,
            tick_seconds=TICK_SECONDS,
            block_bytes=_BLOCK_BYTES,
            keep_rounds=world.plan.keep_rounds,
            key=server_key.ServerKey(_seed()),
            metrics=_metrics(self.number),
            moved=long_polls.notify,
        )
        self._collect_soon(ticker)
        for loop in ticker._loops:
            loop._woken = Flag(world.scheduler)
            loop._work = self._watched(loop._work, ticker)
            loop._thread = _Loop(loop._thread.name, loop._run, self, world)
        state.metrics = _metrics(self.number)
        state.database = self.database
        state.long_polls = long_polls
        state.ticker = ticker
        state.last_seen = _SeenAtOnce(self.database)
        state.reads = ReadNonces(lambda: world.scheduler.now)
        state.failure_delays = FailureDelays(lambda: world.scheduler.now)
        state.group_commit = _SlowGroupCommit(world, "updates")
        self.database.small_commits = _SlowGroupCommit(world, "small writes")
        session_terms._RECENT._values.clear()  # a process has it in memory; so none has another's for long
        state.server_key = server_key.ServerKey(_seed())
        # The only replica of a database forgets the leases of its earlier life; one of several must not.
        self.database.is_sqlite = world.plan.replicas == 1
        world.scheduler.spawn(self, ticker.start)
        look_for_waiting(world, self, long_polls)

    def _collect_soon(self, ticker: Ticker) -> None:
        """Collect garbage every few ticks, since a schedule is shorter than the product's ten minutes."""
        scheduler = self._world.scheduler
        is_often = self._world.plan.keep_rounds is not None  # the last rounds follow fast
        if ticker._next_collection > scheduler.now + 100.0 or ticker._next_collection < scheduler.now:
            begin, end = (0.5, 6.0) if is_often else (5.0, 40.0)
            ticker._next_collection = scheduler.now + scheduler.dice.uniform(begin, end)

    def _watched(self, work: Callable[[], bool], ticker: Ticker) -> Callable[[], bool]:
        def watched() -> bool:
            try:
                is_more = work()
                self._collect_soon(ticker)
                return is_more
            except OperationalError:  # the disk is full for a moment
                raise
            except Exception as error:
                self._world.violated("the ticker does not fail", f"{type(error).__name__}: {error}")
                raise

        return watched

    def answer(self, sent: Sent) -> Answer:
        """Answer a request, in this task."""
        answer, body = Answer(), sent.body
        pieces = iter([(body[: len(body) // 2], True), (body[len(body) // 2 :], False)])

        async def receive() -> dict[str, Any]:
            piece, more = next(pieces, (b"", False))
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status, answer.headers = message["status"], list(message["headers"])
            else:
                answer.body += message.get("body", b"")

        running = self._app(_scope(sent, self._app), receive, send)
        try:
            running.send(None)
        except StopIteration:
            return answer
        finally:
            running.close()
        raise Violation("the simulation is whole", "the application waited for something not simulated")


class _Loop:
    """A loop of the ticker as a task."""

    def __init__(self, name: str, run: Callable[[], None], replica: Replica, world: World) -> None:
        self.name = name
        self._run = run
        self._replica = replica
        self._world = world

    def start(self) -> None:
        self._world.scheduler.spawn(self._replica, self._run, is_worker=True)


@cache
def _metrics(_: int) -> Metrics:
    return Metrics()


@cache
def _seed() -> bytes:
    return decode(SIGNING_KEY)


def _scope(sent: Sent, app: FastAPI) -> dict[str, Any]:
    raw_path, _, query = sent.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("ascii"),
        "root_path": "",
        "query_string": query.encode("ascii"),
        "headers": [(name.lower(), value) for name, value in sent.headers.raw],
        "client": ("192.0.2.1", 4000),
        "server": (AUTHORITY, 80),
        "state": {},
        "app": app,
    }
