"""Hand a federation's events to all who follow it in this process, from one look at the database.

A look asks for all federations and all callers at once: what is quiet costs a row of the answer. Whoever
begins to follow, or fell behind what is remembered here, catches up with looks of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

import anyio
from anyio import to_thread
from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError

from coordinator.auth.authentication import Member, Person
from coordinator.auth.revalidation import Credential, credential_of, still_valid
from coordinator.db.engine import Database
from coordinator.errors import TooManyStreams
from coordinator.observability.logs import logger
from coordinator.storage import event_log
from coordinator.storage.event_log import Event

MOST_OF_A_CALLER = 4
"""How many streams a client, or a person's token, may follow at once in one process."""

LOOK_SECONDS = 0.5
PAGE = 100

_RETRY_SECONDS = 5.0
_REMEMBERED = 500

log = logger(__name__)


@dataclass(eq=False, slots=True)
class Follower:
    """One stream: `is_over` once its caller is not let in any more, or the service stops."""

    federation_id: str
    caller: Person | Member
    number: int
    is_over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def client_id(self) -> str | None:
        """The client that follows; None is a person."""
        return self.caller.client_id if isinstance(self.caller, Member) else None


@dataclass(slots=True)
class _Feed:
    """All events of a federation after `start` and up to `end`."""

    start: int
    end: int
    recent: deque[Event] = field(default_factory=deque)

    def extend(self, news: Sequence[Event]) -> None:
        self.recent.extend(news)
        self.end = news[-1].number
        while len(self.recent) > _REMEMBERED:
            self.start = self.recent.popleft().number


class Streams:
    """Who follows in this process; all of it belongs to the event loop that runs `run`."""

    def __init__(self, database: Database, stopping: threading.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._followers: set[Follower] = set()
        self._held: Counter[str] = Counter()
        self._feeds: dict[str, _Feed] = {}
        self.looks = 0
        """How often the database was asked for all of them."""

    def begin(self, federation_id: str, caller: Person | Member, number: int) -> Follower:
        """Begin to follow after an event; `end` must be called.

        Raises:
            TooManyStreams: the caller follows as many as it may.
        """
        if self._held[_name(caller)] >= MOST_OF_A_CALLER:
            raise TooManyStreams(_RETRY_SECONDS, f"{MOST_OF_A_CALLER} streams at once")
        follower = Follower(federation_id, caller, number, is_over=self._stopping.is_set())
        self._held[_name(caller)] += 1
        self._followers.add(follower)
        return follower

    def end(self, follower: Follower) -> None:
        """Follow no longer."""
        self._followers.discard(follower)
        self._held[_name(follower.caller)] -= 1
        if not self._held[_name(follower.caller)]:
            del self._held[_name(follower.caller)]

    def recent(self, follower: Follower) -> list[Event] | None:
        """Return what a follower has not seen; None if more happened since than is remembered."""
        feed = self._feeds.get(follower.federation_id)
        if feed is None:
            return []
        if feed.start > follower.number:
            return None
        unseen = [*dropwhile(lambda event: event.number <= follower.number, feed.recent)]
        follower.number = max(follower.number, feed.end)
        shown = [event for event in unseen if event.is_for(follower.client_id)]
        return shown if follower.client_id is None else [event_log.for_clients(event) for event in shown]

    async def catch_up(self, follower: Follower) -> list[Event]:
        """Return the next page of what a follower has not seen, from the database."""
        page, number = await to_thread.run_sync(_page, self._database, follower)
        follower.number = number
        return page

    async def run(self) -> None:
        """Look for events until the service stops; then nobody follows."""
        while not self._stopping.is_set():
            await anyio.sleep(LOOK_SECONDS)
            if self._followers:
                await self._look()
            else:
                self._feeds.clear()
        for follower in self._followers:
            follower.is_over = True
            follower.news.set()

    async def _look(self) -> None:
        followers = [*self._followers]
        fids = {follower.federation_id for follower in followers}
        self._feeds = {fid: feed for fid, feed in self._feeds.items() if fid in fids}
        ends = {fid: feed.end for fid, feed in self._feeds.items()}
        members = {credential_of(f.caller) for f in followers if isinstance(f.caller, Member)}
        people = {credential_of(f.caller) for f in followers if isinstance(f.caller, Person)}
        self.looks += 1
        try:
            news, numbers, valid = await to_thread.run_sync(_ask, self._database, fids, ends, members, people)
        except SQLAlchemyError as error:  # a database's bad moment: they follow on
            log.warning("looking-for-events-failed", error=type(error).__name__)
            return
        except Exception:  # ending here would leave every stream of this process silent for good
            log.exception("looking-for-events-failed")
            return
        for fid, number in numbers.items():
            feed = self._feeds.setdefault(fid, _Feed(number, number))
            if fid in news:
                feed.extend(news[fid])
        for follower in followers:
            follower.is_over = credential_of(follower.caller) not in valid
            followed = self._feeds.get(follower.federation_id)
            if follower.is_over or (followed is not None and followed.end > follower.number):
                follower.news.set()


def streams_of(request: Request) -> Streams:
    """Return the streams of this process."""
    streams: Streams = request.app.state.streams
    return streams


def _name(caller: Person | Member) -> str:
    return credential_of(caller)[0]


def _page(database: Database, follower: Follower) -> tuple[list[Event], int]:
    """Return a page of events, and the number up to which the follower has seen all after it."""
    with database.read() as session:
        number = event_log.last(session, follower.federation_id)
        page = event_log.since(
            session, follower.federation_id, follower.number, seen_by=follower.client_id, limit=PAGE
        )
        is_last = len(page) < PAGE
        return page, max(number, follower.number) if is_last else page[-1].number


def _ask(
    database: Database,
    fids: set[str],
    ends: dict[str, int],
    members: set[Credential],
    people: set[Credential],
) -> tuple[dict[str, list[Event]], dict[str, int], set[Credential]]:
    """Return what happened after `ends`, the last numbers, and which callers count still."""
    with database.read() as session:
        numbers = event_log.numbers(session, fids)
        news = {
            fid: page
            for fid, end in ends.items()
            if numbers.get(fid, end) > end and (page := event_log.since(session, fid, end, limit=PAGE))
        }
        return news, numbers, still_valid(session, members, people)
