"""Read and write the rows of base deltas, and the weights that newcomers of a group start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from coordinator.aggregation.state_reader import StoredState
from coordinator.db.engine import Database
from coordinator.db.tables.federations import FoldRow
from coordinator.http.downloads import Stored
from coordinator.storage.payloads import Staged
from coordinator.weights.base_delta import BaseModelGroup, group_weights
from schemas.maths.adapter import Layout
from schemas.messages.updates import WeightsManifest


@dataclass(frozen=True, slots=True)
class GroupDelta:
    """The staged sum of all base deltas of a group up to a round, with A and B to continue from."""

    group: BaseModelGroup
    layout: Layout
    staged: Staged


def latest(session: Session, federation_id: str, until: int) -> dict[BaseModelGroup, StoredState]:
    """Return the last base delta of each group, of round `until` or before.

    Raises:
        LookupError: the payload of one was deleted.
    """
    return {
        BaseModelGroup(row.base_model, row.form): _state(row)
        for row in _latest_rows(session, federation_id, until)
    }


def store_deltas(
    session: Session, federation_id: str, round_number: int, deltas: Iterable[tuple[GroupDelta, int]]
) -> None:
    for delta, payload_id in deltas:
        session.add(
            FoldRow(
                federation_id=federation_id,
                round_number=round_number,
                base_model=delta.group.base_model,
                form=delta.group.form,
                layout=[[name, list(shape)] for name, shape in delta.layout.items()],
                payload_id=payload_id,
            )
        )


def newcomer_weights(
    database: Database, federation_id: str, until: int, group: BaseModelGroup, manifest: WeightsManifest
) -> Stored | None:
    """Return the weights of a newcomer after round `until`, those of its group; None = it is the first."""
    with database.read() as session:
        state = latest(session, federation_id, until).get(group)
    if state is None:
        return None
    return group_weights(database, state.payload_id, state.layout, manifest)


def _latest_rows(session: Session, federation_id: str, until: int) -> list[FoldRow]:
    is_candidate: ColumnElement[bool] = (FoldRow.federation_id == federation_id) & (
        FoldRow.round_number <= until
    )
    last = (
        select(FoldRow.base_model, FoldRow.form, func.max(FoldRow.round_number).label("number"))
        .where(is_candidate)
        .group_by(FoldRow.base_model, FoldRow.form)
        .subquery()
    )
    return list(
        session.scalars(
            select(FoldRow)
            .join(
                last,
                (last.c.base_model == FoldRow.base_model)
                & (last.c.form == FoldRow.form)
                & (last.c.number == FoldRow.round_number),
            )
            .where(is_candidate)
        )
    )


def _state(row: FoldRow) -> StoredState:
    if row.payload_id is None:
        raise LookupError(
            f"the base delta of {row.base_model} up to round {row.round_number} was deleted by retention"
        )
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
    return StoredState(row.payload_id, 0, layout)
