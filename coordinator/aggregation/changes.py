"""Compare what clients change in a round, with what they changed before.

d_i is the state that client i delivers minus the weights with which it began the round. Clients of tasks that
contradict each other begin with the same weights, and each pulls them its own way: the cosine of d_i and d_j
tells them apart, where gradients of the bare model are alike (docs/decisions/0074).

Rounds are added with decay, weighted by the lengths of the changes: as the learning rate falls to zero,
changes become noise, and what was seen before stands.

    a_ij = sum over rounds of decay^age d_i . d_j        b_ij = sum of decay^age |d_i| |d_j|
    C_ij = a_ij / b_ij, over the rounds in which both delivered an update

A client that joins late has only the last, small changes in common with the others, whose cosines are low
even for one task. C_ij is not compared unless b_ij is a good part of sqrt(b_ii b_jj), its upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.aggregation.state_reader import StoredState
from coordinator.aggregation.weighting import inner_products
from coordinator.db.engine import Database
from coordinator.strategies.base import Cohort, Floats, equal_pairs

_DECAY = 0.5
"""Per round of the federation, whoever delivered in it."""

_LEAST_OVERLAP = 0.1
"""The least b_ij / sqrt(b_ii b_jj) at which two clients are compared. It is 1 for clients that deliver in the
same rounds, .46 in the mean where each round draws half of them, and was .02 for a client that joined late.
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """The comparisons of all rounds so far.

    Attributes:
        clients: the ids, in order.
        products: a (N, N).
        lengths: b (N, N); zero for clients that never delivered in one round, or have no tensors in common.
    """

    clients: Sequence[str]
    products: Floats
    lengths: Floats

    def cosines(self) -> Floats:
        """Return C (N, N); NaN = not compared."""
        most = np.sqrt(np.diag(self.lengths))
        compared = (self.lengths > 0) & (self.lengths >= _LEAST_OVERLAP * most[:, None] * most[None, :])
        return np.divide(self.products, self.lengths, out=np.full_like(self.products, np.nan), where=compared)

    def of(self, clients: Sequence[str]) -> Changes:
        """Return the comparisons of these clients, of which some may be new."""
        places = {client: place for place, client in enumerate(self.clients)}
        compared = [place for place, client in enumerate(clients) if client in places]
        before = [places[clients[place]] for place in compared]
        products, lengths = np.zeros((2, len(clients), len(clients)))
        products[np.ix_(compared, compared)] = self.products[np.ix_(before, before)]
        lengths[np.ix_(compared, compared)] = self.lengths[np.ix_(before, before)]
        return Changes(clients, products, lengths)


def compare_changes(
    database: Database,
    cohort: Cohort,
    states: Mapping[str, StoredState],
    began: Mapping[str, StoredState],
    earlier: Changes | None,
    *,
    seed: int,
    block_bytes: int,
    between: Callable[[], None],
) -> Changes:
    """Add a round to the comparisons of earlier ones; O(N^2 D) products, and 2 N D values are read.

    Args:
        began: the weights with which clients began the round; without one, the start that `seed` determines.
        between: called after every block.
    """
    clients = [facts.client for facts in cohort.clients]
    delivered = np.array([facts.age == 0 for facts in cohort.clients], bool)
    kinds = cohort.kinds()
    inner = inner_products(
        database,
        cohort,
        states,
        began,
        dict.fromkeys(kinds, delivered),
        seed=seed,
        block_bytes=block_bytes,
        between=between,
    )
    # Frames align the tensors of two base models, and not the directions in which they are trained.
    comparable = equal_pairs([facts.base_model for facts in cohort.clients])
    products, of_i, of_j = np.zeros((3, len(clients), len(clients)))
    for kind, product in inner.items():
        shared = cohort.shares(kinds[kind]) & comparable
        squares = np.diag(product)
        products += np.where(shared, product, 0.0)
        of_i += np.where(shared, squares[:, None], 0.0)
        of_j += np.where(shared, squares[None, :], 0.0)
    lengths = np.sqrt(of_i * of_j)
    if earlier is not None:
        before = earlier.of(clients)
        products, lengths = products + _DECAY * before.products, lengths + _DECAY * before.lengths
    return Changes(clients, products, lengths)
