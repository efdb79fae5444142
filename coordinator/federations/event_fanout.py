"""Distribute the events of all federations to the streams of this process, with one database query per
poll. A new stream, or one behind the remembered events, reads its own pages first.
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

MAX_STREAMS_PER_CALLER = 4
"""Concurrent streams of a client, or of a person's token, in one process."""

POLL_SECONDS = 0.5
PAGE = 100

_RETRY_SECONDS = 5.0
_REMEMBERED = 500

log = logger(__name__)


@dataclass(eq=False, slots=True)
class Follower:
    """One stream; `is_over` once its caller is no longer valid or the service stops."""

    federation_id: str
    caller: Person | Member
    number: int
    is_over: bool = False
    has_events: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def client_id(self) -> str | None:
        """Return the id of the following client; None for a person."""
        return self.caller.client_id if isinstance(self.caller, Member) else None


@dataclass(slots=True)
class _Feed:
    """The events of a federation after `start` and up to `end`."""

    start: int
    end: int
    recent: deque[Event] = field(default_factory=deque)

    def extend(self, events: Sequence[Event]) -> None:
        self.recent.extend(events)
        self.end = events[-1].number
        while len(self.recent) > _REMEMBERED:
            self.start = self.recent.popleft().number


class Streams:
    """The open streams of this process; only the event loop that runs `run` touches them."""

    def __init__(self, database: Database, stopping: threading.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._followers: set[Follower] = set()
        self._open: Counter[str] = Counter()
        self._feeds: dict[str, _Feed] = {}
        self.polls = 0
        """Number of database polls so far."""

    def begin(self, federation_id: str, caller: Person | Member, number: int) -> Follower:
        """Register a stream that starts after event `number`; the caller must call `end`.

        Raises:
            TooManyStreams: the caller has as many streams as allowed.
        """
        if self._open[_caller_id(caller)] >= MAX_STREAMS_PER_CALLER:
            raise TooManyStreams(
                _RETRY_SECONDS, f"{MAX_STREAMS_PER_CALLER} event streams are open; close one, then retry"
            )
        follower = Follower(federation_id, caller, number, is_over=self._stopping.is_set())
        self._open[_caller_id(caller)] += 1
        self._followers.add(follower)
        return follower

    def end(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._open[_caller_id(follower.caller)] -= 1
        if not self._open[_caller_id(follower.caller)]:
            del self._open[_caller_id(follower.caller)]

    def recent(self, follower: Follower) -> list[Event] | None:
        """Return the unseen events of a follower; None if it is behind the remembered events."""
        feed = self._feeds.get(follower.federation_id)
        if feed is None:
            return []
        if feed.start > follower.number:
            return None
        unseen = [*dropwhile(lambda event: event.number <= follower.number, feed.recent)]
        # Events that the follower may not see count as seen.
        follower.number = max(follower.number, feed.end)
        shown = [event for event in unseen if event.is_for(follower.client_id)]
        return shown if follower.client_id is None else [event_log.for_clients(event) for event in shown]

    async def catch_up(self, follower: Follower) -> list[Event]:
        """Return the next page of unseen events from the database."""
        page, number = await to_thread.run_sync(_page, self._database, follower)
        follower.number = number
        return page

    async def run(self) -> None:
        """Poll for events until the service stops, then end every stream."""
        while not self._stopping.is_set():
            await anyio.sleep(POLL_SECONDS)
            if self._followers:
                await self._poll()
            else:
                # Without streams nobody reads the feeds; a later stream starts at the newest event.
                self._feeds.clear()
        for follower in self._followers:
            follower.is_over = True
            follower.has_events.set()

    async def _poll(self) -> None:
        # A copy, since streams begin and end while the query runs.
        followers = [*self._followers]
        federation_ids = {follower.federation_id for follower in followers}
        self._feeds = {
            federation_id: feed
            for federation_id, feed in self._feeds.items()
            if federation_id in federation_ids
        }
        ends = {federation_id: feed.end for federation_id, feed in self._feeds.items()}
        members = {credential_of(f.caller) for f in followers if isinstance(f.caller, Member)}
        people = {credential_of(f.caller) for f in followers if isinstance(f.caller, Person)}
        self.polls += 1
        try:
            events, numbers, valid = await to_thread.run_sync(
                _query, self._database, federation_ids, ends, members, people
            )
        except SQLAlchemyError as error:  # transient: the streams stay open and the next poll retries
            log.warning("event-poll-failed", error=type(error).__name__)
            return
        except Exception:  # leaving the loop would silence every stream of this process
            log.exception("event-poll-failed")
            return
        for federation_id, number in numbers.items():
            feed = self._feeds.setdefault(federation_id, _Feed(number, number))
            if federation_id in events:
                feed.extend(events[federation_id])
        for follower in followers:
            follower.is_over = credential_of(follower.caller) not in valid
            followed = self._feeds.get(follower.federation_id)
            if follower.is_over or (followed is not None and followed.end > follower.number):
                follower.has_events.set()


def streams_of(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


def _caller_id(caller: Person | Member) -> str:
    return credential_of(caller).id


def _page(database: Database, follower: Follower) -> tuple[list[Event], int]:
    """Return a page of events and the number of the last event that it covers."""
    with database.read() as session:
        number = event_log.last(session, follower.federation_id)
        page = event_log.since(
            session, follower.federation_id, follower.number, client_id=follower.client_id, limit=PAGE
        )
        is_last = len(page) < PAGE
        return page, max(number, follower.number) if is_last else page[-1].number


def _query(
    database: Database,
    federation_ids: set[str],
    ends: dict[str, int],
    members: set[Credential],
    people: set[Credential],
) -> tuple[dict[str, list[Event]], dict[str, int], set[Credential]]:
    """Return the events after `ends`, the last event numbers, and the still valid credentials."""
    with database.read() as session:
        numbers = event_log.numbers(session, federation_ids)
        events = {
            federation_id: page
            for federation_id, end in ends.items()
            if numbers.get(federation_id, end) > end
            and (page := event_log.since(session, federation_id, end, limit=PAGE))
        }
        return events, numbers, still_valid(session, members, people)
