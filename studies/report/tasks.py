"""The scores of each task of a comparison, over its clients and client by client. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS, LOWER_IS_BETTER, PERPLEXITY, Score
from studies.outcomes import Rule, state_by
from studies.report.estimates import Estimate, Pairing, estimate, pairing
from studies.report.runs import BySeed, Runs


class TaskFigures(Strict):
    """One score of one task by one method; the mean is over the clients that have the task.

    `count` is the number of test items of all these clients in the first seed with the task. `against`
    compares with the methods that train alone, on the seeds that all methods have.
    """

    mean: Estimate
    count: int
    clients: dict[str, Estimate]
    against: dict[str, Pairing]


ByTask = dict[str, dict[str, TaskFigures]]
"""Figures by task and score."""


def tasks_of(rule: Rule, method: str, runs: Runs, baselines: Mapping[str, Runs]) -> ByTask:
    """Compute the figures of every score of every task; empty for rows of no named tasks."""
    names: dict[str, dict[str, None]] = {}
    for _, _, task, scores in _scores(runs, rule):
        names.setdefault(task, {}).update(dict.fromkeys(scores))
    return {
        task: {score: _figures(task, score, rule, method, runs, baselines) for score in _ordered(by_score)}
        for task, by_score in sorted(names.items())
    }


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A score of a task by every method: the mean over clients, or that of one `client`; None = no value."""

    task: str
    score: str
    client: str | None
    values: list[Estimate | None]


def rows_of(methods: Sequence[ByTask], *, by_client: bool = False) -> Iterator[TaskRow]:
    """Yield the rows of a table of all tasks and scores but the loss, whose columns are methods."""
    for task in sorted({task for by_task in methods for task in by_task}):
        figures = [by_task.get(task, {}) for by_task in methods]
        scores = _ordered({score for by_score in figures for score in by_score})[1:]
        clients = {name for by_score in figures for score in by_score.values() for name in score.clients}
        for client in [None, *sorted(clients)] if by_client else [None]:
            for name in scores:
                yield TaskRow(
                    task, name, client, [_value(by_score.get(name), client) for by_score in figures]
                )


def _value(score: TaskFigures | None, client: str | None) -> Estimate | None:
    if score is None:
        return None
    return score.mean if client is None else score.clients.get(client)


def _figures(
    task: str, score: str, rule: Rule, method: str, runs: Runs, baselines: Mapping[str, Runs]
) -> TaskFigures:
    by_seed = _values(runs, rule, task, score)
    clients: dict[str, list[float]] = {}
    for by_client in by_seed.values():
        for client, value in by_client.items():
            clients.setdefault(client, []).append(value)
    # Every seed has equally many items, so those of the first one are counted.
    first = next(iter(by_seed))
    paired = {seed: by_client for seed, by_client in by_seed.items() if seed in runs.paired}
    against = {
        key: pairing(paired, _values(baseline, rule, task, score), lower_is_better=score in LOWER_IS_BETTER)
        for key, baseline in baselines.items()
        if key != method
    }
    return TaskFigures(
        mean=estimate([sum(values.values()) / len(values) for values in by_seed.values()]),
        count=sum(
            scores[score].count
            for seed, _, name, scores in _scores(runs, rule)
            if (seed, name) == (first, task) and score in scores
        ),
        clients={name: estimate(values) for name, values in sorted(clients.items())},
        against={key: pair for key, pair in against.items() if pair is not None},
    )


def _values(runs: Runs, rule: Rule, task: str, score: str) -> BySeed:
    """Return a score of a task by seed and client."""
    by_seed: BySeed = {}
    for seed, client, name, scores in _scores(runs, rule):
        if name == task and score in scores:
            by_seed.setdefault(seed, {})[client] = scores[score].value
    return by_seed


def _scores(runs: Runs, rule: Rule) -> Iterator[tuple[int, str, str, Mapping[str, Score]]]:
    """Yield seed, client, task and the task's scores of all results."""
    for result in runs.results:
        for client in result.clients:
            for task, scores in state_by(rule, client).tasks.items():
                yield result.seed, client.name, task, scores


def _ordered(names: Iterable[str]) -> list[str]:
    return [LOSS, PERPLEXITY, *sorted(set(names) - {LOSS, PERPLEXITY})]
