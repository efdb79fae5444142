"""A bank of experts, commit by commit: what each round makes of it, and what agents download of it.

I29: a bank changes with the commit that publishes a round, once; its counts are those that were taken, each
expert that is born, pruned or merged has one event, an ordinal is never used again, and new values are what
the round's total makes of those before. I30: a client's weights name the newest revision of each active
expert, and an agent trains from the values of these.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client_agent.experts.memory import Choice
from coordinator.strategies.bank_rules import LEAST_WEIGHT
from schemas.maths.bank import REJECT, SHARED, expert_tensors
from schemas.messages.secure_sum import SumTerms
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.secure_sum.encoding import CLIP_UNIT
from tests.faults.fault_simulation.given import Row
from tests.faults.fault_simulation.meaning import flat, unpacked

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

Values = NDArray[np.float64]
Index = dict[int, tuple[int, str | None]]
"""The revision and digest of each active expert; revision 0 has none."""

_HALF = {"rtol": 2**-10, "atol": 1e-6}
"""Experts are float16, rounded up or down."""

_ROUNDS = "SELECT round_number, sums, events FROM bank_rounds ORDER BY round_number"
_EXPERTS = "SELECT expert, status, born, ended, merged_into FROM experts ORDER BY expert"
_REVISIONS = "SELECT expert, round_number, digest, payload_id FROM expert_revisions"
_EVENTS = "SELECT number, data FROM events WHERE kind = 'expert' AND number > ? ORDER BY number"
_ENDS = {"pruned": "archived", "merged": "merged"}


class BankSeen:
    """Watches the bank of a federation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rounds: dict[int, tuple[str, str]] = {}
        self._experts: dict[int, tuple[Any, ...]] = {}
        self._revisions: dict[tuple[int, int], str] = {}
        self._values: dict[tuple[int, int], Values] = {}
        self._last_event = 0
        self._indexes: dict[int, BankIndex | None] = {}  # by row of weights
        self._choices: dict[tuple[int, int], list[Choice]] = defaultdict(list)  # by agent and round

    @property
    def _is_absent(self) -> bool:
        drawn = self._world.plan.summed
        return drawn is None or drawn.bank is None

    def look(self, connection: sqlite3.Connection, new_weights: list[Row]) -> None:
        """Check the changes of a commit to the bank."""
        if self._is_absent:
            return
        rounds = {number: (sums, events) for number, sums, events in connection.execute(_ROUNDS)}
        experts = {row[0]: row for row in connection.execute(_EXPERTS)}
        revisions = {tuple(row[:2]): tuple(row[2:]) for row in connection.execute(_REVISIONS)}
        new = rounds.keys() - self._rounds.keys()
        if any(rounds.get(number) != row for number, row in self._rounds.items()):
            self._violated("I29", "a round of the bank was changed or deleted")
        if len(new) > 1 or any(number <= max(self._rounds, default=0) for number in new):
            self._violated(
                "I29", f"rounds {sorted(new)} of the bank came after {max(self._rounds, default=0)}"
            )
        self._look_at_experts(experts, new)
        for number in new:
            self._after(connection, number, *rounds[number], experts, revisions)
        if set(revisions) != set(self._revisions):
            self._violated(
                "I29", f"revisions {sorted(set(revisions) ^ set(self._revisions))} belong to no round"
            )
        self._rounds, self._experts = rounds, experts
        for row in new_weights:
            self._look_at_weights(connection, row)

    def trained(self, agent: int, number: int, start: Any, choice: Choice) -> None:
        """Record an agent's choice, and compare its bank with the one that its weights name."""
        self._choices[agent, number].append(choice)
        client = {index: client_id for client_id, index in self._world.index_of_clients().items()}[agent]
        row = self._world.oracle.ledger.given_weights.to(client, number)
        index = self._indexes.get(row) if row is not None else None
        if index is None:
            self._violated("I30", f"{client} trains in round {number} and was given no bank")
            return
        named = {entry.expert: entry.revision for entry in index.experts}
        begun = {int(name.partition(".")[0].removeprefix("x")) for name in start}
        if begun != {SHARED, *named}:
            self._violated("I30", f"{client} begins round {number} with experts {sorted(begun)}")
        for expert, revision in named.items():
            values = flat(dict(expert_tensors(expert, start)))
            if not np.array_equal(values, self._values_of(expert, revision)):
                self._violated("I30", f"{client} begins round {number} with another expert {expert}")
        self._world.count("banks downloaded")

    def counts_itself(self, agent: int, number: int, terms: SumTerms, values: NDArray[np.int64]) -> None:
        """Compare an agent's counts with the choices that it made in a round."""
        choices = [
            {f"x{choice.trained[0]}", *([REJECT] if choice.rejects else [])}
            for choice in self._choices[agent, number]
        ]
        counted = {s.name for s, value in zip(terms.segments, values, strict=True) if value}
        if not self._is_absent and counted not in choices:
            self._violated("I29", f"agent {agent} is counted in {sorted(counted)} in round {number}")

    def settle(self) -> None:
        """Check that every published round has changed the bank once."""
        if not self._is_absent and set(self._rounds) != set(self._world.oracle.ledger.counted):
            self._violated("I29", f"rounds {sorted(self._rounds)} are of the bank, and others were published")

    def _look_at_experts(self, experts: dict[int, tuple[Any, ...]], new: set[int]) -> None:
        if list(experts) != list(range(1, len(experts) + 1)):
            self._violated("I29", f"the experts are {list(experts)}")
        for expert, before in self._experts.items():
            now = experts.get(expert)
            if now != before and (now is None or not new or before[1] != "active" or now[2] != before[2]):
                self._violated("I29", f"expert {expert} was {before} and is {now}")

    def _after(
        self,
        connection: sqlite3.Connection,
        number: int,
        written_sums: str,
        written_events: str,
        experts: dict[int, tuple[Any, ...]],
        revisions: dict[tuple[Any, ...], tuple[Any, ...]],
    ) -> None:
        """Check the bank after a round, in the commit that publishes it."""
        sums, events = json.loads(written_sums), json.loads(written_events)
        if number not in self._world.oracle.ledger.counted:
            self._violated("I29", f"round {number} changed the bank and is not published")
            return
        counts = self._world.oracle.sums.counts.outcome(number)
        users = {group[1:]: users for group, users in counts.groups.items() if group != "reject"}
        if (sums["members"], sums["users"], sums["rejects"]) != (
            counts.members,
            users,
            counts.groups["reject"],
        ):
            self._violated("I29", f"the bank has other counts of round {number} than were taken: {sums}")
        new_events = [
            (row, json.loads(data)) for row, data in connection.execute(_EVENTS, (self._last_event,))
        ]
        self._last_event = max((row for row, _ in new_events), default=self._last_event)
        if [data for _, data in new_events] != events:
            self._violated(
                "I29", f"{len(new_events)} events tell of round {number}, which has {len(events)} changes"
            )
        self._follow_from_events(number, events, experts)
        after, changed = self._values_after(number, events)
        new = {place for place in revisions if place not in self._revisions}
        if new != {(expert, number) for expert in changed}:
            self._violated(
                "I29", f"round {number} made revisions {sorted(new)}, and changed {sorted(changed)}"
            )
        for place in sorted(new):
            digest, payload = revisions[place]
            self._revisions[place] = digest
            stored = self._values[place] = self._stored(connection, payload)
            if place[0] in after and not np.allclose(stored, after[place[0]], **_HALF):
                self._violated("I29", f"expert {place[0]} after round {number} is not what its total makes")
        for event in events:
            self._world.count(f"experts {event['change']}")

    def _follow_from_events(
        self, number: int, events: list[dict[str, Any]], experts: dict[int, tuple[Any, ...]]
    ) -> None:
        expected = dict(self._experts) or {
            expert: (expert, "active", row[2], None, None)
            for expert, row in experts.items()
            if row[2] < number
        }
        for event in events:
            expert = event["expert"]
            if event["change"] == "born":
                if expert in expected:
                    self._violated("I29", f"expert {expert} was born twice")
                expected[expert] = (expert, "active", number, None, None)
            else:
                peer = event["peer"] if event["change"] == "merged" else None
                expected[expert] = (expert, _ENDS[event["change"]], expected[expert][2], number, peer)
        if expected != experts:
            self._violated(
                "I29", f"the experts after round {number} do not follow from its events: {experts}"
            )

    def _values_after(self, number: int, events: list[dict[str, Any]]) -> tuple[dict[int, Values], set[int]]:
        """Compute the values of active experts after a round, and name those that changed."""
        decoded = self._decoded(number)
        after = {expert: self._newest(expert) for expert, row in self._experts.items() if row[1] == "active"}
        after = after or {1 + at: np.zeros(self._world.plan.values) for at in range(self._first_experts)}
        changed = set()
        for expert in after:
            if decoded.get(f"x{expert}.weight", np.zeros(1))[0] >= LEAST_WEIGHT:
                after[expert] = after[expert] + self._mean(decoded, f"x{expert}")
                changed.add(expert)
        for event in events:
            expert = event["expert"]
            if event["change"] == "born":
                after[expert] = self._mean(decoded, "new")
                changed.add(expert)
                continue
            del after[expert]  # a merged expert ends, and its peer stays as it is
            changed.discard(expert)
        return after, changed

    @property
    def _first_experts(self) -> int:
        drawn = self._world.plan.summed
        return drawn.bank.experts if drawn is not None and drawn.bank is not None else 0

    def _decoded(self, number: int) -> dict[str, Values]:
        """Return the values of each segment of a round's total."""
        total, terms = self._world.oracle.sums.totals[number], self._world.oracle.sums.terms[number]
        decoded, begin = {}, 0
        for segment in terms.segments:
            step = segment.clip * CLIP_UNIT / (2 ** (terms.bits - 1) - 1)
            decoded[segment.name] = total[begin : begin + segment.values] * step
            begin += segment.values
        return decoded

    def _mean(self, decoded: dict[str, Values], prefix: str) -> Values:
        values = np.concatenate([decoded[f"{prefix}.{factor}"] for factor in ("P", "Q")])
        mean: Values = values / decoded[f"{prefix}.weight"]
        return mean

    def _newest(self, expert: int) -> Values:
        revision = max((number for candidate, number in self._revisions if candidate == expert), default=0)
        return self._values_of(expert, revision)

    def _values_of(self, expert: int, revision: int) -> Values:
        if not revision:
            return np.zeros(self._world.plan.values)
        return self._values[expert, revision]

    def _stored(self, connection: sqlite3.Connection, payload: int) -> Values:
        chunks = connection.execute(
            "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (payload,)
        )
        return np.frombuffer(b"".join(data for (data,) in chunks), "<f2").astype(np.float64)

    def _look_at_weights(self, connection: sqlite3.Connection, row: Row) -> None:
        """Compare the bank that weights name with the active experts and their newest revisions."""
        chunks = connection.execute(
            "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (row[3],)
        )
        body = (row[4] or b"") + b"".join(data for (data,) in chunks)[row[5] :]
        with unpacked(body, self._world.plan.rank) as envelope:
            index = envelope.manifest(WeightsManifest).bank
        self._indexes[row[0]] = index
        named = {entry.expert: (entry.revision, entry.digest) for entry in index.experts} if index else {}
        if named != self._index():
            self._violated("I30", f"the weights of {row[1]} for round {row[2]} name {named}")

    def _index(self) -> Index:
        index: Index = {}
        for expert, row in self._experts.items():
            if row[1] == "active":
                revision = max(
                    (number for candidate, number in self._revisions if candidate == expert), default=0
                )
                index[expert] = (revision, self._revisions.get((expert, revision)))
        return index or {1 + at: (0, None) for at in range(self._first_experts)}

    def _violated(self, promise: str, event: str) -> None:
        self._world.violated(promise, event)
