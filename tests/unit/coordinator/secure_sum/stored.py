"""Sessions with closed phases, stored directly in a database: their sums can be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select, update

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.enrolment import roster
from coordinator.federations import store as federations
from coordinator.rounds import store as rounds
from coordinator.secure_sum import opening, store
from coordinator.secure_sum.leases import SumClaim, claim_due
from coordinator.secure_sum.phases import Phase
from coordinator.secure_sum.worker import SumWorker
from coordinator.storage import payloads
from coordinator.storage.server_key import ServerKey
from schemas.identity.keys import encode, name_of
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import UnmaskStep
from schemas.secure_sum.encoding import Modulus, largest_encoded
from schemas.secure_sum.terms import terms_hash
from schemas.wire.digests import digest_of
from tests.scene.coordinator import PROFILE
from tests.scene.plans import federation_plan
from tests.scene.secure_sums import Session, identity, inputs_of, terms_of
from tests.unit.coordinator.rows import client_row, participation_row

KEY = ServerKey(bytes(range(32)))
LEASE_SECONDS = 60.0
ROUND = 3  # that of the terms
AT_ONCE = timedelta(days=-1)
"""A grace that spares nothing."""

PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "confirm", "unmask")


class ServiceStopped(Exception):
    """The service stops."""


@dataclass
class Stored:
    """A stored session; `played` is the same session in memory, with its members and inputs."""

    database: Database
    federation_id: str
    played: Session
    round_id: int = 0
    session_id: int = 0
    payloads: list[int] = field(default_factory=list)

    def row(self) -> RoundRow:
        with self.database.read() as session:
            return session.get_one(RoundRow, self.round_id)

    def session(self) -> SumSessionRow:
        with self.database.read() as session:
            return session.get_one(SumSessionRow, self.session_id)

    def federation(self) -> FederationRow:
        with self.database.read() as session:
            return session.get_one(FederationRow, self.federation_id)

    def states(self) -> dict[int, str]:
        """Return the states of participations by position."""
        with self.database.read() as session:
            rows = session.scalars(
                select(ParticipationRow)
                .where(ParticipationRow.round_id == self.round_id)
                .order_by(ParticipationRow.client_id)
            )
            return {position: row.state for position, row in enumerate(rows)}

    def messages(self) -> list[SumMessageRow]:
        with self.database.read() as session:
            return list(session.scalars(select(SumMessageRow)))

    def total(self) -> NDArray[np.int64]:
        row = self.session()
        assert row.total_payload_id is not None
        with self.database.read() as session:
            octets = payloads.read(session, row.total_payload_id, 0, 4 * self.played.terms.values)
        return np.frombuffer(octets, "<i4").astype(np.int64)

    def claim(self, lease_seconds: float = LEASE_SECONDS) -> SumClaim:
        claim = claim_due(self.database, lease_seconds)
        assert claim is not None
        assert claim.session_id == self.session_id
        return claim

    def open(self, claim: SumClaim | None = None, *, block_bytes: int = 2**20) -> int:
        return opening.open_sum(
            self.database, claim or self.claim(), KEY, block_bytes=block_bytes, between=lambda: None
        )

    def expire(self) -> None:
        """Expire the lease."""
        with self.database.write() as session:
            session.execute(update(SumSessionRow).values(lease_expires_at=database_time(session)))


def plan(**secure_sum: Any) -> FederationPlan:
    return federation_plan(
        adapter={"rank": 2, "blocks": 1, "roles": ["q"]},
        rounds={"min_clients": 3, "total": 9},
        privacy={"secure_sum": {"minimum": 3, **secure_sum}},
    )


def stored_session(
    database: Database,
    members: int = 5,
    *,
    values: int = 20,
    stops: dict[int, int] | None = None,
    masking: str = "pairwise",
    number: int = 1,
    **secure_sum: Any,
) -> Stored:
    """Store a federation whose round is summed, with a session in state `opening`."""
    segments = [{"name": "lora", "values": values, "clip": 1 << 20}]
    with database.write() as session:
        federation = federations.create(session, plan(masking=masking, **secure_sum))
        federation.state = "running"
    terms = terms_of(members, segments=segments, masking=masking, session=number)
    played = Session(terms, inputs_of(members, values), stops or {}, {"masking": masking})
    _play_phases(played)
    stored = Stored(database, federation.id, played)
    _store_round(stored)
    _store_session(stored)
    return stored


def _play_phases(played: Session) -> None:
    if played.terms.masking == "pairwise":
        played.run_steps()
        return
    modulus = Modulus(played.terms.modulus)
    for position, values in played.inputs.items():
        if played.stops.get(position, 5) > 2:
            played.masked[position] = modulus.pack(values.astype(np.int64).astype(modulus.word))


def _store_round(stored: Stored) -> None:
    with stored.database.write() as session:
        now = database_time(session)
        row = rounds.open_round(session, stored.federation_id, ROUND, now)
        row.state, row.collecting_at, row.summing_at = "summing", now, now
        stored.round_id = row.id
        for position, member in enumerate(stored.played.terms.members):
            facts = {"base_model": PROFILE["base_model"], "profile": PROFILE}
            client = client_row(stored.federation_id, member.client, now, **facts)
            session.add(client)
            session.flush()
            roster.append(session, client, "enrolled", name_of(identity(position)), now)
            session.add(participation_row(row.id, member.client, "ready", now, ready_at=now))


def _store_session(stored: Stored) -> None:
    played = stored.played
    sent = {
        "keys": played.keys,
        "shares": played.shares,
        "masked": played.masked,
        "confirm": played.confirmed,
        "unmask": played.unmasked,
    }
    with stored.database.write() as session:
        now = database_time(session)
        row = store.open_session(
            session, stored.federation_id, stored.round_id, played.terms, terms_hash(played.terms), now
        )
        stored.session_id = row.id
        phases = PHASES if played.terms.masking == "pairwise" else ("masked",)
        for place, phase in enumerate(phases):
            for position, message in sent[phase].items():  # type: ignore[attr-defined]
                if phase == "masked":
                    payload_id, digest = payloads.store_bytes(session, message)
                    stored.payloads.append(payload_id)
                    add = {"payload_id": payload_id}
                else:
                    body = message.model_dump_json().encode()
                    digest, add = digest_of(body), {"body": body}
                store.add_message(session, row.id, position, phase, digest, now, **add)
                if phase == "unmask":
                    store.mark_spent(session, row.id, position)
            to = phases[place + 1] if place + 1 < len(phases) else store.OPENING
            store.close_phase(session, stored.federation_id, row, to, sorted(sent[phase]), now)  # type: ignore[arg-type]


def worker(database: Database, check: Callable[[], None] = lambda: None) -> SumWorker:
    """Return a worker of this process; `check` may raise `ServiceStopped`."""
    return SumWorker(
        database, KEY, lease_seconds=LEASE_SECONDS, block_bytes=2**20, check=check, stopped=ServiceStopped
    )


def spoil(stored: Stored) -> None:
    """Store a vector of member 0 whose first word is far from every input."""
    modulus = Modulus(stored.played.terms.modulus)
    words = modulus.unpack(stored.played.masked[0]).copy()
    words[0] += 20 * largest_encoded(16)
    octets = modulus.pack(words)
    with stored.database.write() as session:
        message = session.get_one(SumMessageRow, (stored.session_id, 0, "masked"))
        message.payload_id, message.digest = payloads.store_bytes(session, octets)


def falsify(stored: Stored, holders: Iterable[int]) -> None:
    """Store false shares of the secrets of member 0."""
    with stored.database.write() as session:
        for holder in holders:
            message = session.get_one(SumMessageRow, (stored.session_id, holder, "unmask"))
            step = UnmaskStep.model_validate_json(message.body or b"")
            false = step.shares[0].model_copy(update={"share": encode(bytes(32) + bytes([holder]))})
            message.body = (
                step.model_copy(update={"shares": [false, *step.shares[1:]]}).model_dump_json().encode()
            )
            message.digest = digest_of(message.body)
