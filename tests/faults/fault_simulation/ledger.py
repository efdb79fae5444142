"""Invariants of each commit, read directly from the database after it.

I2 a round counts each update once; I3 what was published does not change; I4 rounds only go on, and only when
they may; I6 nothing of who was shut out comes in; I12 without faults no round hangs. And leases: only who
holds one publishes, and nobody takes one that is alive.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.faults.fault_simulation import published
from tests.faults.fault_simulation.fault_rates import LAST_ROUND
from tests.faults.fault_simulation.given import GivenWeights, Row
from tests.faults.fault_simulation.replicas import LEASE_SECONDS
from tests.faults.fault_simulation.sum_rows import longest_seconds

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_ORDER = ("open", "collecting", "summing", "closing", "aggregating", "published", "abandoned")
ENDED = ("published", "abandoned")
_FAILED_SUMS = ("secure-sum-failed", "too-few-members")
_ROUNDS = (
    "SELECT id, number, state, version, reason, deadline, lease_token, lease_expires_at"
    " FROM rounds ORDER BY id"
)


@dataclass(frozen=True)
class Round:
    """A round's row."""

    id: int
    number: int
    state: str
    version: int
    reason: str | None
    deadline: str | None
    lease_token: str | None
    lease_expires_at: str | None


class Ledger:
    """The history of the database, commit by commit."""

    connection: sqlite3.Connection

    def __init__(self, world: World) -> None:
        self._world = world
        self.rounds: dict[int, Round] = {}
        self.revoked: set[str] = set()
        self.given_weights = GivenWeights(world)
        self.counted: dict[int, frozenset[str]] = {}
        self._keys: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self.opened: dict[int, float] = {}  # when a round was opened
        self._since: dict[int, float] = {}  # when a round entered its state
        self._last_update = 0
        self._parts: set[tuple[int, str]] = set()
        self._last_rounds: list[tuple[Any, ...]] = []

    def open(self, connection: sqlite3.Connection) -> None:
        """Open the connection to the database."""
        self.connection = connection

    def close(self) -> None:
        """Close the connection to the database."""
        self.connection.close()

    @property
    def newest_round(self) -> int:
        """The number of the last round; 0 if there is none."""
        return max((row.number for row in self.rounds.values()), default=0)

    def holds_lease(self, actor: str) -> bool:
        """Whether a replica aggregates a round now."""
        return self._world.oracle.sums.holds_lease(actor) or any(
            row.state == "aggregating" and self._owners.get(row.lease_token or "") == actor
            for row in self.rounds.values()
        )

    @property
    def is_finished(self) -> bool:
        """Whether the federation is over."""
        return bool(self.connection.execute("SELECT 1 FROM federations WHERE state = 'finished'").fetchall())

    @property
    def is_paused(self) -> bool:
        """Whether no round follows the present one."""
        return bool(self.connection.execute("SELECT 1 FROM federations WHERE state = 'paused'").fetchall())

    def awaits(self, client: str) -> int | None:
        """Return the round that a client can take part in and has not delivered for, or None."""
        number = self.newest_round
        is_open = self.rounds and max(self.rounds.items())[1].state in ("open", "collecting")
        delivered = "SELECT 1 FROM updates WHERE client_id = ? AND round_number = ?" + (
            " UNION SELECT 1 FROM participations p JOIN rounds r ON r.id = p.round_id"
            " WHERE p.client_id = ? AND r.number = ? AND p.ready_at IS NOT NULL"
        )
        running = "SELECT 1 FROM federations WHERE state = 'running'"
        if not is_open or not self.connection.execute(running).fetchone():
            return None
        return None if self.connection.execute(delivered, (client, number) * 2).fetchone() else number

    def had_joined(self, client: str, number: int, moment: float) -> bool:
        """Whether a client takes part in a round that existed at a moment."""
        parts = [(row.id, client) for row in self.rounds.values() if row.number == number]
        return number in self.opened and self.opened[number] < moment and any(p in self._parts for p in parts)

    def client_of(self, key: str) -> str | None:
        """Return the client of a key; None if it is unknown."""
        if key not in self._keys:
            self._keys.update(
                self.connection.execute("SELECT public_key, client_id FROM client_keys").fetchall()
            )
        return self._keys.get(key)

    def is_over(self, key: str) -> bool:
        """Whether a key was replaced, and its overlap has ended."""
        query = "SELECT expires_at FROM client_keys WHERE public_key = ?"
        row = self.connection.execute(query, (key,)).fetchone()
        return row is not None and self.is_past(row[0])

    def look(self, actor: str) -> None:
        """Check the changes of a commit of `actor`."""
        self.connection.execute("BEGIN")  # one look at the file, not one for every question
        try:
            self._look(actor)
        finally:
            self.connection.execute("COMMIT")

    def _look(self, actor: str) -> None:
        self._world.oracle.packs.look(self.connection)
        self._look_at_updates()
        self._look_at_parts()
        self._world.oracle.sums.look(self.connection, actor)
        rows = self.connection.execute(_ROUNDS).fetchall()
        new_weights, ended = self.given_weights.look(self.connection), len(self.counted)
        if rows != self._last_rounds:
            self._last_rounds = rows
            for row in (Round(*columns) for columns in rows):
                before = self.rounds.get(row.id)
                if before != row:
                    self._look_at_round(before, row, actor, new_weights)
                self.rounds[row.id] = row
        if new_weights and len(self.counted) == ended:
            published.check_joined(self._world, new_weights)
        self.revoked.update(
            client for (client,) in self.connection.execute("SELECT id FROM clients WHERE state = 'revoked'")
        )
        self._world.oracle.pruning.look(self.connection)
        self._world.oracle.bank.look(self.connection, new_weights)

    def _violated(self, promise: str, event: str) -> None:
        self._world.violated(promise, event)

    def _look_at_updates(self) -> None:
        rows = self.connection.execute(
            "SELECT id, round_id, round_number, client_id, digest, state_payload_id, state_begin FROM updates"
            " WHERE id > ? ORDER BY id",
            (self._last_update,),
        ).fetchall()
        for place, round_id, number, client, digest, *state in rows:
            self._last_update = place
            if client in self.revoked:
                self._violated("I6", f"an update of {client} was accepted after it was revoked")
            if self.rounds[round_id].state not in ("open", "collecting"):
                self._violated("I4", f"round {number} took an update while {self.rounds[round_id].state}")
            if (round_id, client) not in self._parts:
                self._violated("I4", f"{client} delivered in round {number} and had not joined")
            self._world.oracle.meaning.accepted(client, number, digest, state)
            self._world.oracle.packs.accepted(
                self.connection, client, number, self._world.oracle.body(digest)
            )

    def _look_at_parts(self) -> None:
        (count,) = self.connection.execute("SELECT count(*) FROM participations").fetchone()
        if count == len(self._parts):
            return
        parts = set(self.connection.execute("SELECT round_id, client_id FROM participations").fetchall())
        for round_id, client in sorted(parts - self._parts):
            if client in self.revoked:
                self._violated("I6", f"{client} joined after it was revoked")
            if self.rounds[round_id].state not in ("open", "collecting"):
                self._violated("I4", f"{client} joined a round that was {self.rounds[round_id].state}")
        self._parts = parts

    def _look_at_round(self, before: Round | None, row: Round, actor: str, new_weights: list[Row]) -> None:
        world = self._world
        if before is None:
            self.opened[row.number] = world.scheduler.now
            previous = [candidate for candidate in self.rounds.values() if candidate.number == row.number - 1]
            if row.number > 1 and (not previous or previous[0].state not in ENDED):
                self._violated("I4", f"round {row.number} was opened before the one before had ended")
            if row.number > LAST_ROUND:
                self._violated("I12", "rounds are abandoned without end")
        elif before.state != row.state:
            if before.state in ENDED or _ORDER.index(row.state) < _ORDER.index(before.state):
                self._violated("I4", f"round {row.number} went from {before.state} to {row.state}")
            if row.version <= before.version:
                self._violated("I4", f"round {row.number} moved and kept its version")
            self._in_time(before, row)
        if before is not None:
            self._leases(before, row, actor)
        if before is None or before.state != row.state:
            self._since[row.id] = world.scheduler.now
            world.scheduler.say(f"{actor}: round {row.number} is {row.state} {row.reason or ''}")
            world.count(f"rounds {row.state}")
            self._entered(before, row, actor, new_weights)

    def _entered(self, before: Round | None, row: Round, actor: str, new_weights: list[Row]) -> None:
        if row.state == "summing" or (row.state == "closing" and self._world.plan.summed is None):
            self._may_close(row)
        elif row.state == "closing" and row.number not in self._world.oracle.sums.totals:
            self._violated("I21", f"round {row.number} closed without a total")
        if row.state == "abandoned":
            self._may_abandon(row)
        if row.state == "published":
            if before is None or self._owners.get(before.lease_token or "") != actor:
                self._violated("leases", f"round {row.number} was published by {actor} without its lease")
            self.counted[row.number] = published.check_round(self._world, self.connection, row.id, row.number)
            published.check_receivers(self._world, self.connection, row.number, new_weights)

    def _may_close(self, row: Round) -> None:
        expected, arrived = self._heads(row)
        plan = self._world.plan
        is_complete = expected == 0 and arrived >= plan.min_clients
        if not is_complete and not (self.is_past(row.deadline) and arrived >= plan.quorum):
            self._violated("I4", f"round {row.number} closed with {arrived} updates, waiting for {expected}")

    def _may_abandon(self, row: Round) -> None:
        _, arrived = self._heads(row)
        if row.reason == "too-few-updates":
            if not self.is_past(row.deadline) or arrived >= self._world.plan.quorum:
                self._violated("I4", f"round {row.number} was abandoned with {arrived} updates")
        elif row.reason == "pack-ended" and self._world.plan.aligned:
            self._world.count("rounds abandoned with a pack")
        elif row.reason in _FAILED_SUMS and self._world.plan.summed is not None:
            self._has_paused(row)
        elif row.reason != "finished" or not self._world.plan.finish_early:
            self._violated("no round is lost", f"round {row.number} was abandoned: {row.reason}")

    def _has_paused(self, row: Round) -> None:
        """I26: a federation whose round could not be summed pauses, so that clients do not train in vain."""
        self._world.count(f"rounds abandoned: {row.reason}")
        running = self.connection.execute("SELECT 1 FROM federations WHERE state = 'running'").fetchone()
        if row.reason == "secure-sum-failed" and running:
            self._violated("I26", f"round {row.number} could not be summed, and the federation goes on")

    def _heads(self, row: Round) -> tuple[int, int]:
        """Return the number of expected clients, and of those that have delivered or can be summed."""
        expected = self.connection.execute(
            "SELECT count(*) FROM participations p JOIN clients c ON c.id = p.client_id"
            " WHERE p.round_id = ? AND c.state = 'enrolled' AND p.ready_at IS NULL AND p.is_waited_for"
            " AND NOT EXISTS (SELECT 1 FROM updates u WHERE u.round_id = p.round_id AND u.client_id = c.id)",
            (row.id,),
        ).fetchone()[0]
        arrived = self.connection.execute(
            "SELECT (SELECT count(*) FROM updates WHERE round_id = :id) + (SELECT count(*)"
            " FROM participations p JOIN clients c ON c.id = p.client_id"
            " WHERE p.round_id = :id AND p.ready_at IS NOT NULL AND c.state = 'enrolled')",
            {"id": row.id},
        ).fetchone()[0]
        return int(expected), int(arrived)

    def _leases(self, before: Round, row: Round, actor: str) -> None:
        old, new = before.lease_token, row.lease_token
        if new is not None and new != old:
            self._owners[new] = actor
            if old is not None and not self.is_past(before.lease_expires_at):
                self._violated("leases", f"{actor} took the lease of round {row.number} while it was alive")
        elif new is not None and row.lease_expires_at != before.lease_expires_at:
            is_alone = self._world.plan.replicas == 1
            if self._owners[new] != actor and not is_alone:
                self._violated("leases", f"{actor} changed the lease of {self._owners[new]}")

    def _in_time(self, before: Round, row: Round) -> None:
        """Without faults a round that has closed ends within three leases, and collecting ends in time."""
        world = self._world
        took = world.scheduler.now - max(self._since[row.id], world.faults_ended_at)
        limit = 3 * LEASE_SECONDS + world.turned_back
        if before.state == "collecting":
            limit += world.plan.collect_seconds
        if before.state == "summing" and world.plan.summed is not None:
            limit += longest_seconds(world.plan.summed)
        if before.state != "open" and took > limit:
            self._violated("I12", f"round {row.number} was {before.state} for {took:.0f} s")

    def is_past(self, moment: str | None) -> bool:
        """Whether the database's clock has reached a moment."""
        return moment is not None and self.seconds_since(moment) >= -0.001

    def seconds_since(self, moment: str) -> float:
        """Return the seconds since a moment by the database's clock."""
        seconds = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
        return self._world.database_time() - seconds
