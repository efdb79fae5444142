"""Aggregate a closed round: claim it with a lease, weigh its clients, compute and publish their weights.

A worker that dies leaves unreferenced staged bytes and a lease that expires; the next one starts over. The
publishing transaction checks the token of the lease, so that only its holder publishes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from coordinator.aggregation import base_delta_store, store, summed
from coordinator.aggregation.base_delta import RoundOutput, write_base_deltas
from coordinator.aggregation.changes import Changes, compare_changes
from coordinator.aggregation.claim import Claim
from coordinator.aggregation.difference import StagedDifference
from coordinator.aggregation.factor_combining import write_weights
from coordinator.aggregation.output_writer import Receiver, discard
from coordinator.aggregation.outputs import stage_mixtures
from coordinator.aggregation.served_differences import as_differences
from coordinator.aggregation.state_reader import StoredState
from coordinator.aggregation.store import Established
from coordinator.aggregation.weighting import SettledWeights, settle_weights
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.federations.store import plan_of
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lease import Lease
from coordinator.rounds.lifecycle import AGGREGATION_FAILED, next_state
from coordinator.storage import payloads
from coordinator.strategies.base import Cohort
from coordinator.strategies.opening import OpenedPlan, open_plan
from coordinator.weights.store import OUTPUTS, SERVED, assign, store_bodies
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
    """Weigh the round's clients, compute their weights and publish them; or add their sum to the joint model.

    Returns:
        the number of clients whose only source is themselves; 0 for a sum.

    Raises:
        LostRace: another worker has the round, or it has ended; nothing was published.
    """
    opened = open_plan(claim.plan)
    if opened.plan.privacy.secure_sum is not None:
        summed.publish_sum(database, claim, opened, block_bytes=block_bytes, between=between)
        return 0
    with database.read() as session:
        clients = store.established(session, claim.federation_id, opened, claim.number)
    cohort = Cohort([client.facts for client in clients], opened.plan.rounds.staleness_decay)
    receivers = _receivers(clients)
    states = {client.facts.client: client.state for client in clients}
    changes = None
    if opened.traits.compares_changes:
        changes = _changes(database, claim, opened, cohort, states, block_bytes=block_bytes, between=between)
        cohort = replace(cohort, changes=changes.cosines())
    settled = settle_weights(
        database,
        opened,
        cohort,
        states,
        {receiver.client for receiver in receivers},
        block_bytes=block_bytes,
        between=between,
    )
    if opened.traits.base_delta:
        output = write_base_deltas(
            database,
            opened.strategy,
            settled.weights,
            clients,
            settled.alone,
            claim.federation_id,
            claim.number,
            between,
        )
    else:
        with database.read() as session:
            states |= store.last_served(session, settled.weighing.absent, claim.number)
        bodies = write_weights(
            database, opened, settled.weights, states, receivers, block_bytes=block_bytes, between=between
        )
        served = as_differences(database, opened, bodies, claim.number, between)
        output = RoundOutput(served.bodies, differences=served.differences)
    try:
        mixtures = stage_mixtures(database, opened, clients, settled.weighing, between)
        output = replace(output, outputs=mixtures)
        _publish(database, claim, settled, changes, output)
    except BaseException:
        discard(database, output.written)
        raise
    return int(sum(row[place] == 1.0 for place, row in enumerate(settled.weighing.relevance)))


def _receivers(clients: Sequence[Established]) -> list[Receiver]:
    return [
        Receiver(client.facts.client, client.state.layout, head(client.state.layout, client.manifest))
        for client in clients
        if client.is_enrolled
    ]


def abandon(database: Database, claim: Claim) -> None:
    """Abandon a round whose aggregation failed: the same inputs would fail again."""
    with database.write() as session:
        locked = lock_federation(session, claim.federation_id)
        row = rounds.get_round(session, claim.federation_id, claim.number, lock=True)
        if row.lease_token == claim.token:
            transitions.abandon(session, locked, row, AGGREGATION_FAILED)


def _changes(
    database: Database,
    claim: Claim,
    opened: OpenedPlan,
    cohort: Cohort,
    states: Mapping[str, StoredState],
    *,
    block_bytes: int,
    between: Callable[[], None],
) -> Changes:
    delivered = [facts.client for facts in cohort.clients if facts.age == 0]
    with database.read() as session:
        began = store.began_with(session, delivered, claim.number)
        earlier = store.changes_before(session, claim.federation_id, claim.number)
    return compare_changes(
        database,
        cohort,
        states,
        began,
        earlier,
        seed=opened.plan.training.seed,
        block_bytes=block_bytes,
        between=between,
    )


def _publish(
    database: Database, claim: Claim, settled: SettledWeights, changes: Changes | None, output: RoundOutput
) -> None:
    with database.write() as session:
        # Payloads before the federation's lock, in the same order as a delivery.
        adopted = payloads.adopt_all(session, (item.staged for item in output.written))
        locked = lock_federation(session, claim.federation_id)
        row = rounds.get_round(session, claim.federation_id, claim.number, lock=True)
        if row.lease_token != claim.token:
            raise rounds.LostRace
        now = database_time(session)
        for client, body in sorted(output.bodies.items()):
            stored = body.adopted(adopted[body.staged.payload_id])
            assign(session, claim.federation_id, client, claim.number + 1, stored, now)

        def ids(of_clients: Mapping[str, StagedDifference]) -> dict[str, int]:
            return {client: adopted[row.staged.payload_id] for client, row in sorted(of_clients.items())}

        place = claim.federation_id, claim.number + 1
        store_bodies(session, *place, SERVED, ids(output.differences))
        store_bodies(session, *place, OUTPUTS, ids(output.outputs))
        deltas = [(delta, adopted[delta.staged.payload_id]) for delta in output.deltas]
        base_delta_store.store_deltas(session, claim.federation_id, claim.number, deltas)
        store.store_relevance(session, row.id, settled, changes)
        transitions.publish(session, locked, row)
        may_crash("publication-written")
    may_crash("publication-committed")
