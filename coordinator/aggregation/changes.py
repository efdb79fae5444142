"""Compare what clients change in a round, with what they changed before.

d_i is the state that client i delivers minus the weights that it was served for the round. Clients of tasks
that contradict each other begin with the same weights, and each pulls them its own way: the cosine of d_i and
d_j tells them apart, where gradients of the bare model are alike (docs/decisions/0074).

Rounds are added with decay, weighted by the lengths of the changes: as the learning rate falls to zero,
changes become noise, and what was seen before stands.

    a_ij = sum over rounds of decay^age d_i . d_j        b_ij = sum of decay^age |d_i| |d_j|
    C_ij = a_ij / b_ij, over the rounds in which both delivered an update

Cosines fall from round to round, as noise grows beside what is learnt. Two clients that met in early rounds
would look more alike than two that met later. So each pair is compared with what is usual in its rounds:

    e_ij = sum of decay^age median |d_i| |d_j|           median of the cosines of all pairs of that round
    C_ij = a_ij / b_ij - e_ij / b_ij + the largest e / b

The last term is the same for all pairs. Where all clients deliver in all rounds, both terms cancel nearly.

A client that joins late has only the last, small changes in common with the others. C_ij is not compared
unless b_ij is a good part of sqrt(b_ii b_jj), its upper bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from coordinator.aggregation.part import ClosedRound, Part, StoredState
from coordinator.aggregation.weighting import inner_products
from coordinator.db.engine import run
from coordinator.db.tables.federations import RelevanceRow, RoundRow
from coordinator.rounds import base_weights
from coordinator.strategies.base import Cohort, Floats, Kind, equal_pairs
from schemas.wire.header import read_own_head

# Per round of the federation, also if a client delivered nothing in it.
_DECAY = 0.5

# The least b_ij / sqrt(b_ii b_jj) at which two clients are compared. It is 1 for clients that deliver in
# the same rounds, .46 in the mean where each round draws half of them, and was .02 for a client that joined
# late.
_LEAST_OVERLAP = 0.1

_STORE = (
    update(RelevanceRow)
    .where(RelevanceRow.round_id == bindparam("round"), RelevanceRow.client_id == bindparam("client"))
    .values(changes=bindparam("compared"))
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The comparisons of all rounds so far.

    Attributes:
        clients: the ids, in order.
        products: a (N, N).
        lengths: b (N, N); zero for clients that never delivered in one round, or have no tensors in common.
        usual: e (N, N).
    """

    clients: Sequence[str]
    products: Floats
    lengths: Floats
    usual: Floats

    def cosines(self) -> Floats:
        """Return C (N, N); NaN = not compared. The diagonal is 1."""
        most = np.sqrt(np.diag(self.lengths))
        compared = (self.lengths > 0) & (self.lengths >= _LEAST_OVERLAP * most[:, None] * most[None, :])
        missing = np.full_like(self.products, np.nan)
        cosines = np.divide(self.products, self.lengths, out=missing.copy(), where=compared)
        peers = compared & ~np.eye(len(cosines), dtype=bool)
        usual = np.divide(self.usual, self.lengths, out=missing, where=peers)
        if peers.any():
            cosines[peers] += np.max(usual[peers]) - usual[peers]
        return np.clip(cosines, -1.0, 1.0)

    def of(self, clients: Sequence[str]) -> Changes:
        """Return the comparisons of these clients, of which some may be new."""
        places = {client: place for place, client in enumerate(self.clients)}
        compared = [place for place, client in enumerate(clients) if client in places]
        before = [places[clients[place]] for place in compared]
        sums = np.zeros((3, len(clients), len(clients)))
        for selected, stored in zip(sums, (self.products, self.lengths, self.usual), strict=True):
            selected[np.ix_(compared, compared)] = stored[np.ix_(before, before)]
        return Changes(clients, *sums)


