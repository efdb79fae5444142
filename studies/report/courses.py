"""The course of a method: scores after each round and at equal bytes, against one control. Pure.

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
from studies.outcomes import HeldState, Rule, states
from studies.report.estimates import Estimate, estimate
from studies.report.runs import Runs, mean
from studies.results import CellResult, ClientResult

_BUDGETS = 4


class Compared(Strict):
    """A score of a method, and its paired difference to the control's; None for the control itself."""

    value: Estimate
    difference: Estimate | None


class Course(Strict):
    """Each score of a method from before the first of its rounds to after the last, and at each budget.

    `bytes` are those of a founder after each round, up and down.
    """

    rounds: dict[str, list[Compared]]
    bytes: list[float]
    budgets: dict[str, list[Compared]]


@dataclass(frozen=True, slots=True)
class _RunCourse:
    """One run: each score after each number of rounds, and the bytes of a founder until then."""

    scores: dict[str, list[float]]
    bytes: list[float]

    def at(self, score: str, budget: float) -> float:
        """Return a score at the last point within a budget; before the first round where there is none."""
        affordable = [
            value for value, spent in zip(self.scores[score], self.bytes, strict=True) if spent <= budget
        ]
        return affordable[-1] if affordable else self.scores[score][0]


def courses_of(
    rule: Rule, all_runs: Mapping[str, Runs], control: str | None
) -> tuple[list[float], dict[str, Course]]:
    """Return budgets of bytes, and the course of each method on the seeds that all methods have.

    A method whose founders do not take part in every round has none: after most rounds nothing is known of
    some clients. Without a control there are no differences.
    """
    runs = {name: [run for run in of.results if run.seed in of.paired] for name, of in all_runs.items()}
    courses = {
        name: [_course(rule, run) for run in paired]
        for name, paired in runs.items()
        if paired and all(map(_is_complete, paired))
    }
    scores = _common_scores(course for method_courses in courses.values() for course in method_courses)
    budgets = _budgets(method_courses for method_courses in courses.values() if method_courses[0].bytes[-1])
    controls = courses.get(control, []) if control is not None else []
    return budgets, {
        name: _compared_course(method_courses, controls if name != control else [], scores, budgets)
        for name, method_courses in courses.items()
    }


def _compared_course(
    courses: Sequence[_RunCourse],
    controls: Sequence[_RunCourse],
    scores: Sequence[str],
    budgets: Sequence[float],
) -> Course:
    return Course(
        rounds=_by_round(courses, controls, scores),
        bytes=[mean(list(spent)) for spent in zip(*(course.bytes for course in courses), strict=True)],
        budgets={
            score: [
                _compared([c.at(score, budget) for c in courses], [c.at(score, budget) for c in controls])
                for budget in budgets
            ]
            for score in scores
        },
    )


def _by_round(
    courses: Sequence[_RunCourse], controls: Sequence[_RunCourse], scores: Sequence[str]
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
    """Pair values with those of the control, seed by seed; without them there is no difference."""
    differences = [value - control for value, control in zip(values, controls, strict=bool(controls))]
    return Compared(value=estimate(values), difference=estimate(differences) if differences else None)


def _founders(result: CellResult) -> list[ClientResult]:
    return [client for client in result.clients if client.joins_after == 0]


def _is_complete(result: CellResult) -> bool:
    return all(len(client.rounds) == result.plan.rounds.total for client in _founders(result))


def _course(rule: Rule, result: CellResult) -> _RunCourse:
    founders = _founders(result)
    points = range(result.plan.rounds.total + 1)
    histories = [[_state_after(rule, client, point) for point in points] for client in founders]
    names = set.intersection(*({*state.scores} for history in histories for state in history)) - {PERPLEXITY}
    return _RunCourse(
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


def _common_scores(courses: Iterable[_RunCourse]) -> list[str]:
    """Return the names of the scores that all runs have, loss first."""
    names = [{*course.scores} for course in courses]
    return [LOSS, *sorted(set.intersection(*names) - {LOSS})] if names else []


def _budgets(federated: Iterable[Sequence[_RunCourse]]) -> list[float]:
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
