"""Find the payloads that the open round of a federation or its next one reads: they stay in rows.

An aggregation reads its clients' states in many small pieces, each of which would be a request to a store.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, aliased

from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.db.tables.federations import (
    CodedWeightsRow,
    FederationRow,
    FoldRow,
    PayloadRow,
    RoundRow,
    UpdateRow,
    WeightsRow,
)
from coordinator.db.tables.secure_sum import JointModelRow, SumMessageRow, SumSessionRow

_GOES_ON = select(FederationRow.id).where(FederationRow.state != "finished")

# A client that is away listens and is listened to with its last update, and is served its last weights.
_LAST_OF: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (WeightsRow, ("client_id",)),
    (CodedWeightsRow, ("client_id", "recipe")),
    (FoldRow, ("federation_id", "base_model", "form")),
    (JointModelRow, ("federation_id",)),
    (ExpertRevisionRow, ("federation_id", "expert")),
)


def is_current() -> ColumnElement[bool]:
    """Whether a payload is the last of its kind in a federation that is not finished, or of an open sum."""
    return or_(
        *(
            _is_of(row.payload_id, row.federation_id.in_(_GOES_ON), _is_last(row, keys))
            for row, keys in _LAST_OF
        ),
        *(
            _is_of(column, UpdateRow.federation_id.in_(_GOES_ON), _may_be_counted())
            for column in (UpdateRow.payload_id, UpdateRow.state_payload_id)
        ),
        _is_of(SumMessageRow.payload_id),  # deleted when its session ends
        _is_of(
            SumSessionRow.total_payload_id,
            SumSessionRow.round_id == RoundRow.id,
            RoundRow.state.not_in(("published", "abandoned")),
        ),
    )


def _is_of(column: InstrumentedAttribute[Any], *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(column == PayloadRow.id, *conditions)


def _is_last(row: Any, keys: tuple[str, ...]) -> ColumnElement[bool]:
    newer = aliased(row)
    same = (getattr(newer, key) == getattr(row, key) for key in keys)
    return ~exists().where(*same, newer.round_number > row.round_number)


def _may_be_counted() -> ColumnElement[bool]:
    """Whether no newer update of the client was counted in a published round."""
    newer = aliased(UpdateRow)
    superseded = exists().where(
        newer.client_id == UpdateRow.client_id,
        newer.round_number > UpdateRow.round_number,
        newer.reject_reason.is_(None),
        newer.round_id == RoundRow.id,
        RoundRow.state == "published",
    )
    return UpdateRow.reject_reason.is_(None) & ~superseded
