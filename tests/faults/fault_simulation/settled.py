"""Invariants of the database in the settled state, after the collection of garbage."""

from __future__ import annotations

import json
import sqlite3
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from coordinator.rounds.lifecycle import PACK_ENDED
from tests.faults.fault_simulation import published
from tests.faults.fault_simulation.given import ROWS

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

AT_ONCE = timedelta(days=-1)
"""A grace that spares nothing."""

_REFERENCES = (
    "SELECT payload_id FROM updates UNION SELECT state_payload_id FROM updates"
    " UNION SELECT payload_id FROM weights"
    " UNION SELECT payload_id FROM coded_weights WHERE payload_id IS NOT NULL"
    " UNION SELECT payload_id FROM folds UNION SELECT payload_id FROM joint_models"
    " UNION SELECT payload_id FROM sum_messages UNION SELECT total_payload_id FROM sum_sessions"
    " UNION SELECT payload_id FROM expert_revisions"
    " UNION SELECT payload_id FROM anchors UNION SELECT payload_id FROM alignment_packs"
)


def check(world: World, connection: sqlite3.Connection) -> None:
    """Check the invariants of the settled state."""
    _updates(world, connection)
    _weights(world, connection)
    _payloads(world, connection)
    _members(world, connection)
    _chains(world, connection)
    _scores(world, connection)


def summary(connection: sqlite3.Connection) -> str:
    """Return a checksum of the database's content."""
    rows = connection.execute("SELECT client_id, round_number, digest FROM weights ORDER BY id").fetchall()
    return sha256(repr(rows).encode()).hexdigest()


def _updates(world: World, connection: sqlite3.Connection) -> None:
    """I1: what was acknowledged was counted in its round, or is listed as rejected with its round."""
    counted = {
        (client, number): (digest, reason, state)
        for client, number, digest, reason, state in connection.execute(
            "SELECT u.client_id, u.round_number, u.digest, u.reject_reason, r.state"
            " FROM updates u JOIN rounds r ON r.id = u.round_id"
        )
    }
    for (client, number), digest in sorted(world.oracle.acknowledged.items()):
        row = counted.get((client, number))
        if row is None or row[0] != digest:
            world.violated("I1", f"the update of {client} in round {number} was acknowledged and is lost")
            continue
        is_counted = client in world.oracle.ledger.counted.get(number, ())
        is_voided = row[1] == PACK_ENDED  # counted in its round, and not carried over into later ones
        if row[2] == "published" and not (is_counted and (row[1] is None or is_voided)):
            world.violated("I1", f"the update of {client} in round {number} was not counted")
        if row[2] == "abandoned" and row[1] is None:
            world.violated("I1", f"round {number} was abandoned, the update of {client} is not rejected")


def _weights(world: World, connection: sqlite3.Connection) -> None:
    """I3: what was given is what it was; of old rounds it may be thinned out (I19)."""
    now = {row[0]: row for row in connection.execute(ROWS)}
    ledger_rows = world.oracle.ledger.given_weights.rows
    remaining = {
        place: row for place, row in now.items() if row[3] is not None or world.plan.keep_rounds is None
    }
    as_served = {place: (*row[:3], *row[5:]) for place, row in ledger_rows.items()}
    is_same = all(row == ledger_rows.get(place) for place, row in remaining.items())
    if not is_same or {place: (*row[:3], *row[5:]) for place, row in now.items()} != as_served:
        world.violated("I3", "weights were changed or removed after they were given")
    for row in remaining.values():
        published.read_weights(world, connection, row)


def _payloads(world: World, connection: sqlite3.Connection) -> None:
    """I7 and I8: what is referred to is there and whole, and nothing else is there."""
    digests = dict(connection.execute("SELECT id, digest FROM payloads").fetchall())
    needed = {payload for (payload,) in connection.execute(_REFERENCES)} - {None}  # thinned out
    if needed - digests.keys():
        world.violated("I7", f"payloads {sorted(needed - digests.keys())} are missing")
    if digests.keys() - needed:
        world.violated("I8", f"nobody needs payloads {sorted(digests.keys() - needed)}")
    for payload, digest in sorted(digests.items()):
        checksum = sha256()
        for (data,) in connection.execute(
            "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (payload,)
        ):
            checksum.update(data)
        if digest != f"sha256:{checksum.hexdigest()}":
            world.violated("I7", f"payload {payload} is not what its digest says")
    (loose,) = connection.execute(
        "SELECT count(*) FROM payload_chunks WHERE payload_id NOT IN (SELECT id FROM payloads)"
    ).fetchone()
    if loose:
        world.violated("I8", f"{loose} chunks belong to nothing")


def _members(world: World, connection: sqlite3.Connection) -> None:
    """I5: as many members as tokens that were used."""
    (members,) = connection.execute("SELECT count(*) FROM clients").fetchone()
    (used,) = connection.execute(
        "SELECT count(DISTINCT client_id) FROM enrolment_tokens WHERE used_at IS NOT NULL"
    ).fetchone()
    if members != used:
        world.violated("I5", f"{used} tokens were used by {members} clients")


def _chains(world: World, connection: sqlite3.Connection) -> None:
    """I4: manifests, roster, audit and events go on without a gap."""
    last: dict[str, tuple[int, str]] = {}
    for client, number, document, digest in connection.execute(
        "SELECT client_id, round_number, document, hash FROM round_manifests ORDER BY client_id, round_number"
    ):
        previous = json.loads(document)["previous"]
        before = last.get(client)
        if (previous and (previous["round"], previous["hash"])) != before:
            world.violated(
                "I4", f"the manifest of {client} for round {number} does not follow the one before"
            )
        last[client] = (number, digest)
    for table, column in (("roster", "version"), ("audit", "number")):
        numbers = [
            value for (value,) in connection.execute(f"SELECT {column} FROM {table} ORDER BY {column}")
        ]
        if numbers != list(range(1, len(numbers) + 1)):
            world.violated("I4", f"{table} has gaps")
    for federation_id, counted, newest in connection.execute(
        "SELECT f.id, f.events, max(e.number) FROM federations f"
        " LEFT JOIN events e ON e.federation_id = f.id GROUP BY f.id"
    ):
        if counted != (newest or 0):
            world.violated(
                "I4", f"the newest event of {federation_id} is missing"
            )  # older ones go with their rounds


def _scores(world: World, connection: sqlite3.Connection) -> None:
    """I20: scores are of clients that joined their round, and final ones of the last published round."""
    strangers = connection.execute(
        "SELECT count(*) FROM scores s LEFT JOIN participations p"
        " ON p.round_id = s.round_id AND p.client_id = s.client_id WHERE p.client_id IS NULL"
    ).fetchone()[0]
    if strangers:
        world.violated("I20", f"{strangers} scores are of clients that did not join their rounds")
    (last,) = connection.execute("SELECT max(number) FROM rounds WHERE state = 'published'").fetchone()
    for number, stored in connection.execute(
        "SELECT r.number, s.scores FROM scores s JOIN rounds r ON r.id = s.round_id"
    ):
        world.count("scores")
        if json.loads(stored)["final"] is None:
            continue
        world.count("final scores")
        if number != last:
            world.violated("I20", f"round {number} has final scores, and {last} is the last published round")
