"""Make the weights of a client that has nothing of its own yet: what its signature asks for, or the mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore

from sqlalchemy.orm import Session

from coordinator.aggregation import base_delta_store, store
from coordinator.aggregation.factor_combining import weights_of
from coordinator.aggregation.output_writer import Receiver, StagedOutput
from coordinator.aggregation.weighting import weighed
from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.errors import Busy
from coordinator.http.downloads import Stored
from coordinator.rounds import base_weights
from coordinator.strategies.base import ClientFacts, Cohort, Signature, modules_of
from coordinator.strategies.opening import OpenedPlan
from coordinator.weights.base_delta import kin_of
from schemas.maths.adapter import Layout
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import head

_BLOCK_BYTES = 16 * 2**20
_PATIENCE_SECONDS = 10.0

# Each reads everybody's state once; beyond two at a time the others wait, then are sent away.
_WEIGHERS = BoundedSemaphore(2)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A client before its first update, as it joins round `number`."""

    member: Member
    number: int
    opened: OpenedPlan
    layout: Layout
    pack: str | None
    signature: Signature | None

    @property
    def manifest(self) -> WeightsManifest:
        """What is said about its weights."""
        return WeightsManifest(
            federation=self.member.federation_id,
            recipe={},
            round=self.number,
            client=self.member.client_id,
            pack=self.pack,
        )


def newcomer(
    database: Database,
    member: Member,
    round_number: int,
    opened: OpenedPlan,
    pack: str | None,
    signature: Signature | None,
) -> Newcomer:
    """Collect what is known of a newcomer; a signature of an earlier join counts until there is a new one."""
    federation_id = member.federation_id
    with database.read() as session:
        return Newcomer(
            member=member,
            number=round_number,
            opened=opened,
            layout=base_weights.layout(session, federation_id, opened, member.base_model, member.profile),
            pack=pack,
            signature=signature or store.signature_of_join(session, federation_id, member.client_id),
        )


def begin(database: Database, one: Newcomer, last_published: int | None) -> StagedOutput | Stored | None:
    """Give what a newcomer starts from as of the last published round; None = zeros, there is nothing yet.

    Where a strategy folds, the coordinator has it ready: what everybody of its base model goes on from.

    Raises:
        Busy: too many newcomers at once.
    """
    if last_published is None:
        return None
    if one.opened.traits.base_delta:
        kin = kin_of(one.member.base_model, one.layout)
        return base_delta_store.start(database, one.member.federation_id, last_published, kin, one.manifest)
    return weigh(database, one, last_published)


def weigh(database: Database, one: Newcomer, last_published: int) -> StagedOutput:
    """Make a newcomer's weights from everybody's states as of the last published round.

    Raises:
        Busy: too many newcomers at once.
    """
    with _weigher():
        with database.read() as session:
            federation_id = one.member.federation_id
            everyone = store.established(session, federation_id, one.opened, last_published)
            others = [other for other in everyone if other.is_enrolled]
            facts = _facts(session, one)
        cohort = Cohort([*(other.facts for other in others), facts], one.opened.plan.rounds.staleness_decay)
        client = one.member.client_id
        states = {other.facts.client: other.state for other in others}
        settled = weighed(
            database, one.opened, cohort, states, {client}, block_bytes=_BLOCK_BYTES, between=lambda: None
        )
        with database.read() as session:
            states |= store.last_served(session, settled.asked.absent, last_published + 1)
        made = weights_of(
            database,
            one.opened,
            settled.weights,
            states,
            [Receiver(client, one.layout, head(one.layout, one.manifest))],
            block_bytes=_BLOCK_BYTES,
            between=lambda: None,
        )
        return made[client]


@contextmanager
def _weigher() -> Iterator[None]:
    if not _WEIGHERS.acquire(timeout=_PATIENCE_SECONDS):
        raise Busy
    try:
        yield
    finally:
        _WEIGHERS.release()


def _facts(session: Session, one: Newcomer) -> ClientFacts:
    aligned = store.alignment_set(session, one.member.federation_id, one.member.base_model)
    return ClientFacts(
        client=one.member.client_id,
        base_model=one.member.base_model,
        alignment_set=aligned if one.opened.plan.alignment is not None else None,
        modules=modules_of(one.layout),
        age=None,
        examples=0,
        signature=one.signature,
        signature_model=store.signature_model(one.opened.plan, one.member.base_model),
        is_source=False,
        organisation=store.organisation(session, one.member.client_id),
    )
