"""Read and write the weights that clients are served, as stored and encoded by a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import (
    CodedWeightsRow,
    FederationRow,
    ParticipationRow,
    PayloadRow,
    RoundRow,
    WeightsRow,
)
from coordinator.errors import NotFound, NotJoined
from coordinator.http.downloads import StoredBody
from coordinator.rounds import base_weights
from coordinator.rounds import store as rounds
from coordinator.rounds.base_weights import ServedWeights
from coordinator.storage import payloads
from schemas.messages.recipes import RecipeName
from schemas.wire.envelope import MEDIA_TYPE

SERVED: Final = "served"
OUTPUTS: Final = "outputs"
ZEROS: Final = "zeros"

_PLACE = (
    select(FederationRow.state, RoundRow.id, ParticipationRow.base_digest)
    .outerjoin(
        RoundRow, (RoundRow.federation_id == FederationRow.id) & (RoundRow.number == bindparam("number"))
    )
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(FederationRow.id == bindparam("federation_id"))
)
_ASSIGN = insert(WeightsRow)
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
_STORE = {
    kind: make(CodedWeightsRow).on_conflict_do_nothing()
    for kind, make in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert))
}


@dataclass(frozen=True, slots=True)
class ReadableWeights:
    """The weights a client may read, and the round whose traffic they are (None = after the end)."""

    weights: ServedWeights
    round_id: int | None


def served(session: Session, federation_id: str, client_id: str, round_number: int) -> ReadableWeights:
    """Return the weights that a client reads in a round, or after the last round of a finished federation.

    Raises:
        NotFound: there is no such round, or the weights from which this client started it are not stored.
        NotJoined: the client does not take part in the round.
    """
    row = run(
        session, _PLACE, {"federation_id": federation_id, "number": round_number, "client": client_id}
    ).first()
    if row is None:
        raise NotFound
    state, round_id, base_digest = row
    if state == "finished":
        _, last = rounds.published(session, federation_id)
        if round_number == base_weights.final_round(session, client_id, last):
            weights = base_weights.newest(session, client_id)
            if weights is None:
                raise NotFound
            return ReadableWeights(weights, None)
    if round_id is None:
        raise NotFound
    if base_digest is None:
        raise NotJoined
    weights = base_weights.newest(session, client_id, round_number)
    # The weights of a replaced alignment pack may be deleted; older ones are not those of this round.
    if weights is None or weights.digest != base_digest:
        raise NotFound
    return ReadableWeights(weights, round_id)


def assign(
    session: Session, federation_id: str, client_id: str, round_number: int, stored: StoredBody, now: datetime
) -> None:
    run(
        session,
        _ASSIGN,
        {
            "federation_id": federation_id,
            "round_number": round_number,
            "client_id": client_id,
            "payload_id": stored.payload_id,
            "head": stored.head,
            "begin": stored.begin,
            "digest": stored.digest,
            "bytes": stored.size,
            "created_at": now,
        },
    )


def store_bodies(
    session: Session,
    federation_id: str,
    round_number: int,
    form: Literal["served", "outputs"],
    payload_ids: Mapping[str, int],
) -> None:
    """Store by client the bodies that were published with the weights for a round.

    `SERVED` are the differences by which clients reconstruct them, `OUTPUTS` the mixtures beside them.
    """
    place = {"federation_id": federation_id, "round_number": round_number, "recipe": form}
    rows = [{**place, "client_id": client, "payload_id": number} for client, number in payload_ids.items()]
    if rows:
        run(session, insert(CodedWeightsRow), rows)


@dataclass(frozen=True, slots=True)
class EncodedKey:
    """The weights of a client for a round, in a recipe; see `store_bodies` for those that were published.

    `ZEROS` are zeros, compressed when they were first requested.
    """

    federation_id: str
    client_id: str
    round_number: int
    recipe: RecipeName | Literal["served", "outputs", "zeros"]


@dataclass(frozen=True, slots=True)
class EncodedWeights:
    """The stored result of encoding weights; None = the recipe cannot encode them."""

    stored: StoredBody | None


def find_encoded(session: Session, key: EncodedKey) -> EncodedWeights | None:
    """Return the stored result of encoding weights; None = they were not requested yet."""
    row = run(session, _CODED, asdict(key)).first()
    if row is None:
        return None
    payload_id, digest, size = row
    return EncodedWeights(_encoded(payload_id, digest, size) if digest is not None else None)


def store_encoded(session: Session, key: EncodedKey, body: bytes | None) -> EncodedWeights:
    """Store the result of encoding weights; a faster replica has stored the same."""
    stored = None
    if body is not None:
        payload_id, digest = payloads.store_bytes(session, body)
        stored = _encoded(payload_id, digest, len(body))
    values = asdict(key) | {"payload_id": stored.payload_id if stored is not None else None}
    # A faster replica has stored the same.
    run(session, _STORE[session.get_bind().dialect.name], values)
    return EncodedWeights(stored)


def _encoded(payload_id: int, digest: str, size: int) -> StoredBody:
    return StoredBody(payload_id, digest, size, MEDIA_TYPE, encoding="zstd")
