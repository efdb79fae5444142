"""Compute the initial weights of a newcomer: a mixture weighed by its sketch, a mean, or the summed model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore

from sqlalchemy.orm import Session

from coordinator.aggregation import store
from coordinator.aggregation.combining import combine
from coordinator.aggregation.output_writer import Receiver
from coordinator.aggregation.part import StagedWeights
from coordinator.aggregation.parts import parts_of
from coordinator.aggregation.weighting import guarded_weights
from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.errors import Busy
from coordinator.experts.current_bank import current_index
from coordinator.http.downloads import StoredBody
from coordinator.rounds import base_weights
from coordinator.storage.staging import Staging
from coordinator.strategies.base import ClientFacts, Cohort, Sketch, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.wire.envelope import head

BLOCK_BYTES = 16 * 2**20
"""The memory for the values of a newcomer."""
_PATIENCE_SECONDS = 10.0

# Each reads all clients' states once. A third one waits, and then gets an error.
_WEIGHERS = BoundedSemaphore(2)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A client before its first update, as it joins round `number`."""

    member: Member
    number: int
    opened: OpenedPlan
    layout: Layout
    pack: str | None
    sketch: Sketch | None
    bank: BankIndex | None = None

    @property
    def manifest(self) -> WeightsManifest:
        return WeightsManifest(
            federation=self.member.federation_id,
            recipe={},
            round=self.number,
            client=self.member.client_id,
            pack=self.pack,
            bank=self.bank,
            initial=True,
        )


def load_newcomer(
    database: Database,
    member: Member,
    round_number: int,
    opened: OpenedPlan,
    pack: str | None,
    sketch: Sketch | None,
) -> Newcomer:
    """Load the layout of a newcomer, and the sketch of an earlier join if it sent none with this one."""
    federation_id = member.federation_id
    with database.read() as session:
        return Newcomer(
            member=member,
            number=round_number,
            opened=opened,
            layout=base_weights.layout(session, federation_id, opened, member.base_model, member.profile),
            pack=pack,
            sketch=sketch or store.sketch_of_join(session, federation_id, member.client_id),
            bank=current_index(session, federation_id, opened),
        )


def initial_weights(
    staging: Staging, newcomer: Newcomer, last_published: int | None
) -> StagedWeights | StoredBody | None:
    """Return the initial weights of a newcomer as of the last published round; None = zeros.

    Parts of the plan may have stored them already: the weights of the newcomer's group, or the model that all
    clients have in common.

    Raises:
        Busy: too many newcomers at once.
    """
    # Nothing was published that a mixture could be made of.
    if last_published is None:
        return None
    for part in parts_of(newcomer.opened):
        if part.stores_newcomer_weights:
            return part.newcomer_weights(
                staging.database,
                newcomer.member.base_model,
                newcomer.layout,
                newcomer.manifest,
                last_published,
            )
    return _compute(staging, newcomer, last_published)


def _compute(staging: Staging, newcomer: Newcomer, last_published: int) -> StagedWeights:
    opened, client_id, database = newcomer.opened, newcomer.member.client_id, staging.database
    with _weigher():
        with database.read() as session:
            clients = store.established(session, newcomer.member.federation_id, opened, last_published)
            enrolled = [client for client in clients if client.is_enrolled]
            facts = _facts(session, newcomer)
        peers = [client.facts for client in enrolled]
        states = {client.facts.client: client.state for client in enrolled}
        weighing = opened.strategy.weigh(Cohort([*peers, facts], opened.plan.rounds.staleness_decay))
        settled = guarded_weights(staging, opened, weighing, states, {client_id})
        with database.read() as session:
            states |= store.last_served(session, weighing.absent, last_published + 1)
        receiver = Receiver(client_id, newcomer.layout, head(newcomer.layout, newcomer.manifest))
        return combine(staging, opened, settled.weights, states, [receiver])[client_id]


@contextmanager
def _weigher() -> Iterator[None]:
    if not _WEIGHERS.acquire(timeout=_PATIENCE_SECONDS):
        raise Busy
    try:
        yield
    finally:
        _WEIGHERS.release()


def _facts(session: Session, newcomer: Newcomer) -> ClientFacts:
    member, plan = newcomer.member, newcomer.opened.plan
    return ClientFacts(
        client=member.client_id,
        base_model=member.base_model,
        alignment_set=store.alignment_set(session, member.federation_id, plan, member.base_model),
        modules=modules_of(newcomer.layout),
        age=None,
        examples=0,
        sketch=newcomer.sketch,
        sketch_model=store.sketch_model(plan, member.base_model),
        is_source=False,
        organisation=store.organisation(session, member.client_id),
    )
