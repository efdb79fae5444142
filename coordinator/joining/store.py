"""Read the context of a join in one query."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, bindparam, exists, func, select
from sqlalchemy.orm import Session, aliased

from coordinator.auth.authentication import Member
from coordinator.db.clock import clock
from coordinator.db.engine import run
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow, UpdateRow, WeightsRow
from coordinator.db.tables.identity import ManifestRow
from coordinator.errors import NotFound
from coordinator.rounds.base_weights import SERVED_COLUMNS, ServedWeights
from coordinator.rounds.lifecycle import PACK_ENDED
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import SignedDocument

_CLIENT: BindParameter[str] = bindparam("client")
_NUMBER: BindParameter[int] = bindparam("number")
_Earlier = aliased(WeightsRow)
_NEWEST_WEIGHTS = (
    select(func.max(_Earlier.round_number))
    .where(
        _Earlier.federation_id == FederationRow.id,
        _Earlier.client_id == _CLIENT,
        _Earlier.round_number <= _NUMBER,
    )
    .scalar_subquery()
)
_LAST_PUBLISHED = (
    select(func.max(RoundRow.number))
    .where(RoundRow.federation_id == bindparam("federation_id"), RoundRow.state == "published")
    .scalar_subquery()
)
# Weights from before this round were computed under a pack that is void.
_LAST_ENDED = (
    select(func.max(RoundRow.number))
    .where(
        RoundRow.federation_id == bindparam("federation_id"),
        RoundRow.reason == PACK_ENDED,
        RoundRow.number < _NUMBER,
    )
    .scalar_subquery()
)
_CONTEXT = (
    select(
        clock(),
        FederationRow.plan,
        PackRow.digest,
        RoundRow.state,
        ParticipationRow.client_id,
        ManifestRow.document,
        exists().where(UpdateRow.client_id == _CLIENT, UpdateRow.reject_reason.is_(None)),
        _LAST_PUBLISHED,
        _LAST_ENDED,
        *SERVED_COLUMNS,
    )
    .select_from(FederationRow)
    .join(RoundRow, (RoundRow.federation_id == FederationRow.id) & (RoundRow.number == _NUMBER))
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == _CLIENT),
    )
    .outerjoin(
        ManifestRow, (ManifestRow.client_id == _CLIENT) & (ManifestRow.round_number == RoundRow.number)
    )
    .outerjoin(
        PackRow, (PackRow.federation_id == FederationRow.id) & (PackRow.base_model == bindparam("base_model"))
    )
    .outerjoin(
        WeightsRow,
        (WeightsRow.federation_id == FederationRow.id)
        & (WeightsRow.client_id == _CLIENT)
        & (WeightsRow.round_number == _NEWEST_WEIGHTS),
    )
    .where(FederationRow.id == bindparam("federation_id"))
)


@dataclass(frozen=True, slots=True)
class JoinContext:
    """The status of a client in a round.

    Attributes:
        read_at: the time of this status, by the database.
        stored_plan: the federation's plan.
        pack: the digest of the alignment pack of the client's base model, if there is one.
        state: the round's state.
        has_joined: whether the client takes part.
        manifest: the signed manifest of its join.
        is_established: whether it has an accepted update, not of an abandoned round. No client of a summed
            federation is: all continue from the model that was published last.
        last_published: the last published round, 0 before the first.
        newest: its last weights, for this round or before; None = there are none, or they are void.
    """

    read_at: datetime
    stored_plan: dict[str, Any]
    pack: str | None
    state: str
    has_joined: bool
    manifest: SignedDocument | None
    is_established: bool
    last_published: int
    newest: ServedWeights | None

    @property
    def plan(self) -> FederationPlan:
        return FederationPlan.model_validate(self.stored_plan)


def join_context(session: Session, member: Member, round_number: int) -> JoinContext:
    """Return the status of a client in a round.

    Raises:
        NotFound: there is no such round.
    """
    values = {
        "federation_id": member.federation_id,
        "number": round_number,
        "client": member.client_id,
        "base_model": member.base_model,
    }
    row = run(session, _CONTEXT, values).first()
    if row is None:
        raise NotFound
    now, plan, pack, state, joined, manifest, is_established, last, ended, *served = row
    newest = ServedWeights(*served) if served[0] is not None else None
    if newest is not None and not is_established and newest.round_number <= (ended or 0):
        newest = None  # computed under an alignment pack that was replaced since
    return JoinContext(
        now, plan, pack, state, joined is not None, manifest, is_established, last or 0, newest
    )
