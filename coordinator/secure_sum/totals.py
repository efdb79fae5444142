"""The total of a round's sum, as aggregation reads it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.tables.secure_sum import SumSessionRow
from schemas.messages.secure_sum import SumTerms

_DONE = (
    select(SumSessionRow)
    .where(
        SumSessionRow.round_id == bindparam("round"),
        SumSessionRow.kind == "sum",
        SumSessionRow.state == "done",
    )
    .order_by(SumSessionRow.number.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class SummedTotal:
    """A committed total: `terms.values` little-endian int32 in the order of the terms' segments.

    Attributes:
        counted: the ids of the clients whose inputs are summed, sorted.
        payload_id: the payload of the total.
    """

    terms: SumTerms
    counted: tuple[str, ...]
    payload_id: int


def summed_total(session: Session, round_id: int) -> SummedTotal:
    """Return the total of a round that was summed.

    Raises:
        LookupError: the round has no total, or it was deleted by retention.
    """
    row = session.scalar(_DONE, {"round": round_id})
    if row is None or row.total_payload_id is None:
        raise LookupError("the round has no total, or retention has deleted it")
    terms = SumTerms.model_validate(row.terms)
    members = row.closed["masked"]["members"]
    return SummedTotal(terms, tuple(terms.members[n].client for n in members), row.total_payload_id)
