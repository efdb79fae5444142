"""Move rounds: start, pause, finish, and steps that are due.

Each function needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import FederationRow, RoundRow
from coordinator.enrolment import roster
from coordinator.errors import AnchorsMissing, FederationStateConflict
from coordinator.federations.store import anchors_stored, federation, plan_of
from coordinator.rounds import base_weights, scores, store, sums
from coordinator.rounds.lifecycle import ENDED, FEDERATION_FINISHED, Step, after_round, next_state
from coordinator.rounds.views import summary
from coordinator.storage import audit_log, event_log, webhook_outbox
from coordinator.strategies.opening import open_plan
from schemas.messages.federation_views import FederationState

ROUND_ABANDONED = "round-abandoned"


def start(session: Session, federation: FederationRow) -> None:
    """Open a federation's first round, or resume it after a pause.

    Raises:
        FederationStateConflict: the federation is finished.
        AnchorsMissing: fewer anchor texts are stored than the plan needs.
    """
    if federation.state == "finished":
        raise FederationStateConflict(state=federation.state)
    if federation.state == "open":
        _require_anchors(session, federation)
    federation.state = "running"
    session.flush()
    open_next(session, federation)


def _require_anchors(session: Session, federation: FederationRow) -> None:
    opened = open_plan(plan_of(federation))
    alignment = opened.plan.alignment
    fitted = alignment.anchors if alignment is not None and alignment.frames != "random" else 0
    # A pull to the base model takes any number of them.
    pulled = 1 if opened.plan.training.anchor_pull else 0
    needed = max(fitted, opened.options.distilled_texts or 0, pulled)
    stored = anchors_stored(session, federation.id)
    if stored < needed:
        raise AnchorsMissing(
            f"the plan needs {needed} anchor texts, {stored} are stored; store them first",
            needed=needed,
            stored=stored,
        )


def pause(session: Session, federation: FederationRow, reason: str | None = None) -> None:
    """Pause a federation: its current round completes, and no other opens. A person's pause has no `reason`.

    Raises:
        FederationStateConflict: the federation is neither running nor paused.
    """
    if federation.state not in ("running", "paused"):
        raise FederationStateConflict(state=federation.state)
    if federation.state == "running":
        webhook_outbox.add(session, federation.id, "federation.paused", {"reason": reason})
    federation.state = "paused"
    session.flush()


def finish(session: Session, federation: FederationRow) -> None:
    if federation.state == "finished":
        return
    _end(session, federation)
    row = store.latest(session, federation.id)
    if row is not None and row.state not in ENDED:
        abandon(session, federation, row, FEDERATION_FINISHED)


def advance(session: Session, row: RoundRow, now: datetime) -> bool:
    """Apply every step that is due, except claiming the round for aggregation; return whether one was."""
    before = row.version
    # The cheap check first: nearly every update leaves the round waiting for others.
    while not store.is_waiting(session, row, now):
        federation_row = federation(session, row.federation_id)
        step = next_state(store.facts(session, row, plan_of(federation_row)), now)
        if step is None or step.to == "aggregating":
            break
        apply_step(session, federation_row, row, step, now)
    return row.version != before


def apply_step(session: Session, federation: FederationRow, row: RoundRow, step: Step, now: datetime) -> None:
    match step.to:
        case "collecting":
            store.transition(session, row, "collecting", collecting_at=now, deadline=step.deadline)
            announce(session, row, now)
        case "summing":
            store.transition(session, row, "summing", summing_at=now)
            announce(session, row, now)
        case "closing":
            store.transition(session, row, "closing", closing_at=now)
            announce(session, row, now)
        case _:
            abandon(session, federation, row, step.reason or step.to)


def claim(session: Session, row: RoundRow, token: store.LeaseToken, lease: timedelta) -> None:
    now = database_time(session)
    changes: dict[str, Any] = {"lease_token": token, "lease_expires_at": now + lease}
    if row.aggregating_at is None:
        changes["aggregating_at"] = now
    store.transition(session, row, "aggregating", **changes)
    announce(session, row, now)


def publish(session: Session, federation: FederationRow, row: RoundRow) -> None:
    """Publish a round, in the transaction that writes the weights of its clients."""
    now = database_time(session)
    store.transition(session, row, "published", ended_at=now, lease_token=None, lease_expires_at=None)
    announce(session, row, now)
    open_next(session, federation)


def abandon(session: Session, federation: FederationRow, row: RoundRow, reason: str) -> None:
    now = database_time(session)
    store.transition(
        session, row, "abandoned", reason=reason, ended_at=now, lease_token=None, lease_expires_at=None
    )
    # They never count, also not as references of later differences.
    store.reject_updates(session, row.id, ROUND_ABANDONED)
    if row.summing_at is not None:
        sums.abort_sessions(session, row, reason, now)
    announce(session, row, now)
    # A person who finishes a federation needs no message about it.
    if reason != FEDERATION_FINISHED:
        data = {"round": row.number, "reason": reason}
        webhook_outbox.add(session, federation.id, "round.abandoned", data)
    open_next(session, federation)


def close_sum(session: Session, row: RoundRow, counted: Collection[str]) -> None:
    """Close a round whose total is committed in this transaction; `counted` are the clients in the sum."""
    now = database_time(session)
    sums.settle_participations(session, row.id, counted)
    store.transition(session, row, "closing", closing_at=now)
    announce(session, row, now)


def abandon_sum(session: Session, federation: FederationRow, row: RoundRow, reason: str) -> None:
    """Abandon a round that could not be summed, and pause its federation.

    Clients would otherwise train round after round for nothing. A person resumes it.
    """
    paused = federation.state == "running"
    if paused:
        pause(session, federation, f"round {row.number}: {reason}")
    abandon(session, federation, row, reason)
    if paused:
        audit_log.append(
            session,
            "federation-paused",
            actor="coordinator",
            subject=federation.id,
            reason=f"round {row.number}: {reason}",
        )


def open_next(session: Session, federation: FederationRow) -> None:
    """Open the next round or finish the federation, unless a round is in progress."""
    row = store.latest(session, federation.id)
    # `start` calls this after a pause, when a round may be in progress.
    if row is not None and row.state not in ENDED:
        return
    count, _ = store.published(session, federation.id)
    match after_round(federation_state(federation), published=count, total=plan_of(federation).rounds.total):
        case "finish":
            _end(session, federation)
        case "open-next":
            now = database_time(session)
            opened = store.open_round(session, federation.id, row.number + 1 if row else 1, now)
            announce(session, opened, now)
        case "wait":
            pass


def announce(session: Session, row: RoundRow, now: datetime) -> None:
    data = summary(session, row, now).model_dump(mode="json")
    event_log.append(session, row.federation_id, "round", data, at=now)


def announce_pack(session: Session, federation_id: str, base_model: str) -> None:
    """Append an event for a pack whose acceptance test changed."""
    digest = base_weights.pack_digest(session, federation_id, base_model)
    if digest is not None:
        event_log.append(session, federation_id, "alignment", {"base_model": base_model, "digest": digest})


def _end(session: Session, federation: FederationRow) -> None:
    now, link = database_time(session), roster.newest(session, federation.id)
    federation.state = "finished"
    # The final manifests name the roster at `finished_at`: its last link must not lie after that.
    federation.finished_at = max(now, link.at) if link is not None else now
    session.flush()
    count, last = store.published(session, federation.id)
    data: dict[str, Any] = {"rounds": count}
    if verdicts := scores.mixing_verdicts(session, federation.id).get(last):
        data["mixing"] = verdicts
    webhook_outbox.add(session, federation.id, "federation.finished", data)


def federation_state(federation: FederationRow) -> FederationState:
    return parse_state(federation.state)


def parse_state(stored: str) -> FederationState:
    states: tuple[FederationState, ...] = ("open", "running", "paused", "finished")
    return next(state for state in states if state == stored)
