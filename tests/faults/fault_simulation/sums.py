"""The sessions of a round's sum, commit by commit: their stored state, and their transitions.

I21: a committed total is the sum of the inputs of U3, modulo 2^m, each of them once. I25: whoever has the
whole database at any commit opens nobody's input: it never holds t shares of a member's `b` and t of its `s`,
and nothing of a session that has ended. I26: without faults a sum ends within the phases of its attempts and
three leases, and a federation whose round could not be summed has paused. I27: no phase closes, and no member
unmasks, below the threshold of more than two thirds.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schemas.messages.secure_sum import SumTerms
from tests.faults.fault_simulation.counting import CountsSeen
from tests.faults.fault_simulation.sum_rows import ENDED, ORDER, SESSIONS, Summed, revealed

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_MESSAGES = "SELECT session_id, position, step, digest, payload_id FROM sum_messages"
_FAULTLESS = ("too few members", "finished")
"""How the reasons begin for which a session of honest members is aborted."""


class Sums:
    """Watches the sessions of all sums."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sessions: dict[int, Summed] = {}
        self.counts = CountsSeen(world)
        self.totals: dict[int, NDArray[np.int64]] = {}  # by round
        self.terms: dict[int, SumTerms] = {}  # of totals, by round
        self.counted: dict[int, frozenset[str]] = {}  # by round
        self._rows: list[tuple[Any, ...]] = []
        self._messages: dict[tuple[int, int, str], tuple[str, int | None]] = {}
        self._owners: dict[str, str] = {}
        self._ready: set[tuple[int, str]] = set()

    def session(self, round_number: int, number: int) -> Summed | None:
        """Return a session by its round and number."""
        matches = [
            candidate
            for candidate in self.sessions.values()
            if (candidate.round, candidate.number) == (round_number, number)
        ]
        return matches[0] if matches else None

    def look(self, connection: sqlite3.Connection, actor: str) -> None:
        """Check the changes of a commit."""
        if self._world.plan.summed is None:
            return
        self._look_at_ready(connection)
        messages = {tuple(row[:3]): tuple(row[3:]) for row in connection.execute(_MESSAGES)}
        rows = connection.execute(SESSIONS).fetchall()
        if messages != self._messages:
            self._look_at_messages(connection, messages)
        if rows != self._rows:
            self._rows = rows
            for row in (Summed(*columns) for columns in rows):
                before = self.sessions.get(row.id)
                if before != row:
                    self._look_at_session(connection, before, row, actor)
                self.sessions[row.id] = row
        if messages != self._messages:
            self._messages = messages
            self._check_secrets(connection)
        (updates,) = connection.execute("SELECT count(*) FROM updates").fetchone()
        if updates:
            self._violated("I25", "an update was stored in a federation that sums")

    def _look_at_ready(self, connection: sqlite3.Connection) -> None:
        query = "SELECT round_id, client_id FROM participations WHERE ready_at IS NOT NULL"
        ready, ledger = set(connection.execute(query)), self._world.oracle.ledger
        for round_id, client in sorted(ready - self._ready):
            if client in ledger.revoked:
                self._violated("I6", f"{client} was ready after it was revoked")
            if ledger.rounds[round_id].state not in ("open", "collecting"):
                self._violated(
                    "I4", f"{client} was ready in a round that was {ledger.rounds[round_id].state}"
                )
        self._ready = ready

    def _look_at_messages(
        self,
        connection: sqlite3.Connection,
        messages: dict[tuple[Any, ...], tuple[Any, ...]],
    ) -> None:
        world = self._world
        for place, before in self._messages.items():
            if messages.get(place, before) != before:
                self._violated("I23", f"the message {place} was replaced")
            if place not in messages and not self._has_ended(connection, place[0]):
                self._violated("no message is lost", f"{place} was deleted while its session goes on")
        for session_id, position, step in sorted(messages.keys() - self._messages.keys()):
            digest, payload = messages[session_id, position, step]
            row = self.sessions[session_id]
            client = row.client(position)
            if client in world.oracle.revoked:
                self._violated("I6", f"a message of {client} was accepted after it was revoked")
            if row.state != step:
                self._violated("I4", f"a message of step {step} was stored while the session was {row.state}")
            elif position not in row.invited(step):
                self._violated("I4", f"{client} answered {step} and not the step before")
            if not world.oracle.sums_sent.has_sent(client, row, step, digest):
                self._violated("I21", f"{client} never sent what is stored of it in step {step}")
            if payload is not None and not self._is_whole(connection, payload, row):
                self._violated("I7", f"the masked vector of {client} is not there")
            world.count(f"sum messages of step {step}")

    def _has_ended(self, connection: sqlite3.Connection, session_id: int) -> bool:
        query = "SELECT state FROM sum_sessions WHERE id = ?"
        return connection.execute(query, (session_id,)).fetchone()[0] in ENDED

    def _is_whole(self, connection: sqlite3.Connection, payload: int, row: Summed) -> bool:
        query = "SELECT coalesce(sum(length(data)), 0) FROM payload_chunks WHERE payload_id = ?"
        (size,) = connection.execute(query, (payload,)).fetchone()
        return int(size) == row.terms.values * row.terms.modulus // 8

    def _look_at_session(
        self, connection: sqlite3.Connection, before: Summed | None, row: Summed, actor: str
    ) -> None:
        world = self._world
        if before is None:
            self._opened(connection, row)
        else:
            self._leases(before, row, actor)
        if before is None or before.state != row.state:
            world.scheduler.say(
                f"{actor}: session {row.number} of round {row.round} is {row.state} {row.reason or ''}"
            )
            world.count(f"sum sessions {row.state}")
        if before is not None and before.state != row.state:
            self._moved(connection, before, row, actor)

    def _opened(self, connection: sqlite3.Connection, row: Summed) -> None:
        earlier = [session for session in self.sessions.values() if session.round_id == row.round_id]
        if row.number != len(earlier) + 1 or any(session.state not in ENDED for session in self._others(row)):
            self._violated("I4", f"session {row.number} was opened before the one before had ended")
        enrolled = {
            session for (session,) in connection.execute("SELECT id FROM clients WHERE state = 'enrolled'")
        }
        spent = set(
            connection.execute(
                "SELECT m.client_id FROM sum_members m JOIN sum_sessions s ON s.id = m.session_id"
                " WHERE s.round_id = ? AND s.kind = ? AND m.spent",
                (row.round_id, row.terms.kind),
            )
        )
        if row.terms.threshold != 2 * len(row.terms.members) // 3 + 1:
            self._violated("I27", f"{row.terms.threshold} of {len(row.terms.members)} members suffice")
        for member in row.terms.members:
            if member.client not in enrolled:
                self._violated("I6", f"{member.client} is a member of a session and was revoked")
            if (row.round_id, member.client) not in self._ready:
                self._violated("I4", f"{member.client} is a member of a session and was not ready")
            if (member.client,) in spent:
                self._violated("I24", f"{member.client} has unmasked, and is a member of another session")
            if self._world.oracle.ledger.client_of(member.key) != member.client:
                self._violated("I5", f"the terms have another key than that of {member.client}")
        self.counts.opened(row)

    def _others(self, row: Summed) -> list[Summed]:
        """Return the other sessions of a session's round as they are now."""
        every = (Summed(*columns) for columns in self._rows)
        return [
            candidate for candidate in every if candidate.round_id == row.round_id and candidate.id != row.id
        ]

    def _moved(self, connection: sqlite3.Connection, before: Summed, row: Summed, actor: str) -> None:
        name = f"session {row.number} of round {row.round}"
        if before.state in ENDED or ORDER.index(row.state) <= ORDER.index(before.state):
            self._violated("I4", f"{name} went from {before.state} to {row.state}")
            return
        if row.version <= before.version:
            self._violated("I4", f"{name} moved and kept its version")
        if any(row.closed.get(phase) != members for phase, members in before.closed.items()):
            self._violated("I4", f"a phase of {name} was closed twice")
        if row.state not in ENDED:
            self._closed(connection, before, row)
            return
        (left,) = connection.execute(
            "SELECT count(*) FROM sum_messages WHERE session_id = ?", (row.id,)
        ).fetchone()
        if left:
            self._violated("I25", f"{left} messages are left of {name}, which is {row.state}")
        if row.state == "done":
            self._committed(connection, before, row, actor)
        elif not (row.reason or "").startswith(_FAULTLESS):
            self._violated("no sum is lost", f"{name} was aborted: {row.reason}")

    def _closed(self, connection: sqlite3.Connection, before: Summed, row: Summed) -> None:
        """Check that a phase closed when it had to, with those who had answered it."""
        phase, ledger = before.state, self._world.oracle.ledger
        answered = set(row.closed.get(phase, ()))
        name = f"step {phase} of session {row.number} of round {row.round}"
        stored = connection.execute(
            "SELECT position FROM sum_messages WHERE session_id = ? AND step = ?", (row.id, phase)
        )
        if answered != {position for (position,) in stored}:
            self._violated("I21", f"{name} closed with others than have answered")
        if len(answered) < before.least(phase):
            self._violated("I27", f"{name} closed with {len(answered)} members")
        enrolled = {
            place for (place,) in connection.execute("SELECT id FROM clients WHERE state = 'enrolled'")
        }
        missing = {place for place in before.invited(phase) - answered if before.client(place) in enrolled}
        if missing and ledger.seconds_since(before.phase_opened_at) < before.patience(phase):
            self._violated("I4", f"{name} closed before its end, waiting for {len(missing)}")
        if before.invited(phase) - answered:
            self._world.count(f"members dropped at {phase}")

    def _leases(self, before: Summed, row: Summed, actor: str) -> None:
        old, new, ledger = before.lease_token, row.lease_token, self._world.oracle.ledger
        if new is not None and new != old:
            self._owners[new] = actor
            if old is not None and not ledger.is_past(before.lease_expires_at):
                self._violated("leases", f"{actor} took the lease of a sum while it was alive")
            return
        is_changed = new is not None and row.lease_expires_at != before.lease_expires_at
        if is_changed and self._owners[new or ""] != actor and self._world.plan.replicas > 1:
            self._violated("leases", f"{actor} changed the lease of {self._owners[new or '']}")

    def holds_lease(self, actor: str) -> bool:
        """Whether a replica opens a sum now."""
        return any(
            row.state == "opening" and self._owners.get(row.lease_token or "") == actor
            for row in self.sessions.values()
        )

    def _committed(self, connection: sqlite3.Connection, before: Summed, row: Summed, actor: str) -> None:
        """I21: compare a total with the inputs of its members."""
        if self._owners.get(before.lease_token or "") != actor:
            self._violated("leases", f"the total of round {row.round} was committed by {actor} without lease")
        if row.round in self.totals:
            self._violated("I21", f"round {row.round} has two totals, or counts after its total")
        members, terms = row.closed["masked"], row.terms
        inputs = [self._world.oracle.sums_sent.input_of(row, row.client(position)) for position in members]
        total = np.sum(inputs, axis=0, dtype=np.int64)
        half = 2 ** (terms.modulus - 1)
        chunks = connection.execute(
            "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (row.total_payload_id,)
        )
        stored = np.frombuffer(b"".join(data for (data,) in chunks), "<i4")
        if not np.array_equal(stored[: len(total)], (total + half) % (2 * half) - half):
            self._violated("I21", f"the total of round {row.round} is not the sum of {len(members)} inputs")
        if terms.kind == "counts":
            self.counts.record_outcome(row, total)
            return
        self.totals[row.round], self.terms[row.round] = total, terms
        self.counted[row.round] = frozenset(row.client(position) for position in members)
        self._world.count(f"totals ({terms.masking})")

    def _check_secrets(self, connection: sqlite3.Connection) -> None:
        """I25: search the database for both secrets of a member."""
        shares: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: {"b": set(), "s": set()})
        for session_id, holder, body in connection.execute(
            "SELECT session_id, position, body FROM sum_messages WHERE step = 'unmask'"
        ):
            for owner, kind in revealed(body):
                shares[session_id, owner][kind].add(holder)
        for (session_id, owner), holders in shares.items():
            row = self.sessions[session_id]
            if min(len(of) for of in holders.values()) >= row.terms.threshold:
                self._violated("I25", f"a thief of the database can open the input of {row.client(owner)}")

    def _violated(self, promise: str, event: str) -> None:
        self._world.violated(promise, event)
