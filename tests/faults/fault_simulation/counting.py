"""Counts before sums: agents in or outside a group, and the sums that the counts allow.

I28: counts are taken once in a round. A sum after them is one of clients that were counted, and has a group
only if three of its members are left whoever of the counted ones is absent; no agent unmasks another one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from client_agent.rounds import summed_steps
from client_agent.rounds.sum_input import RoundResult
from schemas.maths.bank import REJECT
from schemas.messages.secure_sum import SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.counts import counts_digest
from schemas.strategies.averages import FedAvgOptions
from tests.faults.fault_simulation.fault_rates import Plan
from tests.faults.fault_simulation.sum_rows import Summed

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

GROUPS = ("x0", REJECT)
K_MIN = 3


@contextmanager
def groups_taken(plan: Plan) -> Iterator[None]:
    """Make the strategy of a schedule count rejections of the model: every second agent rejects it.

    Members that reject and those that do not are both summed only from K_MIN on, so that a division in two
    halves lets the loss of one member matter most often.
    """
    if plan.summed is None or not plan.summed.counts or plan.summed.bank is not None:
        yield
        return

    def groups(*_: object) -> tuple[str, ...]:
        return GROUPS

    def result(**fields: Any) -> RoundResult:
        digest_input = b"".join(
            np.ascontiguousarray(values).tobytes() for values in fields["trained"].values()
        )
        return RoundResult(**fields, rejects=zlib.crc32(digest_input) % 2 > 0)

    with (
        patch.object(FedAvgOptions, "counts", groups),
        patch.object(summed_steps, "RoundResult", result),
    ):
        yield


def is_count(values: NDArray[np.int64], terms: SumTerms) -> bool:
    """Whether an input is that of an agent: it uses one model of all, and rejects them or not."""
    whole = 2 ** (terms.bits - 1) - 1
    of_models = [v for v, s in zip(values, terms.segments, strict=True) if s.name != REJECT]
    return bool(np.isin(values, (0, whole)).all() and np.count_nonzero(of_models) == 1)


class CountsSeen:
    """Watches the counts of all rounds, and the sums after them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outcomes: dict[int, SumCounts] = {}

    def record_outcome(self, row: Summed, total: NDArray[np.int64]) -> None:
        """Note the outcome of a round's counts."""
        if row.round in self._outcomes:
            self._violated(f"round {row.round} was counted twice")
        whole = 2 ** (row.terms.bits - 1) - 1
        if (total % whole).any():
            self._violated(f"the counts of round {row.round} are no whole numbers")
        counted = sorted(row.client(position) for position in row.closed["masked"])
        names = [segment.name for segment in row.terms.segments]
        groups = dict(zip(names, (total // whole).tolist(), strict=True))
        self._outcomes[row.round] = SumCounts(session=row.number, counted=counted, groups=groups)
        self._world.count("counts taken")

    def outcome(self, number: int) -> SumCounts:
        """Return the outcome of the counts of a summed round."""
        return self._outcomes[number]

    def opened(self, row: Summed) -> None:
        """Check a new session against the counts of its round."""
        drawn, terms, counts = self._world.plan.summed, row.terms, self._outcomes.get(row.round)
        name = f"session {row.number} of round {row.round}"
        if drawn is None or not drawn.counts:
            if terms.kind != "sum" or terms.counts is not None:
                self._violated(f"{name} is of counts, and nothing is to be counted")
            return
        if (terms.kind == "counts") == (counts is not None):
            self._violated(f"{name} is of {terms.kind} {'after' if counts is not None else 'before'} counts")
        elif counts is not None:
            members = {member.client for member in terms.members}
            if not members <= set(counts.counted):
                self._violated(f"{name} sums clients that were not counted")
            if (terms.counts, terms.lost) != (counts_digest(counts), counts.members - len(members)):
                self._violated(f"the terms of {name} are of other counts")
            if not self.allows(row.round, terms, len(members)):
                self._violated(f"{name} has a group that may have too few members")
            self._world.count("sums with a group" if _groups(terms) else "sums without a group")

    def allows(self, round_number: int, terms: SumTerms, masked: int) -> bool:
        """Whether a sum of `masked` members may be unmasked, as to its groups."""
        counts = self._outcomes.get(round_number)
        if counts is None or terms.kind == "counts":
            return not _groups(terms)
        absent = counts.members - masked
        return all(counts.groups[group] - absent >= K_MIN for group in _groups(terms))

    def _violated(self, event: str) -> None:
        self._world.violated("I28", event)


def _groups(terms: SumTerms) -> set[str]:
    return {segment.group for segment in terms.segments if segment.group is not None}
