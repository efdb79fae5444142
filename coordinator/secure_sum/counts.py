"""The counts of a round: their outcome, and the members that may take part in the sum after them."""

from __future__ import annotations

from functools import partial

import numpy as np
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.secure_sum import store
from coordinator.secure_sum.session_terms import is_of_earlier_version, once, terms_of
from coordinator.storage import payloads
from schemas.identity.keys import encode
from schemas.messages.secure_sum import SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.count_proofs import are_proved
from schemas.secure_sum.counts import decoded_counts, starved_groups
from schemas.secure_sum.curve import POINT_BYTES

_VALUE_BYTES = 4
_DONE = select(SumSessionRow).where(
    SumSessionRow.round_id == bindparam("round"),
    SumSessionRow.kind == "counts",
    SumSessionRow.state == "done",
)


def outcome_of(session: Session, round_id: int) -> SumCounts | None:
    """Return the outcome of a round's counts; None = they were not taken.

    Raises:
        LookupError: retention has deleted their total.
    """
    row = session.scalar(_DONE, {"round": round_id})
    return once(row, "counts", partial(_outcome, session, row)) if row is not None else None


def countable(session: Session, round_id: int) -> set[str] | None:
    """Return the counted clients that may take part in the sum of a round; None = nobody was counted.

    With masks these are the members who confirmed which clients were counted: the others cannot know it, and
    refuse the sum.
    """
    row = session.scalar(_DONE, {"round": round_id})
    if row is None:
        return None
    terms = terms_of(row)
    positions = store.closed_set(row, "masked" if terms.masking == "none" else "confirm") or []
    return {terms.members[position].client for position in positions}


def starved(session: Session, round_id: int, terms: SumTerms, masked: int, k_min: int) -> list[str]:
    """Return the groups of a sum that may have fewer than `k_min` of its `masked` members."""
    counts = outcome_of(session, round_id)
    return starved_groups(terms, counts.groups, masked, k_min) if counts is not None else []


def _outcome(session: Session, row: SumSessionRow) -> SumCounts:
    terms = terms_of(row)
    if row.total_payload_id is None:
        raise LookupError("retention has deleted the counts of the round")
    octets = payloads.read(session, row.total_payload_id, 0, _VALUE_BYTES * terms.values)
    total = np.frombuffer(octets, "<i4").astype(np.int64)
    masked = store.closed_set(row, "masked") or []
    groups = [segment.name for segment in terms.segments]
    openings = None
    if are_proved(terms) and not is_of_earlier_version(terms):  # whose counts have no openings
        size = POINT_BYTES * len(groups)
        scalars = payloads.read(session, row.total_payload_id, len(octets), len(octets) + size)
        parts = (scalars[begin : begin + POINT_BYTES] for begin in range(0, size, POINT_BYTES))
        openings = dict(zip(groups, map(encode, parts), strict=True))
    return SumCounts(
        session=terms.session,
        counted=[terms.members[position].client for position in masked],
        groups=decoded_counts(groups, total, len(masked), terms.bits),
        openings=openings,
    )
