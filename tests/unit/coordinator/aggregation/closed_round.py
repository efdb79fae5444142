"""Rounds in state closing, stored directly in a database, with any number and size of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.aggregation import job
from coordinator.aggregation.job import claim_due
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import RoundRow, SignatureRow, UpdateRow, WeightsRow
from coordinator.federations import store as federations
from coordinator.rounds import store as rounds
from coordinator.storage import payloads
from schemas.maths.adapter import Layout, in_order, size
from schemas.messages.federations import FederationPlan
from tests.scene.plans import federation_plan
from tests.unit.coordinator.rows import client_row, participation_row


@dataclass
class Sent:
    """The update of one client; `values` follow the order of the layout."""

    layout: Layout
    values: NDArray[np.float32]
    signature: Sequence[float] = (1.0, 0.0)
    base_model: str = "s"
    examples: int = 1
    shift: int = 0  # bytes before the state, as a header would be

    @classmethod
    def of(cls, tensors: Mapping[str, Any], **facts: Any) -> Sent:
        arrays = {name: np.asarray(tensors[name], np.float32) for name in sorted(tensors)}
        layout = in_order({name: values.shape for name, values in arrays.items()})
        return cls(layout, np.concatenate([a.ravel() for a in arrays.values()]), **facts)


@dataclass
class Closed:
    """A round in state closing."""

    federation_id: str
    clients: list[str] = field(default_factory=list)


def plan(strategy: str = "fedavg", **rounds_plan: Any) -> FederationPlan:
    """Make a plan; a round needs one client."""
    return federation_plan(
        strategy, rounds={"min_clients": 1, "total": 3} | rounds_plan, signature={"dim": 2}
    )


def close_round(database: Database, federation_plan: FederationPlan, sent: Sequence[Sent]) -> Closed:
    """Make a federation whose first round has closed with these updates."""
    with database.write() as session:
        federation = federations.create(session, federation_plan)
        federation.state = "running"
        now = database_time(session)
        row = rounds.open_round(session, federation.id, 1, now)
        row.state, row.closing_at, row.collecting_at = "closing", now, now
        closed = Closed(federation.id, [f"{federation.id}-{place:04}" for place in range(len(sent))])
        session.add_all(
            client_row(federation.id, client_id, now, base_model=update.base_model)
            for client_id, update in zip(closed.clients, sent, strict=True)
        )
        session.flush()
        for client_id, update in zip(closed.clients, sent, strict=True):
            _deliver(session, row, client_id, update)
    return closed


def close_next(database: Database, closed: Closed, sent: Mapping[str, Sent]) -> None:
    """Close the round that the last publication opened, with the updates of some of its clients."""
    with database.write() as session:
        row = rounds.latest(session, closed.federation_id)
        assert row is not None
        now = database_time(session)
        row.state, row.closing_at, row.collecting_at = "closing", now, now
        session.flush()
        for client_id, update in sent.items():
            _deliver(session, row, client_id, update)


def _deliver(session: Session, row: RoundRow, client_id: str, sent: Sent) -> None:
    body = bytes(sent.shift) + sent.values.astype("<f4").tobytes()
    assert sent.values.size == size(sent.layout)
    payload_id, digest = payloads.store_bytes(session, body)
    session.add_all(
        [
            participation_row(row.id, client_id, "arrived", row.opened_at),
            UpdateRow(
                federation_id=row.federation_id,
                round_id=row.id,
                round_number=row.number,
                client_id=client_id,
                digest=digest,
                bytes=len(body),
                payload_id=payload_id,
                state_payload_id=payload_id,
                state_begin=sent.shift,
                layout=[[name, list(shape)] for name, shape in sent.layout.items()],
                norm=1.0,
                clipped=False,
                examples=sent.examples,
                received_at=row.opened_at,
            ),
            SignatureRow(
                federation_id=row.federation_id,
                round_id=row.id,
                round_number=row.number,
                client_id=client_id,
                origin="update",
                vector=np.asarray(sent.signature, "<f4").tobytes(),
            ),
        ]
    )


def served_values(database: Database, client_id: str, layout: Layout, number: int = 2) -> NDArray[np.float32]:
    """Read the values that a client is served."""
    with database.read() as session:
        row = session.scalars(
            select(WeightsRow).where(WeightsRow.client_id == client_id, WeightsRow.round_number == number)
        ).one()
        count = size(layout) * 4
        raw = payloads.read(session, row.payload_id, row.begin, row.begin + count)
    return np.frombuffer(raw, "<f4")


def round_row(database: Database, closed: Closed, number: int = 1) -> RoundRow:
    """Return the row of a round."""
    with database.read() as session:
        return rounds.get_round(session, closed.federation_id, number)


BLOCK_BYTES = 4096


def no_interruption() -> None:
    """Do nothing between two blocks."""


def publish(
    database: Database, between: Callable[[], None] = no_interruption, block_bytes: int = BLOCK_BYTES
) -> int:
    claim = claim_due(database, 60.0)
    assert claim is not None
    return job.aggregate(database, claim, block_bytes=block_bytes, between=between)


def simple(database: Database, clients: int = 3, **rounds: Any) -> Closed:
    layout = {"b0.q.P": (30, 30), "b0.q.Q": (30,)}
    sent = [Sent(layout, np.full(930, i, np.float32)) for i in range(clients)]
    return close_round(database, plan(**rounds), sent)
