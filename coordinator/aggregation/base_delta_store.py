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
from coordinator.weights.base_delta import Kin, body
from schemas.maths.adapter import Layout
from schemas.messages.updates import WeightsManifest


@dataclass(frozen=True, slots=True)
class Fold:
    """All that was folded for some kin up to a round, in the making; A and B to go on from beside it."""

    kin: Kin
    layout: Layout
    staged: Staged


def newest(session: Session, fid: str, until: int) -> dict[Kin, StoredState]:
    """What was folded in the rounds up to `until`?"""
    return {Kin(row.base_model, row.form): _state(row) for row in _newest(session, fid, until)}


def keep(session: Session, fid: str, number: int, folds: Iterable[tuple[Fold, int]]) -> None:
    """Keep what was folded up to round `number`, each with the id of its payload."""
    for fold, payload_id in folds:
        session.add(
            FoldRow(
                federation_id=fid,
                round_number=number,
                base_model=fold.kin.base_model,
                form=fold.kin.form,
                layout=[[name, list(shape)] for name, shape in fold.layout.items()],
                payload_id=payload_id,
            )
        )


def start(database: Database, fid: str, until: int, kin: Kin, manifest: WeightsManifest) -> Stored | None:
    """Give the weights of a newcomer after round `until`: as its kin have them; None = it has no kin yet."""
    with database.read() as session:
        found = newest(session, fid, until).get(kin)
    if found is None:
        return None
    return body(database, found.payload_id, found.layout, manifest)


def _newest(session: Session, fid: str, until: int) -> list[FoldRow]:
    here: ColumnElement[bool] = (FoldRow.federation_id == fid) & (FoldRow.round_number <= until)
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
