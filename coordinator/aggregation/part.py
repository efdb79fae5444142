"""A closed round, its new weights, and the interface of the parts that a strategy or a plan adds to it.

Nothing here reads an update, so that the parts of a sum may import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sqlalchemy import Select
from sqlalchemy.orm import Session

from coordinator.aggregation.guard import GuardReport
from coordinator.db.engine import Database
from coordinator.db.tables.federations import RoundRow
from coordinator.http.downloads import StoredBody
from coordinator.rounds.store import LeaseToken
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from coordinator.strategies.base import ClientFacts, Cohort, Weighing, Weights
from coordinator.strategies.opening import OpenedPlan
from coordinator.totals import JointValues, SegmentChange, Total
from schemas.maths.adapter import Layout
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.wire.envelope import MEDIA_TYPE


@dataclass(frozen=True, slots=True)
class Claim:
    """A round that this worker aggregates until its lease runs out."""

    federation_id: str
    number: int
    round_id: int
    token: LeaseToken
    plan: FederationPlan


@dataclass(frozen=True, slots=True)
class StoredState:
    """A client's stored adapter state: float32 values in the order of `layout`, from byte `begin` on."""

    payload_id: int
    begin: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class EstablishedClient:
    """A client with an accepted update; after it is revoked, the update counts in its own round only.

    `manifest` is that of its next weights, which only an enrolled client gets. `compared` is the layout of
    its state, under mixed ranks at the largest one. `received` are id and size of the payload as received.
    """

    facts: ClientFacts
    state: StoredState
    compared: Layout
    manifest: WeightsManifest
    is_enrolled: bool
    received: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SettledWeights:
    """The relevance of a round, the weights that are served, and the report of how they differ.

    `report` is None if nothing limits the weights, which then are the relevance. `alone` are the clients that
    keep their own, or start from zeros, because a mixture has too few voices.
    """

    weighing: Weighing
    weights: Weights
    report: GuardReport | None
    alone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A closed round during its aggregation: its staged payloads, and the parts of its plan in order."""

    staging: Staging
    claim: Claim
    opened: OpenedPlan
    parts: Sequence[Part]

    @property
    def database(self) -> Database:
        return self.staging.database


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """A client's new weights: `head`, then `staged` from `begin` on; digest and size of the whole body."""

    head: bytes
    staged: StagedPayload
    begin: int
    digest: str
    size: int

    def adopted(self, payload_id: int) -> StoredBody:
        return StoredBody(payload_id, self.digest, self.size, MEDIA_TYPE, head=self.head, begin=self.begin)


@dataclass(slots=True)
class NewWeights:
    """The staged result of a round.

    Attributes:
        bodies: the weights of each client.
        clients: the clients whose updates were weighed; none for a sum.
        settled: their weights for each other; None for a sum.
        beside: by form and client, bodies that are published with the weights (`weights.store.store_bodies`).
    """

    bodies: dict[str, StagedWeights]
    clients: Sequence[EstablishedClient] = ()
    settled: SettledWeights | None = None
    beside: dict[Literal["served", "outputs"], dict[str, StagedPayload]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OldTensors:
    """Rows whose tensors no later round reads.

    Attributes:
        references: the columns that refer to payloads.
        extras: further columns that are cleared.
    """

    rows: Select[Any]
    references: tuple[str, ...] = ("payload_id",)
    extras: tuple[str, ...] = ()


class Part:
    """A part of a round's publication. A hook does nothing by default, or what a round without parts does.

    An object serves one round; `store` refers to what an earlier hook has staged.
    """

    # A class attribute: joining asks before any round is aggregated.
    stores_newcomer_weights: ClassVar[bool] = False
    """Whether newcomers get the stored `newcomer_weights` instead of a mixture."""

    def weigh(self, closed: ClosedRound, cohort: Cohort, states: Mapping[str, StoredState]) -> Cohort:
        """Return the cohort with further facts that its weighing needs."""
        return cohort

    def new_weights(self, closed: ClosedRound) -> NewWeights | None:
        """Return new weights that are computed without the updates of clients; None = they are weighed."""
        return None

    def combine(
        self, closed: ClosedRound, clients: Sequence[EstablishedClient], settled: SettledWeights
    ) -> dict[str, StagedWeights] | None:
        """Return the weights of clients by the shares that each is served; None = the strategy's mixtures."""
        return None

    def finish(self, closed: ClosedRound, new: NewWeights) -> None:
        """Change new weights, or stage what is published beside them."""

    def store(self, session: Session, row: RoundRow, adopted: Mapping[int, int]) -> None:
        """Write rows in the transaction that publishes; `adopted` are the final ids of staged payloads."""

    def joint_layout(self, closed: ClosedRound, session: Session, layout: Layout) -> Layout:
        """Return the layout of all that a sum changes, which is that of the joint model."""
        return layout

    def joint_model(self, closed: ClosedRound, model: JointValues, layout: Layout) -> JointValues:
        """Return all values that a sum changes, which are those of the joint model."""
        return model

    def revise(
        self, closed: ClosedRound, total: Total, revised: Mapping[str, SegmentChange], layout: Layout
    ) -> BankIndex | None:
        """Apply a sum to what is beside the joint model; return the index of a bank for the manifests."""
        return None

    @staticmethod
    def newcomer_weights(
        database: Database, base_model: str, layout: Layout, manifest: WeightsManifest, until: int
    ) -> StoredBody | None:
        """Return the weights of a newcomer after round `until`; None = zeros."""
        return None

    @staticmethod
    def old_tensors(federation_id: str, oldest_kept: int) -> Sequence[OldTensors]:
        """Return the rows of this part whose tensors retention deletes; `oldest_kept` is a round."""
        return ()
