"""Statistics of the importance measures of clients. Pure.

A module is a layer's role; modules are compared only between clients of one base model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from client_agent.adapters.variational.measures import MeasuresFile
from schemas.messages.base import Strict
from studies.report.estimates import Estimate, estimate
from studies.results import CellResult, ClientResult


class ImportanceSummary(Strict):
    """The importance that the clients of one method learnt; estimates are over seeds, of founders.

    Attributes:
        density, residual, kl: in the last measured round; see `client_agent.adapters.variational.measures`.
        spread: (largest - smallest) / mean importance of a client's modules; ranks are unreliable if small.
        agreement: mean Spearman correlation of modules' importance between two founders of one base model;
            1 for equal ranks, None without a comparable pair.
        seed: the first measured seed.
        measures: every client's measures in that seed.
    """

    density: Estimate
    residual: Estimate
    kl: Estimate
    spread: Estimate
    agreement: Estimate | None
    seed: int
    measures: dict[str, MeasuresFile]


def importance_of(results: Sequence[CellResult], founders: Sequence[str]) -> ImportanceSummary | None:
    """Summarise one method's runs; return None if no founder has measures."""
    measured = {result.seed: measures for result in results if (measures := _measured(result, founders))}
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


def spearman(left: Mapping[str, float], right: Mapping[str, float]) -> float | None:
    """Return Spearman's rank correlation of two clients' modules, in [-1, 1]; ties share their mean rank.

    None if the modules differ, or all modules of a client are equal.
    """
    if left.keys() != right.keys():
        return None
    ranks = [_ranks(np.array([values[name] for name in sorted(left)])) for values in (left, right)]
    centred = [rank - rank.mean() for rank in ranks]
    norms = np.linalg.norm(centred, axis=1)
    # Equal values have no ranks to compare.
    return float(centred[0] @ centred[1] / norms.prod()) if norms.all() else None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    below = np.searchsorted(np.sort(values), values, side="left")
    not_above = np.searchsorted(np.sort(values), values, side="right")
    # Equal values share the mean of their ranks.
    return (below + not_above - 1) / 2


def _agreements(clients: Sequence[ClientResult]) -> list[float]:
    """Return the correlations of all pairs of clients of one base model."""
    pairs = (
        spearman(first.measures.modules, second.measures.modules)
        for first, second in combinations(clients, 2)
        if first.base_model == second.base_model
        and first.measures is not None
        and second.measures is not None
    )
    return [correlation for correlation in pairs if correlation is not None]


def _measured(result: CellResult, names: Sequence[str]) -> dict[str, MeasuresFile]:
    return {c.name: c.measures for c in result.clients if c.name in names and c.measures is not None}


def _estimated(
    measured: Mapping[int, Mapping[str, MeasuresFile]], figure: Callable[[MeasuresFile], float]
) -> Estimate:
    return estimate(
        [_mean([figure(file) for file in seed_files.values()]) for seed_files in measured.values()]
    )


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / _mean(values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
