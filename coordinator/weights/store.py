"""Which stored bytes a client is served in a round, as they are or in a recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import (
    FederationRow,
    ParticipationRow,
    PayloadRow,
    RoundRow,
    WeightsRow,
)
from coordinator.db.tables.weights import CodedWeightsRow
from coordinator.errors import NotFound, NotJoined
from coordinator.http.downloads import Stored
from coordinator.rounds import base_weights
from coordinator.rounds import store as rounds
from coordinator.rounds.base_weights import Given
from coordinator.storage import payloads
from schemas.messages.recipes import RecipeName
from schemas.wire.envelope import MEDIA_TYPE

_PLACE = (
    select(FederationRow.state, RoundRow.id, ParticipationRow.client_id)
    .outerjoin(
        RoundRow, (RoundRow.federation_id == FederationRow.id) & (RoundRow.number == bindparam("number"))
    )
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(FederationRow.id == bindparam("fid"))
)
_GIVE = insert(WeightsRow)
_CODED = (
    select(PayloadRow.id, PayloadRow.digest, PayloadRow.bytes)
    .select_from(CodedWeightsRow)
    .outerjoin(PayloadRow, PayloadRow.id == CodedWeightsRow.payload_id)
    .where(
        CodedWeightsRow.federation_id == bindparam("federation_id"),
        CodedWeightsRow.client_id == bindparam("client_id"),
        CodedWeightsRow.round_number == bindparam("round_number"),
        CodedWeightsRow.recipe == bindparam("recipe"),
    )
)
_KEEP = {
    kind: make(CodedWeightsRow).on_conflict_do_nothing()
    for kind, make in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert))
}


@dataclass(frozen=True, slots=True)
class Served:
    """The weights a client may read, and the round whose traffic they are (None = after the end)."""

    weights: Given
    round_id: int | None


def served(session: Session, fid: str, client_id: str, number: int) -> Served:
    """Which weights does a client read in round `number`, or, when all is over, in the round after the last?

    Raises:
        NotFound: there is no such round, or nothing was ever made for this client.
        NotJoined: the client does not take part in it.
    """
    found = run(session, _PLACE, {"fid": fid, "number": number, "client": client_id}).first()
    if found is None:
        raise NotFound
    state, round_id, joined = found
    if state == "finished" and number == rounds.published(session, fid)[1] + 1:
        return Served(_or_not_found(base_weights.newest(session, client_id)), None)
    if round_id is None:
        raise NotFound
    if joined is None:
        raise NotJoined
    return Served(_or_not_found(base_weights.newest(session, client_id, number)), round_id)


def give(session: Session, fid: str, client_id: str, number: int, stored: Stored, moment: datetime) -> None:
    """Let a client be served these bytes from the start of round `number` on."""
    run(
        session,
        _GIVE,
        {
            "federation_id": fid,
            "round_number": number,
            "client_id": client_id,
            "payload_id": stored.payload_id,
            "head": stored.head,
            "begin": stored.begin,
            "digest": stored.digest,
            "bytes": stored.size,
            "created_at": moment,
        },
    )


@dataclass(frozen=True, slots=True)
class InRecipe:
    """Which of a client's weights are meant: those of a round, in a recipe."""

    federation_id: str
    client_id: str
    round_number: int
    recipe: RecipeName


@dataclass(frozen=True, slots=True)
class Made:
    """What weights are in a recipe: bytes that are kept; None = they cannot be written in it."""

    stored: Stored | None


def coded(session: Session, which: InRecipe) -> Made | None:
    """What are weights in a recipe? None = nobody has asked yet."""
    found = run(session, _CODED, asdict(which)).first()
    if found is None:
        return None
    payload_id, digest, size = found
    return Made(_coded(payload_id, digest, size) if digest is not None else None)


def keep_coded(session: Session, which: InRecipe, body: bytes | None) -> Made:
    """Keep what weights are in a recipe; a replica that was first has kept the same."""
    stored = None
    if body is not None:
        payload_id, digest = payloads.store_bytes(session, body)
        stored = _coded(payload_id, digest, len(body))
    kept = asdict(which) | {"payload_id": stored.payload_id if stored is not None else None}
    run(session, _KEEP[session.get_bind().dialect.name], kept)
    return Made(stored)


def _coded(payload_id: int, digest: str, size: int) -> Stored:
    return Stored(payload_id, digest, size, MEDIA_TYPE, encoding="zstd")


def _or_not_found(given: Given | None) -> Given:
    if given is None:
        raise NotFound
    return given
