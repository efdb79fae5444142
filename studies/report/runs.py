"""All runs of one method, and their scores by seed and client. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS, LOWER_IS_BETTER, PERPLEXITY
from studies.outcomes import Rule, state_by
from studies.report.estimates import Estimate, Pairing, estimate, pairing
from studies.results import CellResult, ClientResult
from studies.study import Study

BySeed = dict[int, dict[str, float]]


class ScoreFigures(Strict):
    """One score of one method by one rule; means and worst clients are over the founders that have it.

    `count` is the number of test items of all these clients in one seed. `against` compares with the methods
    that train alone, on the seeds that all methods have.
    """

    mean: Estimate
    worst: Estimate
    count: int
    clients: dict[str, Estimate]
    groups: dict[str, Estimate]
    against: dict[str, Pairing]


class RunCost(Strict):
    """The cost of one run: seconds of rounds and training, and the bytes of all clients.

    `rate` is the learning rate that a study gives all clients; None = each client searched its own. `search`:
    the run was one of a search of this rate.
    """

    method: str
    seed: int
    rate: float | None
    search: bool
    wall_seconds: float
    cpu_seconds: float
    bytes_up: int
    bytes_down: int


def cost_of(result: CellResult, rate: float | None, *, search: bool) -> RunCost:
    """Return the cost of a run."""
    rounds = [entry for client in result.clients for entry in client.rounds]
    return RunCost(
        method=result.method,
        seed=result.seed,
        rate=rate,
        search=search,
        wall_seconds=result.wall_seconds,
        cpu_seconds=result.cpu_seconds,
        bytes_up=sum(entry.bytes_up for entry in rounds),
        bytes_down=sum(entry.bytes_down for entry in rounds),
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of one method; `paired` are the seeds on which methods are compared."""

    study: Study
    results: list[CellResult]
    paired: list[int]

    def values(self, score: str, rule: Rule, names: Sequence[str]) -> BySeed:
        """Return a score by seed and client, of the clients that have it."""
        by_seed = {
            result.seed: {
                client.name: state.scores[score].value
                for client in result.clients
                if client.name in names and score in (state := state_by(rule, client)).scores
            }
            for result in self.results
        }
        # A score may be missing in a seed, such as one of a template that came later.
        return {seed: by_client for seed, by_client in by_seed.items() if by_client}

    def paired_values(self, score: str, rule: Rule, names: Sequence[str]) -> BySeed:
        """Return the same for the paired seeds only."""
        return {seed: v for seed, v in self.values(score, rule, names).items() if seed in self.paired}

    def of(self, name: str) -> list[ClientResult]:
        return [client for result in self.results for client in result.clients if client.name == name]

    def score_names(self, rule: Rule, names: Sequence[str]) -> list[str]:
        """Return the names of these clients' scores, loss first, without perplexity."""
        available = {
            name: None
            for result in self.results
            for client in result.clients
            if client.name in names
            for name in state_by(rule, client).scores
        }
        return [LOSS, *sorted(available.keys() - {LOSS, PERPLEXITY})]

    def count(self, score: str, rule: Rule, names: Sequence[str]) -> int:
        """Return the number of test items of a score in the first seed that has it."""
        for result in self.results:
            states = [state_by(rule, client) for client in result.clients if client.name in names]
            counts = [state.scores[score].count for state in states if score in state.scores]
            # All seeds draw equally many test items, so the first result with the score is enough.
            if counts:
                return sum(counts)
        return 0


def figures(score: str, rule: Rule, method: str, runs: Runs, baselines: dict[str, Runs]) -> ScoreFigures:
    """Compute all figures of a score that a founder has."""
    founders = [silo.name for silo in runs.study.founders]
    everyone = [silo.name for silo in runs.study.silo]
    values, by_client = runs.values(score, rule, founders), runs.values(score, rule, everyone)
    worst = max if score in LOWER_IS_BETTER else min
    clients = {name: [v[name] for v in by_client.values() if name in v] for name in everyone}
    return ScoreFigures(
        mean=estimate([mean(list(by_name.values())) for by_name in values.values()]),
        worst=estimate([worst(by_name.values()) for by_name in values.values()]),
        count=runs.count(score, rule, founders),
        clients={name: estimate(by_seed) for name, by_seed in clients.items() if by_seed},
        groups=_groups(runs.study, values),
        against=compare(score, rule, method, founders, runs, baselines),
    )


def compare(
    score: str, rule: Rule, method: str, names: Sequence[str], runs: Runs, baselines: dict[str, Runs]
) -> dict[str, Pairing]:
    """Compare some clients' scores with theirs under each baseline but the method itself."""
    values = runs.paired_values(score, rule, names)
    pairings = {
        key: pairing(
            values, baseline.paired_values(score, rule, names), lower_is_better=score in LOWER_IS_BETTER
        )
        for key, baseline in baselines.items()
        if key != method
    }
    return {key: paired for key, paired in pairings.items() if paired is not None}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _groups(study: Study, values: BySeed) -> dict[str, Estimate]:
    groups: dict[str, list[str]] = {}
    for silo in study.founders:
        if silo.group is not None:
            groups.setdefault(silo.group, []).append(silo.name)
    by_group = {
        group: [mean(g) for v in values.values() if (g := [v[name] for name in names if name in v])]
        for group, names in groups.items()
    }
    return {group: estimate(means) for group, means in by_group.items() if means}
