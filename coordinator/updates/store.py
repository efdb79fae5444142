"""The rows of updates: accepted adapter states, and what is asked about them."""

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
from coordinator.updates.validation import Verdict
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
    """Bytes whose digest is known; `pieces` reads them, each time from their beginning."""

    digest: str
    size: int
    pieces: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Kept:
    """Where an update's bytes are: as received, and as float32 state from `state_begin` on."""

    payload_id: int
    state_payload_id: int
    state_begin: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """An update that counts, and where its bytes are."""

    client_id: str
    received: Content
    kept: Kept
    verdict: Verdict
    layout: Layout
    pack: str | None


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


def receipts(session: Session, round_id: int, clients: Sequence[str]) -> tuple[datetime, dict[str, Receipt]]:
    """What time is it, and which receipts of a round have these clients, who all joined it?"""
    found: Any = run(session, _RECEIPTS, {"round": round_id, "clients": clients}).all()
    told = {client: _as_receipt(*received) for _, client, *received in found}
    return found[0][0], {client: receipt for client, receipt in told.items() if receipt is not None}


def newest(session: Session, client_id: str, number: int | None) -> UpdateRow | None:
    """Which is a client's last update that counts, or that of round `number`?"""
    query = select(UpdateRow).where(UpdateRow.client_id == client_id)
    if number is None:
        query = query.where(UpdateRow.reject_reason.is_(None))
    else:
        query = query.where(UpdateRow.round_number == number)
    return session.scalar(query.order_by(UpdateRow.round_number.desc()).limit(1))


def keep(
    session: Session, row: RoundRow, accepted: Sequence[Accepted], moment: datetime
) -> dict[str, Receipt]:
    """Write down accepted updates, one of each client, and that they have arrived; give their receipts."""
    run(session, _KEEP, [_values(row, one, moment) for one in accepted])
    for one in accepted:
        if one.verdict.signature is not None:
            participations.keep_signature(session, row, one.client_id, "update", one.verdict.signature)
    participations.arrive(session, row.id, {one.client_id: one.received.size for one in accepted})
    return {
        one.client_id: Receipt(
            digest=one.received.digest,
            received_at=moment,
            bytes=one.received.size,
            round=row.number,
            client=one.client_id,
            clipped=one.verdict.clipped,
        )
        for one in accepted
    }


def _values(row: RoundRow, one: Accepted, moment: datetime) -> dict[str, Any]:
    return {
        "federation_id": row.federation_id,
        "round_id": row.id,
        "round_number": row.number,
        "client_id": one.client_id,
        "digest": one.received.digest,
        "bytes": one.received.size,
        "payload_id": one.kept.payload_id,
        "state_payload_id": one.kept.state_payload_id,
        "state_begin": one.kept.state_begin,
        "layout": [[name, list(shape)] for name, shape in one.layout.items()],
        "norm": one.verdict.norm,
        "clipped": one.verdict.clipped,
        "examples": one.verdict.examples,
        "pack_digest": one.pack,
        "received_at": moment,
        "reject_reason": None,
    }


def keep_payloads(session: Session, contents: Iterable[Content]) -> dict[str, int]:
    """Put down bytes; give their payloads' ids by digest.

    They are put down in the order of their digests: of two transactions that have several of the same, each
    would else hold what the other waits for.
    """
    of_digest = {content.digest: content for content in contents}
    return {
        digest: payloads.store(session, digest, content.size, content.pieces())
        for digest, content in sorted(of_digest.items())
    }


def _as_receipt(
    digest: str | None, received_at: datetime, size: int, number: int, client: str, clipped: bool
) -> Receipt | None:
    if digest is None:
        return None
    return Receipt(
        digest=digest, received_at=received_at, bytes=size, round=number, client=client, clipped=clipped
    )
