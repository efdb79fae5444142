"""The rows of what was folded into each base model so far, and what whoever was not there last is served."""

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
from coordinator.weights.base_delta import BaseModelGroup, body
from schemas.maths.adapter import Layout
from schemas.messages.updates import WeightsManifest


@dataclass(frozen=True, slots=True)
class Fold:
    """All that was folded for some kin up to a round, in the making; A and B to go on from beside it."""

    kin: BaseModelGroup
    layout: Layout
    staged: Staged


def newest(session: Session, federation_id: str, until: int) -> dict[BaseModelGroup, StoredState]:
    """What was folded in the rounds up to `until`?"""
    return {
        BaseModelGroup(row.base_model, row.form): _state(row)
        for row in _newest(session, federation_id, until)
    }


def keep(session: Session, federation_id: str, round_number: int, folds: Iterable[tuple[Fold, int]]) -> None:
    """Keep what was folded up to round `round_number`, each with the id of its payload."""
    for fold, payload_id in folds:
        session.add(
            FoldRow(
                federation_id=federation_id,
                round_number=round_number,
                base_model=fold.kin.base_model,
                form=fold.kin.form,
                layout=[[name, list(shape)] for name, shape in fold.layout.items()],
                payload_id=payload_id,
            )
        )


def start(
    database: Database, federation_id: str, until: int, kin: BaseModelGroup, manifest: WeightsManifest
) -> Stored | None:
    """Give the weights of a newcomer after round `until`: as its kin have them; None = it has no kin yet."""
    with database.read() as session:
        found = newest(session, federation_id, until).get(kin)
    if found is None:
        return None
    return body(database, found.payload_id, found.layout, manifest)


def _newest(session: Session, federation_id: str, until: int) -> list[FoldRow]:
    here: ColumnElement[bool] = (FoldRow.federation_id == federation_id) & (FoldRow.round_number <= until)
    last = (
        select(FoldRow.base_model, FoldRow.form, func.max(FoldRow.round_number).label("number"))
        .where(here)
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
            .where(here)
        )
    )


def _state(row: FoldRow) -> StoredState:
    if row.payload_id is None:
        raise LookupError(
            f"what was folded into {row.base_model} up to round {row.round_number} was forgotten"
        )
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
    return StoredState(row.payload_id, 0, layout)
