"""Build the brief of a client's current round, unless the client has to wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from fastapi import Request
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import FederationRow
from coordinator.federations import store as federations
from coordinator.http.dependencies import server_key_of
from coordinator.rounds import base_weights, manifests, queries, store, transitions
from coordinator.rounds.lifecycle import DELIVERED, ClientAction, client_action
from coordinator.rounds.sampling import is_drawn
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import FinishedBrief, RoundBrief, WeightsReference
from schemas.messages.updates import WeightsManifest


def action_of(status: queries.ClientRoundStatus) -> ClientAction:
    federation, delivered = transitions.parse_state(status.federation), status.participation in DELIVERED
    current = store.parse_state(status.state) if status.state is not None else None
    return client_action(federation, current, delivered=delivered)


def prepare_brief(
    request: Request, session: Session, member: Member, status: queries.ClientRoundStatus
) -> Callable[[], RoundBrief | FinishedBrief] | None:
    """Read the facts of a brief; return a function that builds it after the transaction has ended.

    None = the round does not need this client: other clients were drawn.
    """
    federation_id = member.federation_id
    if action_of(status) == "finished":
        finished = _finished(
            session, federations.federation(session, federation_id), member, server_key_of(request)
        )
        return lambda: finished
    if status.round_number is None or status.round_id is None:
        raise LookupError("a round is open, and it has no number")
    now = database_time(session)
    plan = federations.plan(session, federation_id)
    request.state.undrawn = None
    if plan.rounds.sample is not None and status.participation is None:
        round_key = status.round_id, status.round_number
        if not is_drawn(session, federation_id, *round_key, plan, now, member.client_id):
            request.state.undrawn = status.round_number
            return None
    base = _base(session, plan, status.round_number, member)
    return lambda: _brief(status, plan, base(), now)


def _brief(
    status: queries.ClientRoundStatus, plan: FederationPlan, base: WeightsReference, now: datetime
) -> RoundBrief:
    return RoundBrief.model_validate(
        {
            "round": status.round_number,
            "total_rounds": plan.rounds.total,
            "state": status.state,
            "deadline": status.deadline,
            "strategy": plan.strategy,
            "adapter": plan.adapter,
            "training": plan.training,
            "signature": plan.signature,
            "alignment": plan.alignment,
            "wire": plan.wire,
            "scores": plan.scores,
            "weights": base,
            "server_time": now,
        }
    )


def _base(
    session: Session, plan: FederationPlan, round_number: int, member: Member
) -> Callable[[], WeightsReference]:
    """Return a function that builds the reference of a client's weights, or of zeros for a new client."""
    served = base_weights.newest_reference(session, member.client_id, round_number)
    if served is not None:
        return lambda: served
    federation_id = member.federation_id
    layout = base_weights.layout(session, federation_id, open_plan(plan), member.base_model, member.profile)
    manifest = WeightsManifest(
        federation=federation_id,
        recipe={},
        round=round_number,
        client=member.client_id,
        pack=base_weights.pack_digest(session, federation_id, member.base_model),
        initial=True,
    )
    # A hash over megabytes of zeros, which is computed after the transaction.
    return lambda: base_weights.zeros(layout, manifest)[0]


def _final_number(session: Session, row: FederationRow) -> int:
    """Return the round number of the final manifest."""
    # After all rounds, not after the published ones: abandoned rounds have manifests too.
    newest = store.latest(session, row.id)
    return newest.number + 1 if newest is not None else 1


def _finished(session: Session, row: FederationRow, member: Member, key: ServerKey) -> FinishedBrief:
    _, last = store.published(session, row.id)
    newest = base_weights.newest_reference(session, member.client_id)
    number = base_weights.final_round(session, member.client_id, last)
    if newest is None:
        return FinishedBrief(state="finished", round=number, weights=None, manifest=None)
    return FinishedBrief(
        state="finished",
        round=number,
        weights=newest,
        manifest=manifests.final(session, row, member, _final_number(session, row), newest.digest, key),
    )
