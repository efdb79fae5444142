"""Announce the changes of a bank of experts: in events of the federation and in the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy.orm import Session

from coordinator.db.tables.federations import RoundRow
from coordinator.experts.bank import Event
from coordinator.observability.logs import logger
from coordinator.storage import event_log
from schemas.messages.experts import ExpertEvent

log = logger(__name__)


def announce(session: Session, federation_id: str, row: RoundRow, events: Iterable[Event]) -> None:
    """Append an event for each change of the bank after a round, in the transaction that publishes it.

    The caller holds the federation's lock.
    """
    for change in events:
        event = ExpertEvent.model_validate(asdict(change))
        event_log.append(session, federation_id, "expert", event.model_dump(mode="json"))
        log.info(
            f"expert-{change.change}",
            federation=federation_id,
            round=row.number,
            expert=change.expert,
            reason=change.reason,
        )
