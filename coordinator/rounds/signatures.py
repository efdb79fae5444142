"""The rows of signatures."""

from __future__ import annotations

from sqlalchemy.orm import Session

from coordinator.strategies.base import Signature
from coordinator.tables import RoundRow, SignatureRow


def keep_signature(session: Session, row: RoundRow, client_id: str, origin: str, sent: Signature) -> None:
    """Keep a client's signature; `origin` is `join` or `update`."""
    session.add(
        SignatureRow(
            federation_id=row.federation_id,
            round_id=row.id,
            round_number=row.number,
            client_id=client_id,
            origin=origin,
            vector=sent.vector.astype("<f4").tobytes(),
            reliability=sent.reliability,
            epsilon=sent.epsilon,
        )
    )
