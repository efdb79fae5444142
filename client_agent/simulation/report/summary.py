"""Statistics of all runs of a comparison. Pure.

Means and worst clients are over the founders. All accuracies are exact match on held-out examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from client_agent.simulation.methods import LOCAL, LOCAL_BOTH, LOCAL_LORA
from client_agent.simulation.report.estimates import Estimate, Pairing, estimate, pairing
from client_agent.simulation.report.importance import ImportanceSummary, importance_of
from client_agent.simulation.results import CellResult, ClientResult
from client_agent.simulation.study import Study
from schemas.messages.base import Strict

BASELINES = (LOCAL, LOCAL_LORA, LOCAL_BOTH)


class Latecomer(Strict):
    """A late joiner: `accuracy` at its own `steps`, and `alone`, its accuracy after training alone.

    `ahead_after` is, per baseline and seed, the fewest steps after which it stayed ahead of that accuracy, or
    None. `against` compares the final accuracies.
    """

    name: str
    steps: list[int]
    accuracy: list[Estimate]
    alone: dict[str, Estimate]
    against: dict[str, Pairing]
    ahead_after: dict[str, list[int | None]]


class Lone(Strict):
    """A client without another member in its group."""

    name: str
    accuracy: Estimate
    against: dict[str, Pairing]


class MethodSummary(Strict):
    """One method over the seeds with results. Bytes are encoded, of one client in one round.

    `against` uses the seeds that all methods have. `steps` begins with 0, before training; `bytes_by_step` is
    the cumulative traffic of a founder, up and down. `importance` is None if the method learns none.
    """

    method: str
    alone: bool
    seeds: list[int]
    rounds: int
    steps_per_round: int
    batch_size: int
    accuracy: Estimate
    worst: Estimate
    loss: Estimate
    against: dict[str, Pairing]
    clients: dict[str, Estimate]
    groups: dict[str, Estimate]
    latecomers: list[Latecomer]
    lone: list[Lone]
    steps: list[int]
    accuracy_by_step: list[Estimate]
    bytes_by_step: list[float]
    bytes_up: float
    bytes_down: float
    wall_seconds: float
    cpu_seconds: float
    importance: ImportanceSummary | None = None


class Report(Strict):
    """A comparison: its methods in run order, and the missing runs.

    `seeds` are the requested ones, `paired_seeds` those with results of all methods. `tests` is the largest
    number of test items of a silo; `models` is each silo's base model.
    """

    study: str
    seeds: list[int]
    paired_seeds: list[int]
    tests: int
    examples: dict[str, int]
    models: dict[str, str]
    methods: list[MethodSummary]
    missing: list[str]

    @property
    def baselines(self) -> list[str]:
        """The local baselines that a method here is compared with."""
        return [name for name in BASELINES if any(name in method.against for method in self.methods)]


def summarise(
    study: Study, name: str, seeds: Sequence[int], results: Sequence[CellResult], missing: Sequence[str]
) -> Report:
    """Summarise all available results of the requested seeds."""
    order = list(dict.fromkeys(result.method for result in results))
    by_method = {method: [r for r in results if r.method == method] for method in order}
    paired = [
        s
        for s in seeds
        if all(s in {r.seed for r in method_results} for method_results in by_method.values())
    ]
    runs = {method: _Runs(study, method_results, paired) for method, method_results in by_method.items()}
    baselines = {method: runs[method] for method in BASELINES if method in runs}
    return Report(
        study=name,
        seeds=list(seeds),
        paired_seeds=paired,
        tests=study.tests,
        examples={silo.name: silo.examples for silo in study.silo},
        models={client.name: client.base_model for client in results[0].clients},
        methods=[_summary(method, runs[method], baselines) for method in order],
        missing=list(missing),
    )


@dataclass(frozen=True, slots=True)
class _Runs:
    """All runs of one method; `paired` are the seeds on which methods are compared."""

    study: Study
    results: list[CellResult]
    paired: list[int]

    def last(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Return the accuracy after the last round, by seed and client."""
        return {
            result.seed: {c.name: _end(c) for c in result.clients if c.name in names}
            for result in self.results
        }

    def last_of_paired(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Return the same for the paired seeds only."""
        return {seed: figures for seed, figures in self.last(names).items() if seed in self.paired}

    def of(self, name: str) -> list[ClientResult]:
        return [client for result in self.results for client in result.clients if client.name == name]


def _summary(method: str, runs: _Runs, baselines: dict[str, _Runs]) -> MethodSummary:
    study, results = runs.study, runs.results
    founders = [silo.name for silo in study.founders]
    last = runs.last(founders)
    plan = results[0].plan
    rounds = [entry for result in results for client in result.clients for entry in client.rounds]
    return MethodSummary(
        method=method,
        alone=results[0].alone,
        seeds=[result.seed for result in results],
        rounds=plan.rounds.total,
        steps_per_round=plan.training.steps,
        batch_size=plan.training.batch_size * plan.training.accumulation,
        accuracy=estimate([_mean(list(figures.values())) for figures in last.values()]),
        worst=estimate([min(figures.values()) for figures in last.values()]),
        loss=estimate(
            [
                _mean([c.rounds[-1].scores.after.loss for c in result.clients if c.name in founders])
                for result in results
            ]
        ),
        against=_against(method, founders, runs, baselines),
        clients={s.name: estimate([_end(client) for client in runs.of(s.name)]) for s in study.silo},
        groups={
            group: estimate([_mean([figures[name] for name in names]) for figures in last.values()])
            for group, names in _groups(study).items()
        },
        latecomers=[_latecomer(method, silo.name, runs, baselines) for silo in study.latecomers],
        lone=[_lone(method, name, runs, baselines) for name in _lone_names(study)],
        steps=[plan.training.steps * round_number for round_number in range(plan.rounds.total + 1)],
        accuracy_by_step=[
            estimate([_mean([_curve(c)[index] for c in r.clients if c.name in founders]) for r in results])
            for index in range(plan.rounds.total + 1)
        ],
        bytes_by_step=_bytes_so_far([c for r in results for c in r.clients if c.name in founders]),
        bytes_up=_mean([entry.bytes_up for entry in rounds]),
        bytes_down=_mean([entry.bytes_down for entry in rounds]),
        wall_seconds=_mean([result.wall_seconds for result in results]),
        cpu_seconds=_mean([result.cpu_seconds for result in results]),
        importance=importance_of(results, founders),
    )


def _latecomer(method: str, name: str, runs: _Runs, baselines: dict[str, _Runs]) -> Latecomer:
    client_runs = runs.of(name)
    curves = [_curve(client) for client in client_runs]
    length = min(map(len, curves))
    steps = [runs.results[0].plan.training.steps * round_number for round_number in range(length)]
    seeds = [result.seed for result in runs.results]
    ends = {
        baseline: {
            result.seed: _end(client)
            for result, client in zip(baseline_runs.results, baseline_runs.of(name), strict=True)
        }
        for baseline, baseline_runs in baselines.items()
        if baseline != method
    }
    return Latecomer(
        name=name,
        steps=steps,
        accuracy=[estimate([curve[i] for curve in curves]) for i in range(length)],
        alone={baseline: estimate(list(end.values())) for baseline, end in ends.items()},
        against=_against(method, [name], runs, baselines),
        ahead_after={
            baseline: [
                _stays_ahead(steps, curve, end[seed])
                for seed, curve in zip(seeds, curves, strict=True)
                if seed in end
            ]
            for baseline, end in ends.items()
        },
    )


def _lone(method: str, name: str, runs: _Runs, baselines: dict[str, _Runs]) -> Lone:
    return Lone(
        name=name,
        accuracy=estimate([figures[name] for figures in runs.last([name]).values()]),
        against=_against(method, [name], runs, baselines),
    )


def _stays_ahead(steps: Sequence[int], curve: Sequence[float], end: float) -> int | None:
    """Return the first step from which every later accuracy is above `end`, or None."""
    first = None
    for step, value in reversed(list(zip(steps, curve, strict=False))):
        if value <= end:
            break
        first = step
    return first


def _against(
    method: str, names: Sequence[str], runs: _Runs, baselines: dict[str, _Runs]
) -> dict[str, Pairing]:
    """Compare some clients' final accuracies with theirs under each baseline."""
    accuracies = runs.last_of_paired(names)
    pairings = {
        key: pairing(accuracies, baseline_runs.last_of_paired(names))
        for key, baseline_runs in baselines.items()
        if key != method
    }
    return {key: paired for key, paired in pairings.items() if paired is not None}


def _groups(study: Study) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for silo in study.founders:
        if silo.group is not None:
            groups.setdefault(silo.group, []).append(silo.name)
    return groups


def _lone_names(study: Study) -> list[str]:
    sizes = Counter(silo.group for silo in study.silo)
    return [silo.name for silo in study.founders if silo.group is not None and sizes[silo.group] == 1]


def _curve(client: ClientResult) -> list[float]:
    before = client.rounds[0].scores.before.exact_match
    return [before, *(entry.scores.after.exact_match for entry in client.rounds)]


def _bytes_so_far(clients: Sequence[ClientResult]) -> list[float]:
    """Return the cumulative bytes of a client on average, from 0 and after each round."""
    per_round = [
        _mean([client.rounds[i].bytes_up + client.rounds[i].bytes_down for client in clients])
        for i in range(len(clients[0].rounds))
    ]
    return [0.0, *accumulate(per_round)]


def _end(client: ClientResult) -> float:
    return client.rounds[-1].scores.after.exact_match


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
