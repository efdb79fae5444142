"""What a client is told of a round, signed: which weights, which plan, which roster, until when, after what.

A client gets one manifest per round, when it joins. Each names the one before, so that a client which keeps
them notices a coordinator that goes back, stands still or tells two stories.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.engine import run
from coordinator.db.tables.federations import FederationRow
from coordinator.db.tables.identity import ManifestRow
from coordinator.enrolment import roster
from coordinator.storage.server_key import ServerKey
from schemas.identity.documents import hash_of
from schemas.messages.rounds import Previous, RoundManifest, SignedDocument
from schemas.wire.digests import digest_of

_OF_CLIENT = ManifestRow.client_id == bindparam("client")
_OF_ROUND = select(ManifestRow.document).where(_OF_CLIENT, ManifestRow.round_number == bindparam("number"))
_BEFORE = (
    select(ManifestRow.round_number, ManifestRow.hash)
    .where(_OF_CLIENT, ManifestRow.round_number < bindparam("number"))
    .order_by(ManifestRow.round_number.desc())
    .limit(1)
)
_KEEP = insert(ManifestRow)


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """Write a federation's resolved plan as it is served and hashed: the stored one never changes."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def of(session: Session, client_id: str, number: int) -> SignedDocument | None:
    """Which manifest was a client given for a round?"""
    return run(session, _OF_ROUND, {"client": client_id, "number": number}).scalar()


def issue(
    session: Session,
    plan: dict[str, Any],
    member: Member,
    number: int,
    *,
    weights: str,
    deadline: datetime | None,
    moment: datetime,
    key: ServerKey,
) -> SignedDocument:
    """Sign and keep a client's manifest of a round, in the transaction that joins it."""
    # The newest link whatever the clock says, which may have stepped back: the federation's row is locked.
    document = _signed(
        session,
        plan,
        member,
        number,
        weights=weights,
        deadline=deadline,
        moment=moment,
        listed=roster.newest(session, member.federation_id),
        key=key,
    )
    kept = {"client_id": member.client_id, "round_number": number}
    run(session, _KEEP, {**kept, "document": document, "hash": hash_of(document)})
    return document


def final(
    session: Session, federation: FederationRow, member: Member, number: int, weights: str, key: ServerKey
) -> SignedDocument:
    """Sign the manifest of the final weights; it is the same whenever it is asked for."""
    moment = federation.finished_at
    if moment is None:
        raise LookupError("the federation is not finished")
    return _signed(
        session,
        federation.plan,
        member,
        number,
        weights=weights,
        deadline=None,
        moment=moment,
        listed=roster.newest(session, federation.id, until=moment),
        key=key,
    )


def _signed(
    session: Session,
    plan: dict[str, Any],
    member: Member,
    number: int,
    *,
    weights: str,
    deadline: datetime | None,
    moment: datetime,
    listed: roster.Link | None,
    key: ServerKey,
) -> dict[str, Any]:
    last = run(session, _BEFORE, {"client": member.client_id, "number": number}).first()
    manifest = RoundManifest(
        federation=member.federation_id,
        client=member.client_id,
        round=number,
        weights=weights,
        plan=digest_of(plan_bytes(plan)),
        roster_version=listed.version if listed is not None else 0,
        roster_hash=listed.hash if listed is not None else None,
        deadline=deadline,
        issued_at=moment,
        previous=Previous(round=last.round_number, hash=last.hash) if last is not None else None,
        signature="",
    )
    document: dict[str, Any] = manifest.model_dump(mode="json")
    return document | {"signature": key.sign("tessera-round-v1", document)}
