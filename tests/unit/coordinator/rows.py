"""Rows that tests store directly in a database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from coordinator.db.tables.federations import ClientRow, FederationRow, ParticipationRow


def federation_row(federation_id: str, moment: datetime) -> FederationRow:
    """Return a federation without a plan."""
    return FederationRow(
        id=federation_id, name=federation_id, state="open", plan={}, events=0, created_at=moment
    )


def client_row(federation_id: str, client_id: str, moment: datetime, **changes: Any) -> ClientRow:
    """Return an enrolled client."""
    fields = {
        "name": client_id,
        "base_model": "s",
        "profile": {},
        "state": "enrolled",
        "credential_hash": client_id,
        "enrolled_at": moment,
    }
    return ClientRow(id=client_id, federation_id=federation_id, **(fields | changes))


def participation_row(
    round_id: int, client_id: str, state: str, moment: datetime, **changes: Any
) -> ParticipationRow:
    """Return the part of a client that joined a round at a moment."""
    return ParticipationRow(
        round_id=round_id, client_id=client_id, state=state, joined_at=moment, base_digest="x", **changes
    )
