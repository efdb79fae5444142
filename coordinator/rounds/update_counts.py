"""Count the updates of a round, sent or summed, and find the last one of each client that counts."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow, SignatureRow, UpdateRow
from coordinator.federations.claims import UpdateCounts
from coordinator.rounds.lifecycle import DELIVERED


def count_summed(session: Session, round_id: int) -> UpdateCounts:
    """Count the clients in a round's sum; before its end, those that are ready for it. All have keys."""
    query = select(func.count()).where(
        ParticipationRow.round_id == round_id, ParticipationRow.state.in_(sorted(DELIVERED))
    )
    # Members of a sum sign with keys, so that none of them is a bearer client.
    return UpdateCounts(updates=session.scalar(query) or 0, from_bearers=0)


def count_updates(session: Session, round_id: int) -> UpdateCounts:
    """Count a round's accepted updates: all, those of bearer credentials, and those with a privacy cost."""
    rows = session.execute(
        select(ClientRow.credential_hash, SignatureRow.epsilon)
        .join_from(UpdateRow, ClientRow, ClientRow.id == UpdateRow.client_id)
        .outerjoin(
            SignatureRow,
            (SignatureRow.round_id == UpdateRow.round_id)
            & (SignatureRow.client_id == UpdateRow.client_id)
            & (SignatureRow.origin == "update"),
        )
        .where(UpdateRow.round_id == round_id, UpdateRow.reject_reason.is_(None))
    ).all()
    epsilons = [epsilon for _, epsilon in rows if epsilon is not None]
    return UpdateCounts(
        updates=len(rows),
        from_bearers=sum(credential is not None for credential, _ in rows),
        private=len(epsilons),
        spent=max(epsilons, default=None),
    )


def last_updates(session: Session, federation_id: str, round_number: int) -> dict[str, int]:
    """Return the round of each client's last update that counts, up to this round."""
    rows = session.execute(
        select(UpdateRow.client_id, func.max(UpdateRow.round_number))
        .where(
            UpdateRow.federation_id == federation_id,
            UpdateRow.round_number <= round_number,
            UpdateRow.reject_reason.is_(None),
        )
        .group_by(UpdateRow.client_id)
    )
    return {client_id: last for client_id, last in rows}


def last_summed(session: Session, federation_id: str, round_number: int) -> dict[str, int]:
    """Return the round of the last sum that each client was counted in, up to this round."""
    rows = session.execute(
        select(ParticipationRow.client_id, func.max(RoundRow.number))
        .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
        .where(
            RoundRow.federation_id == federation_id,
            RoundRow.number <= round_number,
            ParticipationRow.state == "arrived",
        )
        .group_by(ParticipationRow.client_id)
    )
    return {client_id: last for client_id, last in rows}
