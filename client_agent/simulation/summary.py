"""Turn the results of all runs into the figures of a report. Pure: nothing is read or written.

Established clients are the founders; only they count in means and worst clients. All accuracies are exact
match on held-out examples, as the clients themselves report it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from client_agent.simulation.estimates import Estimate, Pairing, estimate, pairing
from client_agent.simulation.methods import LOCAL, LOCAL_LORA
from client_agent.simulation.results import CellResult, ClientResult
from client_agent.simulation.study import Study
from schemas.messages.strict import Strict

BASELINES = (LOCAL, LOCAL_LORA)


class Latecomer(Strict):
    """A late joiner: `accuracy` at its own `steps`, and `alone`, the end of training by itself.

    `ahead_after` gives per baseline the fewest steps after which it was ahead of that end, seed by seed.
    """

    name: str
    steps: list[int]
    accuracy: list[Estimate]
    alone: dict[str, Estimate]
    ahead_after: dict[str, list[int | None]]


class Lone(Strict):
    """A client whose group has no other member: what a method costs or gives it."""

    name: str
    accuracy: Estimate
    against: dict[str, Pairing]


class MethodSummary(Strict):
    """One method over all seeds. Bytes are those of one client in one round, encoded."""

    method: str
    alone: bool
    seeds: list[int]
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
    bytes_up: float
    bytes_down: float
    wall_seconds: float
    cpu_seconds: float


class Report(Strict):
    """A comparison: every method in the order in which the study names them, and which runs are missing."""

    study: str
    examples: dict[str, int]
    methods: list[MethodSummary]
    missing: list[str]


def summarised(study: Study, name: str, results: Sequence[CellResult], missing: Sequence[str]) -> Report:
    """Summarise all results that are there."""
    order = list(dict.fromkeys(result.method for result in results))
    runs = {method: _Runs(study, [r for r in results if r.method == method]) for method in order}
    baselines = {method: runs[method] for method in BASELINES if method in runs}
    return Report(
        study=name,
        examples={silo.name: silo.examples for silo in study.silo},
        methods=[_summary(method, runs[method], baselines) for method in order],
        missing=list(missing),
    )


@dataclass(frozen=True, slots=True)
class _Runs:
    """All runs of one method."""

    study: Study
    results: list[CellResult]

    def last(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Give the accuracy after the last round by seed and client."""
        return {
            result.seed: {c.name: _end(c) for c in result.clients if c.name in names}
            for result in self.results
        }

    def of(self, name: str) -> list[ClientResult]:
        """Give one client's runs, seed by seed."""
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
        accuracy=estimate([_mean(list(figures.values())) for figures in last.values()]),
        worst=estimate([min(figures.values()) for figures in last.values()]),
        loss=estimate(
            [
                _mean([c.rounds[-1].scores.after.loss for c in result.clients if c.name in founders])
                for result in results
            ]
        ),
        against=_against(method, last, {name: other.last(founders) for name, other in baselines.items()}),
        clients={s.name: estimate([_end(client) for client in runs.of(s.name)]) for s in study.silo},
        groups={
            group: estimate([_mean([figures[name] for name in names]) for figures in last.values()])
            for group, names in _groups(study).items()
        },
        latecomers=[_latecomer(method, silo.name, runs, baselines) for silo in study.latecomers],
        lone=[_lone(method, name, runs, baselines) for name in _lone_names(study)],
        steps=[plan.training.steps * number for number in range(1, plan.rounds.total + 1)],
        accuracy_by_step=[
            estimate([_mean([_after(c, index) for c in r.clients if c.name in founders]) for r in results])
            for index in range(plan.rounds.total)
        ],
        bytes_up=_mean([entry.bytes_up for entry in rounds]),
        bytes_down=_mean([entry.bytes_down for entry in rounds]),
        wall_seconds=_mean([result.wall_seconds for result in results]),
        cpu_seconds=_mean([result.cpu_seconds for result in results]),
    )


def _latecomer(method: str, name: str, runs: _Runs, baselines: dict[str, _Runs]) -> Latecomer:
    mine = runs.of(name)
    curves = [[_before(client), *(_after(client, i) for i in range(len(client.rounds)))] for client in mine]
    length = min(map(len, curves))
    steps = [runs.results[0].plan.training.steps * number for number in range(length)]
    seeds = [result.seed for result in runs.results]
    ends = {
        baseline: {
            result.seed: _end(client) for result, client in zip(other.results, other.of(name), strict=True)
        }
        for baseline, other in baselines.items()
        if baseline != method
    }
    return Latecomer(
        name=name,
        steps=steps,
        accuracy=[estimate([curve[i] for curve in curves]) for i in range(length)],
        alone={baseline: estimate(list(end.values())) for baseline, end in ends.items()},
        ahead_after={
            baseline: [
                next((step for step, value in zip(steps, curve, strict=False) if value > end[seed]), None)
                for seed, curve in zip(seeds, curves, strict=True)
                if seed in end
            ]
            for baseline, end in ends.items()
        },
    )


def _lone(method: str, name: str, runs: _Runs, baselines: dict[str, _Runs]) -> Lone:
    last = runs.last([name])
    return Lone(
        name=name,
        accuracy=estimate([figures[name] for figures in last.values()]),
        against=_against(method, last, {key: other.last([name]) for key, other in baselines.items()}),
    )


def _against(
    method: str, ours: dict[int, dict[str, float]], others: dict[str, dict[int, dict[str, float]]]
) -> dict[str, Pairing]:
    paired = {name: pairing(ours, theirs) for name, theirs in others.items() if name != method}
    return {name: found for name, found in paired.items() if found is not None}


def _groups(study: Study) -> dict[str, list[str]]:
    """Give the founders of each group."""
    groups: dict[str, list[str]] = {}
    for silo in study.founders:
        if silo.group is not None:
            groups.setdefault(silo.group, []).append(silo.name)
    return groups


def _lone_names(study: Study) -> list[str]:
    sizes = Counter(silo.group for silo in study.silo)
    return [silo.name for silo in study.founders if silo.group is not None and sizes[silo.group] == 1]


def _before(client: ClientResult) -> float:
    return client.rounds[0].scores.before.exact_match


def _after(client: ClientResult, index: int) -> float:
    return client.rounds[index].scores.after.exact_match


def _end(client: ClientResult) -> float:
    return _after(client, -1)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
