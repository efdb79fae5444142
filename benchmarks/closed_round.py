"""Put a round that waits for aggregation into a database: clients, their adapter states and sketches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ClientRow, RoundRow, UpdateRow
from coordinator.federations import store as federations
from coordinator.rounds import participations
from coordinator.rounds import store as rounds
from coordinator.storage import payloads
from coordinator.strategies.base import Sketch
from schemas.maths.adapter import Layout, lora_layout, size
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import UpdateManifest
from schemas.wire.envelope import head

_RANK = 8
_SKETCH_DIM = 64
_BASE_MODEL = "benchmark-000000000000"


def layout_of(values: int) -> Layout:
    """Lay out ordinary LoRA of about this many values: A and B of rank 8 on q and v in four layers."""
    width = max(1, values // (4 * 2 * 2 * _RANK))
    return lora_layout(4, {"q": (width, width), "v": (width, width)}, _RANK)


def states(clients: int, layout: Layout) -> NDArray[np.float32]:
    """Draw U, (clients, values)."""
    random = np.random.default_rng(0)
    return random.standard_normal((clients, size(layout)), np.float32)


def close_round(database: Database, layout: Layout, drawn: Sequence[NDArray[np.float32]]) -> str:
    """Create a federation whose first round has closed with these states, and return its id.

    Rows and payloads are those that deliveries would have stored. All clients share all modules.
    """
    random = np.random.default_rng(1)
    with database.write() as session:
        federation = federations.create(session, _plan())
        federation.state = "running"
        moment = database_time(session)
        row = rounds.open_round(session, federation.id, 1, moment)
        row.state, row.collecting_at, row.closing_at = "closing", moment, moment
    for place, state in enumerate(drawn):
        sketch = Sketch(random.standard_normal(_SKETCH_DIM).astype(np.float32))
        with database.write() as session:
            _deliver(session, row, f"{federation.id}-{place:04}", layout, state, sketch)
    return federation.id


def _plan() -> FederationPlan:
    """Compare raw sketches without a floor: every row of the relevance is dense, and no two are equal.

    The guard is off, because it would reject all of these unrelated states.
    """
    options = {"temperature": 1.0, "min_relevance": None, "include_self": True, "guard": "off"}
    return FederationPlan.model_validate(
        {
            "name": "benchmark",
            "strategy": {"name": "fedmosaic", "options": options},
            "rounds": {"min_clients": 1, "total": 2},
            "signature": {"dim": _SKETCH_DIM},
            "limits": {"max_norm": 1e9},
        }
    )


def _deliver(
    session: Session,
    row: RoundRow,
    client_id: str,
    layout: Layout,
    state: NDArray[np.float32],
    sketch: Sketch,
) -> None:
    moment = database_time(session)
    session.add(
        ClientRow(
            id=client_id,
            federation_id=row.federation_id,
            name=client_id,
            base_model=_BASE_MODEL,
            profile={},
            state="enrolled",
            credential_hash=client_id,
            enrolled_at=moment,
        )
    )
    session.flush()
    manifest = UpdateManifest(
        federation=row.federation_id,
        recipe={},
        round=1,
        client=client_id,
        base="sha256:" + "0" * 64,
        pack=None,
        examples=1,
    )
    beginning = head(layout, manifest)
    body = beginning + state.astype("<f4", copy=False).tobytes()
    payload_id, digest = payloads.store_bytes(session, body)
    session.add(
        UpdateRow(
            federation_id=row.federation_id,
            round_id=row.id,
            round_number=1,
            client_id=client_id,
            digest=digest,
            bytes=len(body),
            payload_id=payload_id,
            state_payload_id=payload_id,
            state_begin=len(beginning),
            layout=[[name, list(shape)] for name, shape in layout.items()],
            norm=1.0,
            clipped=False,
            examples=1,
            pack_digest=None,
            received_at=moment,
        )
    )
    participations.join(session, row.id, client_id, "sha256:" + "0" * 64, moment)
    participations.set_state(session, row.id, client_id, "arrived")
    participations.store_sketch(session, row, client_id, "update", sketch)
