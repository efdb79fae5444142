"""A bank of experts after some summed rounds, stored directly: a birth, a merge, a pruned expert."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.experts import ExpertRow
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.experts import store
from coordinator.experts.announcements import announce
from coordinator.experts.bank import Bank, RoundCounts, RoundSums, new_bank
from coordinator.experts.bodies import expert_head
from coordinator.experts.equivalence import Cost
from coordinator.experts.float16 import EXPERT_DTYPE
from coordinator.experts.registry import after_round, is_birth_due
from coordinator.experts.store import Revision
from coordinator.rounds import store as rounds
from coordinator.storage import payloads
from coordinator.strategies.bank_rules import Rules
from schemas.wire.digests import digest_of

LAYOUT = {"l0.q.A": (2, 3), "l0.q.B": (4, 2)}
PLAN = {
    "strategy": {"name": "fed_vemoe"},
    "privacy": {"secure_sum": {"masking": "none"}},
    "rounds": {"min_clients": 5},
}
"""Of a federation with a bank."""

RULES = Rules()
EXPERTS, MEMBERS = 4, 15
COUNTS = {
    4: RoundCounts(MEMBERS, {1: 7, 2: 4, 3: 4, 4: 0}, rejects=5),
    5: RoundCounts(MEMBERS, {1: 7, 2: 4, 3: 4, 4: 0}, rejects=5),
    6: RoundCounts(MEMBERS, {1: 8, 3: 3, 4: 0, 5: 4}, rejects=0),
}
"""The counts of each round."""

ALIKE = {(1, 2): Cost(7, 0.0, 0.0), (2, 1): Cost(4, 0.0, 0.0)}
"""Experts 1 and 2 cost nothing in each other's place."""


@dataclass(frozen=True)
class StoredBody:
    """A revision, and the bytes that clients download."""

    revision: Revision
    body: bytes


def store_new(session: Session, federation_id: str, bank: Bank) -> None:
    """Store a bank as after a round, without the round's memory."""
    session.add_all(ExpertRow(federation_id=federation_id, **asdict(expert)) for expert in bank.experts)
    session.flush()


def store_bank(database: Database, federation_id: str) -> list[StoredBody]:
    """Store a bank of four experts after rounds 4 to 6, and return a revision of expert 1 after each.

    Experts 1 and 2 are alike, nobody uses expert 4, and five members fit none in rounds 4 and 5.
    """
    with database.write() as session:
        federation = lock_federation(session, federation_id)
        store_new(session, federation_id, new_bank(EXPERTS, RULES, 0))
        bodies = [_store_round(session, federation.id, number) for number in COUNTS]
    return bodies


def _store_round(session, federation_id: str, number: int) -> StoredBody:
    bank, counts = store.load(session, federation_id), COUNTS[number]
    responsibilities = {expert: float(count) for expert, count in counts.users.items() if count}
    sums = RoundSums(counts, responsibilities, is_birth_due(bank, RULES, counts, 0, number), ALIKE)
    outcome = after_round(bank, RULES, sums, number)
    store.store_round(session, federation_id, number, sums, outcome)
    now = database_time(session)
    row = rounds.open_round(session, federation_id, number, now)
    row.state, row.ended_at = "published", now
    announce(session, federation_id, row, outcome.events)
    layout = [[name, list(shape)] for name, shape in LAYOUT.items()]
    model = JointModelRow(federation_id=federation_id, round_number=number, layout=layout, losses={})
    model.digest = digest_of(b"")
    session.add(model)
    values = np.arange(number, number + 14, dtype=EXPERT_DTYPE).tobytes()
    body = expert_head(federation_id, 1, number, LAYOUT) + values
    payload_id, _ = payloads.store_bytes(session, values)
    revision = Revision(1, number, payload_id, digest_of(body), len(body), contributors=7)
    store.add_revision(session, federation_id, revision)
    return StoredBody(revision, body)
