"""Take steps of the coordinator's optimiser on values that arrive in order, with stored moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from coordinator.aggregation.payload_values import PayloadValues
from coordinator.aggregation.tensor_writing import write_tensors
from coordinator.db.engine import Database
from coordinator.storage import optimizer_moments, payloads
from coordinator.storage.payloads import Staged
from coordinator.strategies.server_optimizer import ServerOptimizer
from coordinator.weights.base_delta import BaseModelGroup, group_of
from schemas.maths.adapter import Layout, size

Values = NDArray[np.float32]

_SUMMED: Final = ""  # no base model: all clients whose updates are summed


def summed_group(layout: Layout) -> BaseModelGroup:
    """Return the group of all clients whose updates are summed."""
    return group_of(_SUMMED, layout)


@dataclass(frozen=True, slots=True)
class StagedMoments:
    """The moments of a group after a round, not published yet."""

    group: BaseModelGroup
    staged: Staged


def store_moments(
    session: Session,
    federation_id: str,
    round_number: int,
    groups: Iterable[StagedMoments],
    adopted: Mapping[int, int],
) -> None:
    """Store the moments of groups; `adopted` are the payloads by the id under which they were staged."""
    for new in groups:
        payload_id = adopted[new.staged.payload_id]
        optimizer_moments.replace(session, federation_id, *new.group, round_number, payload_id)


class Stepper:
    """An optimiser with the moments of one group, for values in the order of a layout.

    Args:
        payload_id: the stored moments; None = the optimiser begins.
    """

    def __init__(
        self, database: Database, optimizer: ServerOptimizer, layout: Layout, payload_id: int | None
    ) -> None:
        self._optimizer = optimizer
        self._at = 0
        self._stored = None
        if payload_id is not None:
            self._stored = PayloadValues(database, payload_id, "<f4", size(layout) * optimizer.moments)

    def step(self, before: Values, mean: Values) -> tuple[Values, Values]:
        """Move the next values (n,) by their mean (n,); return them and their moments (n, moments)."""
        change = mean.astype(np.float64) - before
        moved, moments = self._optimizer.step(change, self.stay(len(change)).astype(np.float64))
        return np.asarray(before + moved, np.float32), np.asarray(moments, np.float32)

    def stay(self, count: int) -> Values:
        """Return the moments of the next values (count, moments), as they are."""
        width, at = self._optimizer.moments, self._at
        self._at += count
        if self._stored is None:
            return np.tile(np.asarray(self._optimizer.start(), np.float32), (count, 1))
        read: Values = self._stored.read(width * at, width * count)
        return read.reshape(count, width)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an optimiser on all values of a joint model, in blocks that `means` and `before` yield.

    Moments and values are computed by themselves, since values may be written twice.
    """

    database: Database
    optimizer: ServerOptimizer
    layout: Layout
    payload_id: int | None
    means: Callable[[], Iterator[Values]]
    before: Callable[[], Iterator[Values]]

    def values(self) -> Iterator[Values]:
        """Yield the new values, (block,)."""
        return (values for values, _ in self._blocks())

    def stage_moments(self, begun: list[Staged], between: Callable[[], None]) -> StagedMoments:
        """Write the new moments as an unpublished payload, which is added to `begun`."""
        with self.database.write() as session:
            new = StagedMoments(summed_group(self.layout), payloads.stage(session))
        begun.append(new.staged)
        write_tensors(self.database, ((new.staged, moments) for _, moments in self._blocks()), between)
        return new

    def _blocks(self) -> Iterator[tuple[Values, Values]]:
        stepper = Stepper(self.database, self.optimizer, self.layout, self.payload_id)
        for before, mean in zip(self.before(), self.means(), strict=True):
            yield stepper.step(before, mean)
