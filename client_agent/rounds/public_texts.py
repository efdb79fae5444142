"""The federation's public anchor texts, from the agent's folder or the coordinator. Needs no torch."""

from __future__ import annotations

from client_agent.rounds.client import Session
from client_agent.rounds.stored_answers import has_anchors, read_anchors, store_anchors
from schemas.messages.alignment import Anchor


def federation_texts(session: Session) -> list[Anchor]:
    """Return all anchor texts of a federation; they are downloaded once.

    Raises:
        SyncNeeded: this machine has no network, and no exchange has brought them.
        CoordinatorRefused: the federation has none.
    """
    if not has_anchors(session.home):  # they are final when a federation has started
        store_anchors(session.home, session.api.anchors(session.federation_id))
    return read_anchors(session.home).anchors
