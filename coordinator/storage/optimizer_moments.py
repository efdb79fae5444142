"""Store what the coordinator's optimisers keep between rounds: a payload of moments per group of clients.

Moments change in the transaction that publishes the weights which they moved: a round that is aggregated
again, by another worker or after a crash, begins with the same ones.
"""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.weights import OptimizerMomentsRow
from coordinator.storage import payloads

_PAYLOAD = select(OptimizerMomentsRow.payload_id).where(
    OptimizerMomentsRow.federation_id == bindparam("federation_id"),
    OptimizerMomentsRow.base_model == bindparam("base_model"),
    OptimizerMomentsRow.form == bindparam("form"),
)


def payload_of(session: Session, federation_id: str, base_model: str, form: str) -> int | None:
    """Return the payload of a group's moments; None = its optimiser has not begun."""
    place = {"federation_id": federation_id, "base_model": base_model, "form": form}
    return run(session, _PAYLOAD, place).scalar()


def replace(
    session: Session, federation_id: str, base_model: str, form: str, round_number: int, payload_id: int
) -> None:
    """Replace the moments of a group by those after a round."""
    row = session.get(OptimizerMomentsRow, (federation_id, base_model, form))
    if row is None:
        row = OptimizerMomentsRow(federation_id=federation_id, base_model=base_model, form=form)
        session.add(row)
    else:
        payloads.start_grace(session, row.payload_id)
    row.payload_id, row.round_number = payload_id, round_number


def delete_all(session: Session, federation_id: str) -> None:
    """Delete the moments of a federation that has no more rounds."""
    of_federation = OptimizerMomentsRow.federation_id == federation_id
    payload_ids = session.scalars(select(OptimizerMomentsRow.payload_id).where(of_federation)).all()
    if payload_ids:
        payloads.start_grace(session, *payload_ids)
        session.execute(delete(OptimizerMomentsRow).where(of_federation))
