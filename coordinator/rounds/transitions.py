"""Move rounds on: start, pause, finish, and whatever is due. Every function works inside the caller's write
transaction, on a federation whose row it has locked; deciding is the lifecycle's, SQL the store's.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from coordinator.db.engine import now
from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.enrolment import roster
from coordinator.errors import AnchorsMissing, FederationStateConflict
from coordinator.federations.store import anchors_stored, federation, plan_of
from coordinator.rounds import base_weights, store
from coordinator.rounds.lifecycle import ENDED, FEDERATION_FINISHED, Step, after_round, next_state
from coordinator.rounds.views import summary
from coordinator.storage import event_log
from schemas.messages.federations import FederationState

ROUND_ABANDONED = "round-abandoned"


def start(session: Session, federation: FederationRow) -> None:
    """Run a federation: open its first round, or go on after a pause.

    Raises:
        FederationStateConflict: it is finished.
        AnchorsMissing: fewer anchor texts are stored than the plan aligns its base models on.
    """
    if federation.state == "finished":
        raise FederationStateConflict(state=federation.state)
    if federation.state == "open":
        _require_anchors(session, federation)
    federation.state = "running"
    session.flush()
    follow(session, federation)


def _require_anchors(session: Session, federation: FederationRow) -> None:
    plan = plan_of(federation)
    if plan.alignment is None:
        return
    are_read = plan.alignment.frames != "random" or plan.signature.kind == "representation"
    stored = anchors_stored(session, federation.id)
    if are_read and stored < plan.alignment.anchors:
        raise AnchorsMissing(
            f"the plan aligns base models on {plan.alignment.anchors} anchor texts and {stored} are stored",
            needed=plan.alignment.anchors,
            stored=stored,
        )


def pause(session: Session, federation: FederationRow) -> None:
    """Let the current round complete and open none.

    Raises:
        FederationStateConflict: it is not running.
    """
    if federation.state not in ("running", "paused"):
        raise FederationStateConflict(state=federation.state)
    federation.state = "paused"
    session.flush()


def finish(session: Session, federation: FederationRow) -> None:
    """End a federation; its current round is abandoned."""
    if federation.state == "finished":
        return
    _end(session, federation)
    row = store.latest(session, federation.id)
    if row is not None and row.state not in ENDED:
        abandon(session, federation, row, FEDERATION_FINISHED)


def advance(session: Session, row: RoundRow, moment: datetime) -> bool:
    """Take every step that is due at a moment, except claiming the round for aggregation; say if one was."""
    before = row.version
    while not store.waits(session, row, moment):
        owner = federation(session, row.federation_id)
        step = next_state(store.facts(session, row, plan_of(owner)), moment)
        if step is None or step.to == "aggregating":
            break
        take(session, owner, row, step, moment)
    return row.version != before


def take(session: Session, federation: FederationRow, row: RoundRow, step: Step, moment: datetime) -> None:
    """Take one step, and tell."""
    match step.to:
        case "collecting":
            store.transition(session, row, "collecting", collecting_at=moment, deadline=step.deadline)
            announce(session, row, moment)
        case "closing":
            store.transition(session, row, "closing", closing_at=moment)
            announce(session, row, moment)
        case _:
            abandon(session, federation, row, step.reason or step.to)


def claim(session: Session, row: RoundRow, token: store.LeaseToken, lease: timedelta) -> None:
    """Become the worker that aggregates a round, until the lease runs out."""
    moment = now(session)
    changes: dict[str, Any] = {"lease_token": token, "lease_expires_at": moment + lease}
    if row.aggregating_at is None:
        changes["aggregating_at"] = moment
    store.transition(session, row, "aggregating", **changes)
    announce(session, row, moment)


def publish(session: Session, federation: FederationRow, row: RoundRow) -> None:
    """End a round well; what its clients are served is written in the same transaction."""
    moment = now(session)
    store.transition(session, row, "published", ended_at=moment, lease_token=None, lease_expires_at=None)
    announce(session, row, moment)
    follow(session, federation)


def abandon(session: Session, federation: FederationRow, row: RoundRow, reason: str) -> None:
    """End a round without a result; its updates are listed as rejected."""
    moment = now(session)
    store.transition(
        session, row, "abandoned", reason=reason, ended_at=moment, lease_token=None, lease_expires_at=None
    )
    store.reject_updates(session, row.id, ROUND_ABANDONED)
    announce(session, row, moment)
    follow(session, federation)


def follow(session: Session, federation: FederationRow) -> None:
    """Open the next round, or end the federation, when no round goes on."""
    row = store.latest(session, federation.id)
    if row is not None and row.state not in ENDED:
        return
    count, _ = store.published(session, federation.id)
    match after_round(federation_state(federation), published=count, total=plan_of(federation).rounds.total):
        case "finish":
            _end(session, federation)
        case "open-next":
            moment = now(session)
            opened = store.open_round(session, federation.id, row.number + 1 if row else 1, moment)
            announce(session, opened, moment)
        case "wait":
            pass


def announce(session: Session, row: RoundRow, moment: datetime) -> None:
    """Tell everyone who follows the federation's events how the round stands."""
    told = summary(session, row, moment).model_dump(mode="json")
    event_log.append(session, row.federation_id, "round", told, at=moment)


def announce_pack(session: Session, fid: str, base_model: str) -> None:
    """Notify everyone who follows the federation's events that a pack, or its acceptance test, is new."""
    digest = base_weights.pack_digest(session, fid, base_model)
    if digest is not None:
        event_log.append(session, fid, "alignment", {"base_model": base_model, "digest": digest})


def _end(session: Session, federation: FederationRow) -> None:
    moment, link = now(session), roster.newest(session, federation.id)
    federation.state = "finished"
    # The last manifests name the roster as of the end, whatever the clock did since its last link.
    federation.finished_at = max(moment, link.at) if link is not None else moment
    session.flush()


def federation_state(federation: FederationRow) -> FederationState:
    """Read a federation's state."""
    return known_state(federation.state)


def known_state(stored: str) -> FederationState:
    """Read a stored state."""
    known: tuple[FederationState, ...] = ("open", "running", "paused", "finished")
    return next(state for state in known if state == stored)
