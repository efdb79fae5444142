"""Take one round from closing to published: claim it with a lease, weigh, mix, publish in one transaction.

A worker that dies leaves staged bytes that nobody refers to and a lease that runs out; the next one starts
over. What is published was computed by the holder of the lease: the publishing transaction checks its token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from coordinator.aggregation import base_delta_store, store
from coordinator.aggregation.base_delta import Folds, GroupMember, fold
from coordinator.aggregation.factor_combining import weights_of
from coordinator.aggregation.output_writer import Receiver, Written, discard
from coordinator.aggregation.state_reader import StoredState
from coordinator.aggregation.weighting import Weighed, weighed
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.federations.store import plan_of
from coordinator.observability.fault_points import may_crash
from coordinator.rounds import base_weights, transitions
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import AGGREGATION_FAILED, next_state
from coordinator.storage import payloads
from coordinator.strategies.base import Cohort, make
from coordinator.strategies.capabilities import Folding
from coordinator.weights.base_delta import BaseModelGroup
from coordinator.weights.store import give
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import head


@dataclass(frozen=True, slots=True)
class Claim:
    """A round that this worker aggregates until its lease runs out."""

    federation_id: str
    number: int
    round_id: int
    token: rounds.LeaseToken
    plan: FederationPlan


class Lease:
    """Keeps a claim alive while work goes on; a third of it may pass between two signs of life."""

    def __init__(self, database: Database, claim: Claim, seconds: float) -> None:
        self._database = database
        self._claim = claim
        self._seconds = seconds
        self._last = time.monotonic()

    def keep(self) -> None:
        """Extend the lease when it is time to.

        Raises:
            LostRace: the round is another worker's, or has ended.
        """
        if time.monotonic() - self._last > self._seconds / 3:
            self._extend(self._seconds)
            self._last = time.monotonic()

    def give_up(self) -> None:
        """Let another worker claim the round at once; nothing happens when it is no longer ours."""
        try:
            self._extend(0.0)
        except rounds.LostRace:
            return

    def _extend(self, seconds: float) -> None:
        with self._database.write() as session:
            until = database_time(session) + timedelta(seconds=seconds)
            rounds.extend_lease(session, self._claim.round_id, self._claim.token, until)


def claim_due(database: Database, lease_seconds: float) -> Claim | None:
    """Claim a round whose updates wait for aggregation, or whose worker has died; None when there is none."""
    with database.autocommit() as asked:
        due = rounds.awaiting_worker(asked, database_time(asked))
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
    """Weigh the round's clients, make their weights, publish; give how many listen to nobody but themselves.

    Raises:
        LostRace: the round became another worker's, or ended; nothing was published.
    """
    plan = claim.plan
    with database.read() as session:
        everyone = store.established(session, claim.federation_id, plan, claim.number)
    cohort = Cohort([one.facts for one in everyone], plan.rounds.staleness_decay)
    receivers = [
        Receiver(one.facts.client, one.state.layout, head(one.state.layout, _manifest(claim, one)))
        for one in everyone
        if one.is_enrolled
    ]
    states = {one.facts.client: one.state for one in everyone}
    settled = weighed(
        database,
        plan,
        cohort,
        states,
        {one.client for one in receivers},
        block_bytes=block_bytes,
        between=between,
    )
    strategy = make(plan.strategy.name, plan.strategy.options)
    if isinstance(strategy, Folding):
        members, earlier = _folded(database, claim, everyone, settled.alone)
        done = fold(database, strategy, settled.weights, states, members, earlier, between=between)
    else:
        with database.read() as session:
            states |= store.last_served(session, settled.asked.absent, claim.number)
        done = Folds(
            weights_of(
                database, plan, settled.weights, states, receivers, block_bytes=block_bytes, between=between
            )
        )
    try:
        _publish(database, claim, settled, done)
    except BaseException:
        discard(database, [*done.made.values(), *done.folds])
        raise
    return int(sum(row[place] == 1.0 for place, row in enumerate(settled.asked.relevance)))


def abandon(database: Database, claim: Claim) -> None:
    """End a round that cannot be aggregated: the same inputs would fail again."""
    with database.write() as session:
        locked = lock_federation(session, claim.federation_id)
        row = rounds.numbered(session, claim.federation_id, claim.number, lock=True)
        if row.lease_token == claim.token:
            transitions.abandon(session, locked, row, AGGREGATION_FAILED)


def _folded(
    database: Database, claim: Claim, everyone: Sequence[store.Established], alone: Collection[str]
) -> tuple[list[GroupMember], dict[BaseModelGroup, StoredState]]:
    """Say into whose base models a round is folded, and what was folded there before."""
    with database.read() as session:
        trained_from = {
            one.facts.client: base_weights.newest(session, one.facts.client, claim.number)
            for one in everyone
            if one.facts.age == 0
        }
        earlier = base_delta_store.newest(session, claim.federation_id, claim.number)
    members = [
        GroupMember(
            one.facts.client,
            one.facts.base_model,
            one.state.layout,
            _manifest(claim, one),
            given.round_number if (given := trained_from.get(one.facts.client)) is not None else None,
            one.is_enrolled,
            one.facts.client in alone,
        )
        for one in everyone
    ]
    return members, earlier


def _publish(database: Database, claim: Claim, settled: Weighed, done: Folds) -> None:
    made = done.made
    with database.write() as session:
        written: list[Written] = [*dict(sorted(made.items())).values(), *done.folds]
        # before the federation is locked, as whoever delivers does it
        adopted = payloads.adopt_all(session, (one.staged for one in written))
        locked = lock_federation(session, claim.federation_id)
        row = rounds.numbered(session, claim.federation_id, claim.number, lock=True)
        if row.lease_token != claim.token:
            raise rounds.LostRace
        now = database_time(session)
        for client, body in sorted(made.items()):
            stored = body.adopted(adopted[body.staged.payload_id])
            give(session, claim.federation_id, client, claim.number + 1, stored, now)
        kept = [(one, adopted[one.staged.payload_id]) for one in done.folds]
        base_delta_store.keep(session, claim.federation_id, claim.number, kept)
        store.keep_relevance(session, row.id, settled)
        transitions.publish(session, locked, row)
        may_crash("publication-written")
    may_crash("publication-committed")


def _manifest(claim: Claim, one: store.Established) -> WeightsManifest:
    return WeightsManifest(
        federation=claim.federation_id,
        recipe={},
        round=claim.number + 1,
        client=one.facts.client,
        pack=one.pack_digest,
    )