class ComparedChanges(Part):
    """Comparisons of changes, by which cohorts are weighed; stored with the relevance of the round."""

    def __init__(self) -> None:
        self._changes: Changes | None = None

    def weigh(self, closed: ClosedRound, cohort: Cohort, states: Mapping[str, StoredState]) -> Cohort:
        """Return the cohort with its comparisons; O(N^2 D) products, and 2 N D values are read."""
        claim, seed = closed.claim, closed.opened.plan.training.seed
        # An update of an earlier round was compared in its own round.
        delivered = np.array([facts.age == 0 for facts in cohort.clients], bool)
        with closed.database.read() as session:
            present = [facts.client for facts in cohort.clients if facts.age == 0]
            began = _began_with(session, present, claim.number)
            earlier = _changes_before(session, claim.federation_id, claim.number)
        used = dict.fromkeys(cohort.kinds(), delivered)
        inner = inner_products(closed.staging, cohort, states, began, used, seed)
        self._changes = summed(cohort, inner, earlier)
        return replace(cohort, changes=self._changes.cosines())

    def store(self, session: Session, row: RoundRow, adopted: Mapping[int, int]) -> None:
        """Add the comparisons to the stored relevance of the round."""
        if self._changes is None or not self._changes.clients:
            return
        # The next round adds to the sums with decay; cosines are stored to be shown as they were used.
        changes = self._changes
        planes = [changes.products, changes.lengths, changes.usual, changes.cosines()]
        values = np.stack(planes, 1).astype("<f8")  # (N, 4, N)
        rows = [
            {"round": row.id, "client": client, "compared": rows_of_client.tobytes()}
            for client, rows_of_client in zip(self._changes.clients, values, strict=True)
        ]
        run(session, _STORE, rows)


def summed(cohort: Cohort, products_by_kind: Mapping[Kind, Floats], earlier: Changes | None) -> Changes:
    """Add the products of a round (N, N), by kind, to the comparisons of earlier ones."""
    clients = [facts.client for facts in cohort.clients]
    kinds = cohort.kinds()
    # Frames align the tensors of two base models, and not the directions in which they are trained.
    comparable = equal_pairs([facts.base_model for facts in cohort.clients])
    products, squares_i, squares_j = np.zeros((3, len(clients), len(clients)))
    for kind, product in products_by_kind.items():
        shared = cohort.shares(kinds[kind]) & comparable
        squares = np.diag(product)
        products += np.where(shared, product, 0.0)
        squares_i += np.where(shared, squares[:, None], 0.0)
        squares_j += np.where(shared, squares[None, :], 0.0)
    lengths = np.sqrt(squares_i * squares_j)
    usual = _median(products, lengths) * lengths
    if earlier is not None:
        earlier_changes = earlier.of(clients)
        products, lengths = (
            products + _DECAY * earlier_changes.products,
            lengths + _DECAY * earlier_changes.lengths,
        )
        usual = usual + _DECAY * earlier_changes.usual
    return Changes(clients, products, lengths, usual)


def _median(products: Floats, lengths: Floats) -> float:
    """Return the median of the cosines of all pairs; 0 without any."""
    pairs = np.triu(lengths > 0, 1)
    return float(np.median(products[pairs] / lengths[pairs])) if pairs.any() else 0.0


def _began_with(session: Session, clients: Collection[str], round_number: int) -> dict[str, StoredState]:
    """Return the weights with which clients began a round, if they are still stored."""
    return {
        client: StoredState(served.payload_id, served.begin, read_own_head(served.head)[0])
        for client, served in base_weights.newest_of_each(session, clients, round_number).items()
        if served.payload_id is not None and served.head is not None
    }


def _changes_before(session: Session, federation_id: str, round_number: int) -> Changes | None:
    """Return the comparisons of changes that the newest round before this one stored; None without one."""
    newest = (
        select(func.max(RoundRow.number))
        .join(RelevanceRow, RelevanceRow.round_id == RoundRow.id)
        .where(
            RoundRow.federation_id == federation_id,
            RoundRow.number < round_number,
            RelevanceRow.changes.is_not(None),
        )
    ).scalar_subquery()
    rows = session.execute(
        select(RelevanceRow.client_id, RelevanceRow.changes)
        .join(RoundRow, RoundRow.id == RelevanceRow.round_id)
        .where(RoundRow.federation_id == federation_id, RoundRow.number == newest)
        .order_by(RelevanceRow.ordinal)
    ).all()
    if not rows:
        return None
    stored = [np.frombuffer(changes, "<f8") for _, changes in rows if changes is not None]
    products, lengths, *later = np.moveaxis(np.stack(stored).reshape(len(rows), -1, len(rows)), 1, 0)
    # Release 0.2.0 stored products and lengths only.
    usual = later[0] if later else _median(products, lengths) * lengths
    return Changes([client for client, _ in rows], products, lengths, usual)
