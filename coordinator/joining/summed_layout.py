"""Refuse clients whose updates cannot be summed with those of the other members of a round."""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.aggregation.store import alignment_set
from coordinator.auth.authentication import Member
from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow
from coordinator.enrolment.eligibility import check_enrolled_capability
from coordinator.errors import LayoutMismatch
from coordinator.federations.layouts import SummedLayout
from coordinator.rounds import base_weights
from coordinator.strategies.opening import OpenedPlan
from schemas.messages.enrolment import Profile

_PARTICIPANTS = (
    select(ClientRow.base_model, ClientRow.profile)
    .join(ParticipationRow, ParticipationRow.client_id == ClientRow.id)
    .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
    .where(RoundRow.federation_id == bindparam("federation_id"))
    .limit(1)
)
_SUMMED_LAST = _PARTICIPANTS.where(
    RoundRow.state == "published", ParticipationRow.state == "arrived"
).order_by(RoundRow.number.desc(), ClientRow.id)
_JOINED_FIRST = _PARTICIPANTS.where(
    RoundRow.number == bindparam("number"),
    ClientRow.state == "enrolled",
    ClientRow.id != bindparam("client"),
).order_by(ParticipationRow.joined_at, ClientRow.id)


def require_summable(session: Session, opened: OpenedPlan, member: Member, round_number: int) -> None:
    """Raise unless a client's updates can be summed; no effect if the plan sums none.

    Raises:
        CapabilityMissing: its agent cannot take part in sums.
        LayoutMismatch: it has another layout than the other members, or another base model that is not
            aligned with theirs.
    """
    if opened.plan.privacy.secure_sum is None:
        return
    check_enrolled_capability(member.profile)
    parameters = {"federation_id": member.federation_id, "number": round_number, "client": member.client_id}
    # A published model has one layout; before the first one, the client that joined first decides.
    first = run(session, _SUMMED_LAST, parameters).first() or run(session, _JOINED_FIRST, parameters).first()
    if first is None:
        return
    agreed = _layout(session, member, opened, first.base_model, Profile.model_validate(first.profile))
    if not _layout(session, member, opened, member.base_model, member.profile).fits(agreed):
        raise LayoutMismatch(
            f"all members of a sum have tensors of one meaning: those of {agreed.base_model}; use that base "
            "model, or one that is aligned with it and has the same modules (`tessera alignment list` shows "
            "packs and their tests)",
            base_model=agreed.base_model,
        )


def _layout(
    session: Session, member: Member, opened: OpenedPlan, base_model: str, profile: Profile
) -> SummedLayout:
    federation_id = member.federation_id
    return SummedLayout(
        base_model,
        base_weights.layout(session, federation_id, opened, base_model, profile),
        alignment_set(session, federation_id, opened.plan, base_model),
    )
