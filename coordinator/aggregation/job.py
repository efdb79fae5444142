"""Aggregate a closed round: claim it with a lease, weigh its clients, compute and publish their weights.

A worker that dies leaves unreferenced staged bytes and a lease that expires; the next one starts over. The
publishing transaction checks the token of the lease, so that only its holder publishes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from coordinator.aggregation import store
from coordinator.aggregation.combining import combine
from coordinator.aggregation.output_writer import Receiver
from coordinator.aggregation.part import (
    Claim,
    ClosedRound,
    EstablishedClient,
    NewWeights,
    SettledWeights,
    StagedWeights,
    StoredState,
)
from coordinator.aggregation.parts import parts_of
from coordinator.aggregation.weighting import guarded_weights
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.federations.store import plan_of
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lease import Lease
from coordinator.rounds.lifecycle import AGGREGATION_FAILED, next_state
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Cohort, Weighing
from coordinator.strategies.opening import open_plan
from coordinator.weights.store import assign, store_bodies
from schemas.wire.envelope import head


def lease_of(database: Database, claim: Claim, seconds: float) -> Lease:
    """Return the lease of a claimed round."""

    def extend_by(seconds: float) -> None:
        with database.write() as session:
            until = database_time(session) + timedelta(seconds=seconds)
            rounds.extend_lease(session, claim.round_id, claim.token, until)

    return Lease(extend_by, seconds)


def claim_due(database: Database, lease_seconds: float) -> Claim | None:
    """Claim a round that waits for aggregation, or whose lease has expired; None if there is none."""
    # Read without a lock; each candidate is checked again under the lock of its federation.
    with database.autocommit() as session:
        due = rounds.awaiting_worker(session, database_time(session))
    for federation_id, round_number in due:
        with database.write() as session:
            locked = lock_federation(session, federation_id)
            plan = plan_of(locked)
            row = rounds.claimable(session, federation_id, round_number)
            if row is None:
                continue
            step = next_state(rounds.facts(session, row, plan), database_time(session))
            if step is None or step.to != "aggregating":
                continue
            token = rounds.LeaseToken(secrets.token_hex(16))
            transitions.claim(session, row, token, timedelta(seconds=lease_seconds))
            may_crash("claim-written")
        may_crash("claim-committed")
        return Claim(federation_id, round_number, row.id, token, plan)
    return None


def aggregate(database: Database, claim: Claim, *, block_bytes: int, between: Callable[[], None]) -> int:
    """Compute the new weights of a round's clients, and publish them.

    Returns:
        the number of clients whose only source is themselves; 0 for a sum.

    Raises:
        LostRace: another worker has the round, or it has ended; nothing was published.
    """
    opened = open_plan(claim.plan)
    with Staging(database, between, block_bytes) as staging:
        closed = ClosedRound(staging, claim, opened, parts_of(opened))
        new = _weights_without_updates(closed) or _weights_from_updates(closed)
        for part in closed.parts:
            part.finish(closed, new)
        _publish(closed, new)
    return _alone(new)


def _weights_without_updates(closed: ClosedRound) -> NewWeights | None:
    for part in closed.parts:
        new = part.new_weights(closed)
        if new is not None:
            return new
    return None


def _weights_from_updates(closed: ClosedRound) -> NewWeights:
    """Weigh the clients of a round, guard each one's weights, and combine the updates by them."""
    with closed.database.read() as session:
        clients = store.established(session, closed.claim.federation_id, closed.opened, closed.claim.number)
    states = {client.facts.client: client.state for client in clients}
    enrolled = {client.facts.client for client in clients if client.is_enrolled}
    weighing = _weigh(closed, clients, states)
    settled = guarded_weights(closed.staging, closed.opened, weighing, states, enrolled)
    bodies = _combine(closed, clients, settled, states)
    return NewWeights(bodies, clients, settled)


def _weigh(
    closed: ClosedRound, clients: Sequence[EstablishedClient], states: Mapping[str, StoredState]
) -> Weighing:
    cohort = Cohort([client.facts for client in clients], closed.opened.plan.rounds.staleness_decay)
    for part in closed.parts:
        cohort = part.weigh(closed, cohort, states)
    return closed.opened.strategy.weigh(cohort)


def _combine(
    closed: ClosedRound,
    clients: Sequence[EstablishedClient],
    settled: SettledWeights,
    states: Mapping[str, StoredState],
) -> dict[str, StagedWeights]:
    for part in closed.parts:
        bodies = part.combine(closed, clients, settled)
        if bodies is not None:
            return bodies
    with closed.database.read() as session:
        served = store.last_served(session, settled.weighing.absent, closed.claim.number)
    receivers = [
        Receiver(client.facts.client, client.state.layout, head(client.state.layout, client.manifest))
        for client in clients
        if client.is_enrolled
    ]
    return combine(closed.staging, closed.opened, settled.weights, {**states, **served}, receivers)


def _publish(closed: ClosedRound, new: NewWeights) -> None:
    claim = closed.claim
    with closed.database.write() as session:
        # Payloads before the federation's lock, in the same order as a delivery.
        adopted = closed.staging.adopt(session)
        locked = lock_federation(session, claim.federation_id)
        row = rounds.get_round(session, claim.federation_id, claim.number, lock=True)
        # Fencing: a worker whose lease has run out must not publish over its successor.
        if row.lease_token != claim.token:
            raise rounds.LostRace
        now = database_time(session)
        for client, body in sorted(new.bodies.items()):
            stored = body.adopted(adopted[body.staged.payload_id])
            assign(session, claim.federation_id, client, claim.number + 1, stored, now)
        for form, staged in new.beside.items():
            ids = {client: adopted[payload.payload_id] for client, payload in sorted(staged.items())}
            store_bodies(session, claim.federation_id, claim.number + 1, form, ids)
        if new.settled is not None:
            store.store_relevance(session, row.id, new.settled)
        for part in closed.parts:
            part.store(session, row, adopted)
        transitions.publish(session, locked, row)
        may_crash("publication-written")
    may_crash("publication-committed")


def _alone(new: NewWeights) -> int:
    relevance = new.settled.weighing.relevance if new.settled is not None else ()
    return int(sum(row[place] == 1.0 for place, row in enumerate(relevance)))


def abandon(database: Database, claim: Claim) -> None:
    """Abandon a round whose aggregation failed: the same inputs would fail again."""
    with database.write() as session:
        locked = lock_federation(session, claim.federation_id)
        row = rounds.get_round(session, claim.federation_id, claim.number, lock=True)
        # Another worker may have the round by now, and may succeed.
        if row.lease_token == claim.token:
            transitions.abandon(session, locked, row, AGGREGATION_FAILED)
