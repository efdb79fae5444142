"""The findings of a fair comparison: scores after each round and at equal bytes, against one control. Pure.

Point r of a method is what its clients have after r rounds: the best state so far by validation, of those
that its method counts, up to the weights served after round r. Its bytes are those of r rounds, and of the
download that follows; that of the final weights is taken to be as large as the one before. Training alone
sends nothing. Means are over the founders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS, PERPLEXITY
from studies.fair import adapter_label
from studies.fair_search import RateTrial
from studies.outcomes import HeldState, Rule, states
from studies.report.estimates import Estimate, Verdict, estimate, verdict_of
from studies.report.runs import mean
from studies.results import CellResult, ClientResult

_BUDGETS = 4


class CellCost(Strict):
    """The cost of one run: seconds of rounds and training, and the bytes of all clients."""

    method: str
    seed: int
    rate: float
    search: bool
    wall_seconds: float
    cpu_seconds: float
    bytes_up: int
    bytes_down: int


class Compared(Strict):
    """A score of a method, and its paired difference to the control's; None for the control itself."""

    value: Estimate
    difference: Estimate | None

    @property
    def verdict(self) -> Verdict | None:
        """Whether the difference is beyond the noise."""
        return verdict_of(self.difference) if self.difference is not None else None


class FairMethod(Strict):
    """One method: each score from before the first of its rounds to after the last, and at each budget.

    `bytes` are those of a founder after each round, up and down. `trials` are empty where one rate was named.
    """

    method: str
    adapter: str
    rate: float
    trials: list[RateTrial]
    rounds: dict[str, list[Compared]]
    bytes: list[float]
    budgets: dict[str, list[Compared]]
    cpu_seconds: Estimate

    def end(self, score: str) -> Compared:
        return self.rounds[score][-1]


class FairReport(Strict):
    """A fair comparison: `budgets` are bytes of a founder, from the least that a whole run takes to the most.

    `seeds` are those on which all methods are compared. `cells` has every run, searches included.
    """

    control: str
    search_seed: int
    seeds: list[int]
    scores: list[str]
    budgets: list[float]
    methods: list[FairMethod]
    cells: list[CellCost]

    @property
    def search_cpu_seconds(self) -> float:
        return sum(cell.cpu_seconds for cell in self.cells if cell.search)


@dataclass(frozen=True, slots=True)
class _Course:
    """One run: each score after each number of rounds, and the bytes of a founder until then."""

    scores: dict[str, list[float]]
    bytes: list[float]

    def at(self, score: str, budget: float) -> float:
        """Return a score at the last point within a budget; before the first round where there is none."""
        affordable = [
            value for value, spent in zip(self.scores[score], self.bytes, strict=True) if spent <= budget
        ]
        return affordable[-1] if affordable else self.scores[score][0]


def fair_report(
    rule: Rule,
    *,
    control: str,
    search_seed: int,
    seeds: Sequence[int],
    results: Sequence[CellResult],
    trials: Mapping[str, list[RateTrial]],
    costs: list[CellCost],
) -> FairReport | None:
    """Compare all methods on the seeds that all have; None without the control, or without such a seed.

    Args:
        results: of every method and seed.
        trials: the rates that were tried with each method.
    """
    by_method: dict[str, dict[int, CellResult]] = {}
    for result in results:
        if result.seed in seeds:
            by_method.setdefault(result.method, {})[result.seed] = result
    if not seeds or set(by_method.get(control, {})) != set(seeds):
        return None
    runs = {name: [of_seed[seed] for seed in seeds] for name, of_seed in by_method.items()}
    courses = {name: [_course(rule, run) for run in of_method] for name, of_method in runs.items()}
    scores = _common_scores(course for of_method in courses.values() for course in of_method)
    budgets = _budgets(of_method for of_method in courses.values() if of_method[0].bytes[-1])
    return FairReport(
        control=control,
        search_seed=search_seed,
        seeds=list(seeds),
        scores=scores,
        budgets=budgets,
        methods=[
            FairMethod(
                method=name,
                adapter=adapter_label(of_method[0].plan.adapter),
                rate=of_method[0].clients[0].learning_rate,
                trials=trials.get(name, []),
                rounds=_by_round(courses[name], controls, scores),
                bytes=[mean(list(spent)) for spent in zip(*(c.bytes for c in courses[name]), strict=True)],
                budgets={
                    score: [
                        _compared([c.at(score, b) for c in courses[name]], [c.at(score, b) for c in controls])
                        for b in budgets
                    ]
                    for score in scores
                },
                cpu_seconds=estimate([run.cpu_seconds for run in of_method]),
            )
            for name, of_method in runs.items()
            for controls in [courses[control] if name != control else []]
        ],
        cells=costs,
    )


