"""Store accepted updates, and query them with the receipts that clients received."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from coordinator.db.clock import clock
from coordinator.db.engine import run
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow, UpdateRow
from coordinator.errors import NotFound
from coordinator.rounds import participations
from coordinator.storage import payloads
from coordinator.updates.validation import ValidationResult
from schemas.maths.adapter import Layout
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import Receipt

_RECEIVED = (
    UpdateRow.digest,
    UpdateRow.received_at,
    UpdateRow.bytes,
    UpdateRow.round_number,
    UpdateRow.client_id,
    UpdateRow.clipped,
)
_RECEIPTS = (
    select(clock(), ParticipationRow.client_id, *_RECEIVED)
    .select_from(ParticipationRow)
    .outerjoin(
        UpdateRow,
        (UpdateRow.round_id == ParticipationRow.round_id)
        & (UpdateRow.client_id == ParticipationRow.client_id),
    )
    .where(
        ParticipationRow.round_id == bindparam("round"),
        ParticipationRow.client_id.in_(bindparam("clients", expanding=True)),
    )
)
_CONTEXT = (
    select(FederationRow.plan, RoundRow.state, ParticipationRow.base_digest, PackRow.digest, *_RECEIVED)
    .join(RoundRow, RoundRow.federation_id == FederationRow.id)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .outerjoin(
        PackRow, (PackRow.federation_id == FederationRow.id) & (PackRow.base_model == bindparam("base_model"))
    )
    .outerjoin(UpdateRow, (UpdateRow.round_id == RoundRow.id) & (UpdateRow.client_id == bindparam("client")))
    .where(FederationRow.id == bindparam("federation_id"), RoundRow.number == bindparam("number"))
)
_INSERT = insert(UpdateRow)


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of a computed digest; each call of `pieces` reads them from the beginning."""

    digest: str
    size: int
    pieces: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """The payloads of an update: as received, and as float32 state from byte `state_begin` on."""

    payload_id: int
    state_payload_id: int
    state_begin: int


@dataclass(frozen=True, slots=True)
class AcceptedUpdate:
    """A validated update whose payloads are stored."""

    client_id: str
    received: Content
    stored: StoredPayload
    result: ValidationResult
    layout: Layout
    pack: str | None


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """The state of a round for one client's update.

    Attributes:
        state: state of the round.
        base: digest of the weights that the client trains from; None = it has not joined.
        pack: digest of the alignment pack of the client's base model, if one is stored.
        receipt: receipt of the stored update; None = none was accepted.
    """

    plan: FederationPlan
    state: str
    base: str | None
    pack: str | None
    receipt: Receipt | None


def load_context(
    session: Session, federation_id: str, round_number: int, client_id: str, base_model: str
) -> UpdateContext:
    """Load the state of a round for one client's update.

    Raises:
        NotFound: the round does not exist.
    """
    parameters = {
        "federation_id": federation_id,
        "number": round_number,
        "client": client_id,
        "base_model": base_model,
    }
    row = run(session, _CONTEXT, parameters).first()
    if row is None:
        raise NotFound
    plan, state, base, pack, *received = row
    return UpdateContext(FederationPlan.model_validate(plan), state, base, pack, _as_receipt(*received))


def receipts(session: Session, round_id: int, clients: Sequence[str]) -> tuple[datetime, dict[str, Receipt]]:
    """Return the database time, and a round's stored receipts by client id; all clients must have joined."""
    rows: Any = run(session, _RECEIPTS, {"round": round_id, "clients": clients}).all()
    receipts_by_client = {client_id: _as_receipt(*received) for _, client_id, *received in rows}
    return rows[0][0], {
        client_id: receipt for client_id, receipt in receipts_by_client.items() if receipt is not None
    }


def newest(session: Session, client_id: str, round_number: int | None) -> UpdateRow | None:
    query = select(UpdateRow).where(UpdateRow.client_id == client_id)
    if round_number is None:
        query = query.where(UpdateRow.reject_reason.is_(None))
    else:
        query = query.where(UpdateRow.round_number == round_number)
    return session.scalar(query.order_by(UpdateRow.round_number.desc()).limit(1))


def insert_updates(
    session: Session, row: RoundRow, updates: Sequence[AcceptedUpdate], now: datetime
) -> dict[str, Receipt]:
    """Insert updates, one per client, with their sketches; return the receipts by client id."""
    run(session, _INSERT, [_values(row, update, now) for update in updates])
    for update in updates:
        if update.result.sketch is not None:
            participations.store_sketch(session, row, update.client_id, "update", update.result.sketch)
    sizes = {update.client_id: update.received.size for update in updates}
    participations.mark_arrived(session, row.id, sizes)
    return {
        update.client_id: Receipt(
            digest=update.received.digest,
            received_at=now,
            bytes=update.received.size,
            round=row.number,
            client=update.client_id,
            clipped=update.result.clipped,
        )
        for update in updates
    }


def _values(row: RoundRow, update: AcceptedUpdate, now: datetime) -> dict[str, Any]:
    return {
        "federation_id": row.federation_id,
        "round_id": row.id,
        "round_number": row.number,
        "client_id": update.client_id,
        "digest": update.received.digest,
        "bytes": update.received.size,
        "payload_id": update.stored.payload_id,
        "state_payload_id": update.stored.state_payload_id,
        "state_begin": update.stored.state_begin,
        "layout": [[name, list(shape)] for name, shape in update.layout.items()],
        "norm": update.result.norm,
        "clipped": update.result.clipped,
        "training_epsilon": update.result.training_epsilon,
        "examples": update.result.examples,
        "pack_digest": update.pack,
        "received_at": now,
        "reject_reason": None,
    }


def store_payloads(session: Session, contents: Iterable[Content]) -> dict[str, int]:
    """Store payloads in the order of their digests; return payload ids by digest."""
    contents_by_digest = {content.digest: content for content in contents}
    return {
        digest: payloads.store(session, digest, content.size, content.pieces())
        # In one order: two transactions that store the same payloads would deadlock otherwise.
        for digest, content in sorted(contents_by_digest.items())
    }


def _as_receipt(
    digest: str | None, received_at: datetime, size: int, round_number: int, client_id: str, clipped: bool
) -> Receipt | None:
    if digest is None:
        return None
    return Receipt(
        digest=digest,
        received_at=received_at,
        bytes=size,
        round=round_number,
        client=client_id,
        clipped=clipped,
    )
