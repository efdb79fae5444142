"""Issue signed round manifests: weights, plan, roster and deadline, chained to the client's previous one."""

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

_IS_CLIENT = ManifestRow.client_id == bindparam("client")
_ROUND_MANIFEST = select(ManifestRow.document).where(
    _IS_CLIENT, ManifestRow.round_number == bindparam("number")
)
_BEFORE = (
    select(ManifestRow.round_number, ManifestRow.hash)
    .where(_IS_CLIENT, ManifestRow.round_number < bindparam("number"))
    .order_by(ManifestRow.round_number.desc())
    .limit(1)
)
_INSERT = insert(ManifestRow)


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """Encode a federation's resolved plan, as it is served and hashed."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def get(session: Session, client_id: str, round_number: int) -> SignedDocument | None:
    return run(session, _ROUND_MANIFEST, {"client": client_id, "number": round_number}).scalar()


def issue(
    session: Session,
    plan: dict[str, Any],
    member: Member,
    round_number: int,
    *,
    weights: str,
    deadline: datetime | None,
    now: datetime,
    key: ServerKey,
) -> SignedDocument:
    """Sign and store a client's manifest of a round, in the transaction of its join.

    A client that stores its manifests detects a coordinator that rolls back, stalls or forks the chain.
    """
    # No time limit for the roster link, as the clock may have stepped back: the federation's row is locked.
    document = _signed(
        session,
        plan,
        member,
        round_number,
        weights=weights,
        deadline=deadline,
        now=now,
        listed=roster.newest(session, member.federation_id),
        key=key,
    )
    values = {"client_id": member.client_id, "round_number": round_number}
    run(session, _INSERT, {**values, "document": document, "hash": hash_of(document)})
    return document


def final(
    session: Session,
    federation: FederationRow,
    member: Member,
    round_number: int,
    weights: str,
    key: ServerKey,
) -> SignedDocument:
    """Sign the manifest of the final weights; repeated calls return the same document."""
    now = federation.finished_at
    if now is None:
        raise LookupError("the federation is not finished")
    return _signed(
        session,
        federation.plan,
        member,
        round_number,
        weights=weights,
        deadline=None,
        now=now,
        listed=roster.newest(session, federation.id, until=now),
        key=key,
    )


def _signed(
    session: Session,
    plan: dict[str, Any],
    member: Member,
    round_number: int,
    *,
    weights: str,
    deadline: datetime | None,
    now: datetime,
    listed: roster.Link | None,
    key: ServerKey,
) -> dict[str, Any]:
    # Each manifest names its predecessor, so that a client notices a missing or replaced one.
    last = run(session, _BEFORE, {"client": member.client_id, "number": round_number}).first()
    manifest = RoundManifest(
        federation=member.federation_id,
        client=member.client_id,
        round=round_number,
        weights=weights,
        plan=digest_of(plan_bytes(plan)),
        roster_version=listed.version if listed is not None else 0,
        roster_hash=listed.hash if listed is not None else None,
        deadline=deadline,
        issued_at=now,
        previous=Previous(round=last.round_number, hash=last.hash) if last is not None else None,
        signature="",
    )
    document: dict[str, Any] = manifest.model_dump(mode="json")
    return document | {"signature": key.sign("tessera-round-v1", document)}