def cost_of(result: CellResult, rate: float, *, search: bool) -> CellCost:
    """Return the cost of a run."""
    rounds = [entry for client in result.clients for entry in client.rounds]
    return CellCost(
        method=result.method,
        seed=result.seed,
        rate=rate,
        search=search,
        wall_seconds=result.wall_seconds,
        cpu_seconds=result.cpu_seconds,
        bytes_up=sum(entry.bytes_up for entry in rounds),
        bytes_down=sum(entry.bytes_down for entry in rounds),
    )


def _by_round(
    courses: Sequence[_Course], controls: Sequence[_Course], scores: Sequence[str]
) -> dict[str, list[Compared]]:
    """Compare every point with that of the control after as many rounds, or after its last."""
    return {
        score: [
            _compared(
                [course.scores[score][point] for course in courses],
                [control.scores[score][min(point, len(control.bytes) - 1)] for control in controls],
            )
            for point in range(len(courses[0].bytes))
        ]
        for score in scores
    }


def _compared(values: Sequence[float], controls: Sequence[float]) -> Compared:
    """Pair values with those of the control, seed by seed; without them it is the control itself."""
    differences = [value - control for value, control in zip(values, controls, strict=bool(controls))]
    return Compared(value=estimate(values), difference=estimate(differences) if differences else None)


def _course(rule: Rule, result: CellResult) -> _Course:
    founders = [client for client in result.clients if client.joins_after == 0]
    points = range(result.plan.rounds.total + 1)
    histories = [[_state_after(rule, client, point) for point in points] for client in founders]
    names = set.intersection(*({*state.scores} for history in histories for state in history)) - {PERPLEXITY}
    return _Course(
        scores={
            name: [mean([history[point].scores[name].value for history in histories]) for point in points]
            for name in names
        },
        bytes=[mean(list(spent)) for spent in zip(*map(_spent, founders), strict=True)],
    )


def _state_after(rule: Rule, client: ClientResult, point: int) -> HeldState:
    """Return a client's result after some rounds, with what it is served after them."""
    history = [
        state
        for state in states(client)
        if state.round <= point or (state.round == point + 1 and state.stage != "trained")
    ]
    losses = [state.validation for state in history]
    measured = [loss for loss in losses if loss is not None]
    if rule == "best" and len(measured) == len(history):
        return history[losses.index(min(measured))]
    return history[-1]


def _spent(client: ClientResult) -> list[float]:
    """Return the bytes of a client after each number of rounds, the download that follows included."""
    down = [entry.bytes_down for entry in client.rounds]
    down.append(down[-1])
    up = [0, *(entry.bytes_up for entry in client.rounds)]
    return list(accumulate(float(sum(both)) for both in zip(up, down, strict=True)))


def _common_scores(courses: Iterable[_Course]) -> list[str]:
    """Return the names of the scores that all runs have, loss first."""
    names = set.intersection(*({*course.scores} for course in courses))
    return [LOSS, *sorted(names - {LOSS})]


def _budgets(federated: Iterable[Sequence[_Course]]) -> list[float]:
    """Return bytes at equal ratios, from the least of a whole run to the most; empty without bytes."""
    # The dearest seed counts: a method's own budget pays for the last round of all its runs.
    totals = [max(run.bytes[-1] for run in runs) for runs in federated]
    if not totals:
        return []
    least, most = log(min(totals)), log(max(totals))
    if most - least < log(2):
        return [max(totals)]
    # The last one is rounded up: a run is within its own bytes.
    return [exp(least + (most - least) * i / (_BUDGETS - 1)) * (1 + 1e-9) for i in range(_BUDGETS)]
