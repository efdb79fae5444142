"""The rows of updates: accepted adapter states, and what is asked about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from coordinator import payloads
from coordinator.alignment_tables import PackRow
from coordinator.database import run
from coordinator.errors import NotFound
from coordinator.rounds import parts
from coordinator.tables import FederationRow, ParticipationRow, RoundRow, UpdateRow
from coordinator.times import clock
from coordinator.updates.intake import Verdict
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
_RECEIPT = (
    select(clock(), *_RECEIVED)
    .select_from(ParticipationRow)
    .outerjoin(
        UpdateRow,
        (UpdateRow.round_id == ParticipationRow.round_id)
        & (UpdateRow.client_id == ParticipationRow.client_id),
    )
    .where(ParticipationRow.round_id == bindparam("round"), ParticipationRow.client_id == bindparam("client"))
)
_STANDING = (
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
    .where(FederationRow.id == bindparam("fid"), RoundRow.number == bindparam("number"))
)
_KEEP = insert(UpdateRow)


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes whose digest is known, in pieces."""

    digest: str
    size: int
    pieces: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Kept:
    """Where an update's bytes are: as received, and as float32 state from `state_begin` on."""

    payload_id: int
    state_payload_id: int
    state_begin: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a client stands in a round that it may have an update of.

    Attributes:
        state: the round's.
        base: the digest of the weights that the client was told to start from; None = it did not join.
        pack: the digest of the alignment pack of the client's base model, if there is one.
        receipt: what it got for its update; None = it has not delivered.
    """

    plan: FederationPlan
    state: str
    base: str | None
    pack: str | None
    receipt: Receipt | None


def standing(session: Session, fid: str, number: int, client_id: str, base_model: str) -> Standing:
    """How does a client stand in the round of this number?

    Raises:
        NotFound: there is no such round.
    """
    which = {"fid": fid, "number": number, "client": client_id, "base_model": base_model}
    found = run(session, _STANDING, which).first()
    if found is None:
        raise NotFound
    plan, state, base, pack, *received = found
    return Standing(FederationPlan.model_validate(plan), state, base, pack, _as_receipt(*received))


def receipt(session: Session, round_id: int, client_id: str) -> tuple[datetime, Receipt | None]:
    """What time is it, and which receipt did a client that joined a round get for its update?"""
    found: Any = run(session, _RECEIPT, {"round": round_id, "client": client_id}).one()
    moment, *received = found
    return moment, _as_receipt(*received)


def newest(session: Session, client_id: str, number: int | None) -> UpdateRow | None:
    """Which is a client's last update that counts, or that of round `number`?"""
    query = select(UpdateRow).where(UpdateRow.client_id == client_id)
    if number is None:
        query = query.where(UpdateRow.reject_reason.is_(None))
    else:
        query = query.where(UpdateRow.round_number == number)
    return session.scalar(query.order_by(UpdateRow.round_number.desc()).limit(1))


def keep(
    session: Session,
    row: RoundRow,
    client_id: str,
    *,
    received: Content,
    kept: Kept,
    verdict: Verdict,
    layout: Layout,
    pack: str | None,
    moment: datetime,
) -> Receipt:
    """Write down an accepted update and its signature, and that its client has arrived."""
    run(
        session,
        _KEEP,
        {
            "federation_id": row.federation_id,
            "round_id": row.id,
            "round_number": row.number,
            "client_id": client_id,
            "digest": received.digest,
            "bytes": received.size,
            "payload_id": kept.payload_id,
            "state_payload_id": kept.state_payload_id,
            "state_begin": kept.state_begin,
            "layout": [[name, list(shape)] for name, shape in layout.items()],
            "norm": verdict.norm,
            "clipped": verdict.clipped,
            "examples": verdict.examples,
            "pack_digest": pack,
            "received_at": moment,
            "reject_reason": None,
        },
    )
    if verdict.signature is not None:
        parts.keep_signature(session, row, client_id, "update", verdict.signature)
    parts.arrive(session, row.id, client_id, received.size)
    return Receipt(
        digest=received.digest,
        received_at=moment,
        bytes=received.size,
        round=row.number,
        client=client_id,
        clipped=verdict.clipped,
    )


def keep_payloads(session: Session, received: Content, state: Content | int) -> Kept:
    """Keep the received bytes; `state` is the decoded copy, or where the state begins in them."""
    payload_id = payloads.store(session, received.digest, received.size, received.pieces)
    if isinstance(state, int):
        return Kept(payload_id, payload_id, state)
    return Kept(payload_id, payloads.store(session, state.digest, state.size, state.pieces), 0)


def _as_receipt(
    digest: str | None, received_at: datetime, size: int, number: int, client: str, clipped: bool
) -> Receipt | None:
    if digest is None:
        return None
    return Receipt(
        digest=digest, received_at=received_at, bytes=size, round=number, client=client, clipped=clipped
    )
