"""Tell the people of a silo what its agent waits for."""

from __future__ import annotations

import logging
import sys
import time

from client_agent.errors import CoordinatorRefused
from client_agent.rounds.client import Session
from client_agent.rounds.failure_policy import TRANSIENT
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundSummary

log = logging.getLogger("tessera.agent")

_FIRST_SECONDS, _WATCHED_SECONDS, _LOGGED_SECONDS = 3, 10, 60


class WaitLog:
    """Logs what the agent waits for: on a terminal every ten seconds, in a file changes once a minute.

    Args:
        watched: whether a person reads along; None = if standard error is a terminal.
        silent: whether nothing is asked or logged.
    """

    def __init__(self, session: Session, *, watched: bool | None = None, silent: bool = False) -> None:
        self._session = session
        self._silent = silent
        self._watched = sys.stderr.isatty() if watched is None else watched
        self._asked: float | None = None
        self._last = ""

    @property
    def seconds(self) -> int:
        """The seconds between two lines."""
        return _WATCHED_SECONDS if self._watched else _LOGGED_SECONDS

    def poll_seconds(self, most: int) -> int:
        """Return how long the next poll may wait, so that the next line is in time."""
        if self._silent:
            return most
        return _FIRST_SECONDS if self._asked is None else min(most, self.seconds)

    def end(self) -> None:
        """Record that there is work: the next line belongs to a new wait."""
        self._asked = None

    def tell(self) -> None:
        """Ask for the newest round and log what is missing in it, if the last line is old enough."""
        if self._silent:
            return
        now = time.monotonic()
        # A poll of ten seconds may be answered a little earlier.
        if self._asked is not None and now - self._asked < self.seconds - 1:
            return
        self._asked = now
        session = self._session
        try:
            newest = session.api.newest_round(session.federation_id)
        except (*TRANSIENT, CoordinatorRefused):  # the loop of rounds asks again, and says what is wrong
            return
        text = awaited(newest, session.manifests.plan)
        if self._watched or text != self._last:
            log.info("%s", text)
        self._last = text


def awaited(newest: RoundSummary | None, plan: FederationPlan) -> str:
    """Return what a client without work waits for, from the newest round; None = there was no round."""
    if newest is None:
        return "waiting for round 1: the operator has not started the federation"
    counts, number = newest.counts, newest.round
    following = f"round {number + 1}" if number < plan.rounds.total else "the final weights"
    match newest.state:
        case "open":
            joined = _of(counts.joined, plan.rounds.min_clients, "joined")
            advice = f"; {newest.advice}" if newest.advice else ""
            return f"waiting for round {number}: {joined}{advice}"
        case "collecting":
            return f"waiting for {following}: {_of(counts.arrived, counts.joined, 'delivered')}"
        case "published" | "abandoned":
            return f"waiting for {following}"
        case state:
            return f"waiting for {following}: round {number} is {state}"


def _of(count: int, total: int, verb: str) -> str:
    return f"{count} of {total} {'has' if count == 1 else 'have'} {verb}"
