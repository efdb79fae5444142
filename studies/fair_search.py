"""The search of a learning rate for each method of a fair comparison: whole runs with a seed of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean

from client_agent.errors import StudyUnusable
from client_agent.training.rate_search import next_rate
from schemas.messages.base import Strict
from studies.methods import Method
from studies.outcomes import best_state
from studies.results import Cell, CellPlanner, CellResult, has_diverged, stored_result
from studies.study_fields import FairRules


class RateTrial(Strict):
    """One rate of one method: the validation loss of its run, None if training diverged."""

    rate: float
    loss: float | None


@dataclass(slots=True)
class FairSearch:
    """The searches of all methods. A run that two methods share serves both."""

    rules: FairRules
    out: Path
    planner: CellPlanner
    _losses: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        assert self.rules.search_seed is not None  # complete rules have one
        return self.rules.search_seed

    def rate(self, method: Method) -> float | None:
        """Return the chosen rate; None while the search is not finished.

        Raises:
            StudyUnusable: training diverged at every rate.
        """
        if self.rules.rates is not None and len(self.rules.rates) == 1:
            return self.rules.rates[0]
        losses, missing = self._walk(method)
        if missing:
            return None
        chosen = min(losses, key=lambda rate: (losses[rate], rate))
        if losses[chosen] == inf:
            raise StudyUnusable(
                f"{method.name} diverged at every learning rate that was tried; set lower ones in fair.rates"
            )
        return chosen

    def trials(self, method: Method) -> list[RateTrial]:
        """Return the rates that were tried, in ascending order."""
        tried = sorted(self._walk(method)[0].items())
        return [RateTrial(rate=rate, loss=None if loss == inf else loss) for rate, loss in tried]

    def runs(self, methods: Sequence[Method]) -> list[Cell]:
        """Return every run that the searches have needed so far, or need next, each once."""
        cells: dict[str, Cell] = {}
        for method in methods:
            tried, missing = self._walk(method)
            for cell in (*(self._cell(method, rate) for rate in tried), *missing):
                cells.setdefault(cell.digest, cell)
        return list(cells.values())

    def forget(self) -> None:
        """Read the losses from the disk again."""
        self._losses.clear()

    def _walk(self, method: Method) -> tuple[dict[float, float], list[Cell]]:
        """Return the losses by rate, infinite where training diverged, and the runs that are needed next."""
        losses: dict[float, float] = {}
        missing: list[Cell] = []

        def look(tried: float) -> bool:
            cell = self._cell(method, tried)
            loss = self._loss(cell)
            if loss is None:
                missing.append(cell)
            else:
                losses[tried] = loss
            return loss is not None

        if self.rules.rates is not None:
            for named in self.rules.rates if len(self.rules.rates) > 1 else ():
                look(named)
            return losses, missing
        while (rate := next_rate(losses)) is not None:
            if not look(rate):
                if not losses and (second := next_rate({rate: inf})) is not None:
                    look(second)  # the first two are needed in any case
                break
        return losses, missing

    def _cell(self, method: Method, rate: float) -> Cell:
        return self.planner.cell(method, self.seed, rate)

    def _loss(self, cell: Cell) -> float | None:
        key = cell.digest, cell.states
        if key not in self._losses:
            if has_diverged(cell, self.out):
                self._losses[key] = inf
            elif (result := stored_result(cell, self.out)) is not None:
                self._losses[key] = validation_loss(result)
        return self._losses.get(key)


def validation_loss(result: CellResult) -> float:
    """Return the mean over founders of the least validation loss that a client's states have.

    Raises:
        StudyUnusable: a client has too few validation examples.
    """
    losses: list[float] = []
    for client in (client for client in result.clients if client.joins_after == 0):
        best = best_state(client)
        if best is None or best.validation is None:
            raise StudyUnusable(
                f"{client.name} has too few validation examples to choose a learning rate by; see its source"
            )
        losses.append(best.validation)
    return fmean(losses)
