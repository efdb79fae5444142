"""Pruning of old rounds, and the data that is never pruned.

I19: the tensors of the last rounds that were published stay, each client's last update that counts, and the
weights that anybody starts from since; of older rounds the tensors go, what was said of them stays, and who
asks is given the same bytes as ever or told that they are not found.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation import retention
from coordinator.db.engine import Database
from schemas.wire.digests import digest_of
from tests.faults.fault_simulation.ledger import ENDED

if TYPE_CHECKING:
    from tests.faults.fault_simulation.oracle import ReceivedRequest
    from tests.faults.fault_simulation.replicas import Answer
    from tests.faults.fault_simulation.world import World

Place = tuple[str, int]  # a client and a round

_WEIGHTS = re.compile(r"/rounds/(\d+)/weights$")
_ADAPTER = re.compile(r"/clients/([^/]+)/adapter\?round=(\d+)$")
_FORGOTTEN = {
    "weights": "SELECT client_id, round_number FROM weights WHERE payload_id IS NULL OR head IS NULL",
    "update": "SELECT client_id, round_number FROM updates"
    " WHERE payload_id IS NULL OR state_payload_id IS NULL",
}
_REJECTED = "SELECT client_id, round_number FROM updates WHERE reject_reason IS NOT NULL"
_CODED = "SELECT client_id, round_number, recipe FROM coded_weights"
_MOST_PASSES = 100
_VALUE_BYTES = 4


class PruningWatch:
    """Watches the pruning of a federation, commit by commit, and the served data of old rounds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._forgotten: dict[str, set[Place]] = {kind: set() for kind in _FORGOTTEN}
        self._coded: set[tuple[str, int, str]] = set()
        self._rejected: set[Place] = set()
        self._rounds: set[int] = set()

    def look(self, connection: sqlite3.Connection) -> None:
        """Check the data that a commit has pruned."""
        if self._world.plan.keep_rounds is None:
            return
        self._rejected = set(connection.execute(_REJECTED).fetchall())
        for kind, query in _FORGOTTEN.items():
            before, now = self._forgotten[kind], set(connection.execute(query).fetchall())
            if now == before:
                continue
            self._forgotten[kind] = now
            if before - now:
                self._violated(f"the {kind} of {sorted(before - now)} came back")
            lost = now & self._needed(kind)
            if lost:
                self._violated(f"the {kind} of {sorted(lost)} was thinned out and is needed")
            for _, number in sorted(now - before):
                self._count(number)
        coded = set(connection.execute(_CODED).fetchall())
        lost_early = {place for place in self._coded - coded if place[1] in self._lasting_rounds()}
        if lost_early:
            self._violated(f"what {sorted(lost_early)} were was thinned out too early")
        self._coded = coded

    def answered(self, client: str, request: ReceivedRequest, answer: Answer) -> None:
        """Check the answer to a client's request for its tensors of a round."""
        if request.method != "GET":
            return
        weights, adapter = _WEIGHTS.search(request.path), _ADAPTER.search(request.path)
        if weights is not None:
            self._check_weights(client, int(weights.group(1)), request, answer)
        elif adapter is not None and adapter.group(1) == client:
            self._check_adapter(client, int(adapter.group(2)), request, answer)

    def settle(self, database: Database) -> None:
        """Finish the pruning, and check that no more is stored than the setting allows."""
        keep = self._world.plan.keep_rounds
        if keep is None:
            return
        for _ in range(_MOST_PASSES):
            if not retention.prune_rounds(database, keep):
                break
        for kind, forgotten in self._forgotten.items():
            spared = self._all(kind) - forgotten - self._allowed(kind)
            if spared:
                self._violated(f"the {kind} of {sorted(spared)} is kept for ever")
        if any(number < self._first_kept() for _, number, _ in self._coded):
            self._violated("what weights of old rounds were in recipes is kept for ever")

    def _check_weights(self, client: str, number: int, request: ReceivedRequest, answer: Answer) -> None:
        ledger = self._world.oracle.ledger
        row = ledger.given_weights.to(client, number)
        if row is None or not ledger.had_joined(client, number, request.at):
            return
        if answer.status == 404:
            if (client, ledger.given_weights.rows[row][2]) in self._needed("weights"):
                self._violated(f"{client} was told that its weights of round {number} are not found")
            self._world.count("weights not kept any more")
        headers = {name.lower() for name, _ in answer.headers}
        is_dense = answer.status == 200 and not {b"tessera-weights", b"content-encoding"} & headers
        served = {
            ledger.given_weights.rows[place][6]
            for place in (row, self._final(client, number))
            if place is not None
        }
        if is_dense and digest_of(bytes(answer.body)) not in served:
            self._violated(f"{client} was served other weights in round {number} than it was given")

    def _final(self, client: str, number: int) -> int | None:
        """Name the row of a client's final weights, which a finished federation serves for this round.

        It is the round after the last published one, whether that was abandoned or never begun.
        """
        ledger = self._world.oracle.ledger
        if not ledger.is_finished or number != max(ledger.counted, default=0) + 1:
            return None
        return ledger.given_weights.to(client, ledger.newest_round + 1)

    def _check_adapter(self, client: str, number: int, request: ReceivedRequest, answer: Answer) -> None:
        state = self._world.oracle.meaning.states.get((client, number))
        if state is None or request.at <= self._world.oracle.ledger.opened.get(number + 1, request.at):
            return
        if answer.status == 404:
            if (client, number) in self._needed("update"):
                self._violated(f"{client} was told that its update of round {number} is not found")
            self._world.count("updates not kept any more")
        elif answer.status == 200:
            size = state.size * _VALUE_BYTES
            if not np.array_equal(np.frombuffer(bytes(answer.body[-size:]), "<f4"), state):
                self._violated(f"{client} was served another update of round {number} than is kept")

    def _needed(self, kind: str) -> set[Place]:
        """Return the clients and rounds whose tensors can still be requested."""
        rounds = self._lasting_rounds()
        if kind == "update":
            return {
                (client, round_number) for client, round_number in self._all(kind) if round_number in rounds
            } | self._last_counted()
        return {
            (client, max(round_number for round_number in numbers if round_number <= number))
            for client, numbers in self._world.oracle.ledger.given_weights.rounds().items()
            for number in rounds
            if min(numbers) <= number
        }

    def _allowed(self, kind: str) -> set[Place]:
        """Return the upper bound of kept tensors: all since the first full round, and those needed."""
        first = self._first_kept()
        return {(client, number) for client, number in self._all(kind) if number >= first} | self._needed(
            kind
        )

    def _last_counted(self) -> set[Place]:
        """Return the last update of each client that still counts: a replaced pack rejects earlier ones."""
        counted = self._world.oracle.ledger.counted
        valid = {
            client: number
            for number in sorted(counted)
            for client in counted[number]
            if (client, number) not in self._rejected
        }
        return set(valid.items())

    def _all(self, kind: str) -> set[Place]:
        if kind == "update":
            return set(self._world.oracle.meaning.states)
        rounds = self._world.oracle.ledger.given_weights.rounds()
        return {(client, number) for client, numbers in rounds.items() for number in numbers}

    def _lasting_rounds(self) -> set[int]:
        """Return the rounds that keep their tensors: the last published, the current and the next."""
        ledger, keep = self._world.oracle.ledger, self._world.plan.keep_rounds or 0
        under_way = {row.number for row in ledger.rounds.values() if row.state not in ENDED}
        return {*sorted(ledger.counted)[-keep:], *under_way, ledger.newest_round + 1}

    def _first_kept(self) -> int:
        is_short = len(self._world.oracle.ledger.counted) < (self._world.plan.keep_rounds or 0)
        return 1 if is_short else min(self._lasting_rounds())

    def _count(self, number: int) -> None:
        is_in_time = self._world.scheduler.running_task() is not None  # else it was for us to do, at the end
        if is_in_time and number not in self._rounds:
            self._rounds.add(number)
            self._world.count("rounds thinned out")

    def _violated(self, event: str) -> None:
        self._world.violated("I19", event)
