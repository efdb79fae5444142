"""Turn what clients measured of importance into the figures of a report. Pure: nothing is read or written.

A module is a layer's role, and layers of two base models are not each other's: who has one is compared with
others who have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.variational.measures import MeasuresFile
from client_agent.simulation.report.estimates import Estimate, estimate
from client_agent.simulation.results import CellResult, ClientResult
from schemas.messages.base import Strict


class ImportanceSummary(Strict):
    """What the clients of one method learnt of importance; estimates are over seeds, of founders.

    Attributes:
        density, residual, kl: of the last round that was measured; see
        `client_agent.adapters.variational.measures`. spread: the largest less the smallest importance of a
        client's modules, as a share of their mean.
            Where it is small, ranks say little.
        agreement: mean Spearman correlation of modules' importance between two founders of one base model:
            1 if all rank modules alike. None where no two can be compared.
        seed: the first that was measured.
        measures: every client's file, of that seed.
    """

    density: Estimate
    residual: Estimate
    kl: Estimate
    spread: Estimate
    agreement: Estimate | None
    seed: int
    measures: dict[str, MeasuresFile]


def importance_of(results: Sequence[CellResult], founders: Sequence[str]) -> ImportanceSummary | None:
    """Summarise one method's runs, None where no founder measured anything."""
    measured = {result.seed: found for result in results if (found := _measured(result, founders))}
    if not measured:
        return None
    first = next(result for result in results if result.seed in measured)
    agreements = [
        _mean(correlations)
        for result in results
        if (correlations := _agreements([c for c in result.clients if c.name in founders]))
    ]
    return ImportanceSummary(
        density=_estimated(measured, lambda file: file.rounds[-1].density),
        residual=_estimated(measured, lambda file: file.rounds[-1].residual),
        kl=_estimated(measured, lambda file: file.rounds[-1].kl),
        spread=_estimated(measured, lambda file: _spread(list(file.modules.values()))),
        agreement=estimate(agreements) if agreements else None,
        seed=first.seed,
        measures=_measured(first, [client.name for client in first.clients]),
    )


def spearman(one: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    """Correlate the ranks of two clients' modules, in [-1, 1]; equal values share the mean of their ranks.

    None where nothing can be said: the modules differ, or one client tells none of its own apart.
    """
    if one.keys() != other.keys():
        return None
    ranks = [_ranks(np.array([values[name] for name in sorted(one)])) for values in (one, other)]
    centred = [rank - rank.mean() for rank in ranks]
    norms = np.linalg.norm(centred, axis=1)
    return float(centred[0] @ centred[1] / norms.prod()) if norms.all() else None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank values from 0 on: of equal ones, half of all others with that value come before each."""
    below = np.searchsorted(np.sort(values), values, side="left")
    not_above = np.searchsorted(np.sort(values), values, side="right")
    return (below + not_above - 1) / 2


def _agreements(clients: Sequence[ClientResult]) -> list[float]:
    """Correlate every two clients of one base model that can be."""
    pairs = (
        spearman(one.measures.modules, other.measures.modules)
        for one, other in combinations(clients, 2)
        if one.base_model == other.base_model and one.measures is not None and other.measures is not None
    )
    return [found for found in pairs if found is not None]


def _measured(result: CellResult, names: Sequence[str]) -> dict[str, MeasuresFile]:
    """Give the files of those of some clients that have one."""
    return {c.name: c.measures for c in result.clients if c.name in names and c.measures is not None}


def _estimated(
    measured: Mapping[int, Mapping[str, MeasuresFile]], figure: Callable[[MeasuresFile], float]
) -> Estimate:
    """Estimate the mean over clients of one figure."""
    return estimate([_mean([figure(file) for file in of_seed.values()]) for of_seed in measured.values()])


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / _mean(values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
