"""Statistics of all runs of a comparison. Pure.

Means and worst clients are over the founders. All scores are of test items. `scores` has every score by every
rule that applies; the other figures are losses by the first rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS
from studies.bank_record import BankRecord
from studies.fair import adapter_label
from studies.fair_search import RateTrial
from studies.methods import LOCAL, LOCAL_BOTH, LOCAL_LORA, control_of
from studies.mixtures import sizes_of
from studies.outcomes import Rule, rules_of
from studies.report.courses import Course, courses_of
from studies.report.curves import LossCurve, served_curve, trained_curve, trained_losses
from studies.report.estimates import Estimate, Pairing, estimate
from studies.report.importance import ImportanceSummary, importance_of
from studies.report.rounds import (
    AlignmentSummary,
    RelevanceSummary,
    RoundBytes,
    bytes_of,
    client_curves,
    packs_of,
    relevance_of,
    texts_of,
)
from studies.report.runs import RunCost, Runs, ScoreFigures, compare, figures, mean
from studies.report.tasks import ByTask, tasks_of
from studies.report.transfer import Transfer, transfer_of
from studies.results import CellResult
from studies.run_records import TextCount
from studies.study import Study
from studies.study_fields import States

BASELINES = (LOCAL, LOCAL_LORA, LOCAL_BOTH)


class Latecomer(Strict):
    """A late joiner: its `curve` over own steps, and `alone`, its loss after training alone.

    `ahead_after` is, per baseline and seed, the fewest steps after which it stayed below that loss, or None.
    `against` compares the results.
    """

    name: str
    curve: LossCurve
    alone: dict[str, Estimate]
    against: dict[str, Pairing]
    ahead_after: dict[str, list[int | None]]


class Lone(Strict):
    """A client without another member in its group."""

    name: str
    loss: Estimate
    against: dict[str, Pairing]


class MethodSummary(Strict):
    """One method over the seeds with results. Bytes are encoded, of one client in one round.

    `served` and `trained` are losses before and after local steps. `course` has every score after each round
    and at equal bytes; None if clients take part in different rounds. `adapter` is its kind in words.
    `mixing` is the change of the loss by mixing, a mean over founders and their rounds but the first; None
    without a federation. `declined` is the share of these rounds in which a client trained on from its own
    state, since the served one was worse on its validation examples; None where none did. `forgetting` is a
    mean over founders, None without anchor texts. `rates` are the learning rates of each client, by seed;
    `trials` those that a fair comparison tried. `importance` is None if the method learns none. `states` are
    those of a client that may be its result; `clients_per_round` are those that a round draws, None for all;
    `adapters` is how many a client trains, each in all steps. `bank` is None without experts; `worst` is the
    loss of the worst founder after local steps. `tasks` has the scores of each task, where the rows have
    tasks. `clients` are the losses of each client after its own steps.
    """

    method: str
    alone: bool
    seeds: list[int]
    rounds: int
    clients_per_round: int | None
    steps_per_round: int
    batch_size: int
    states: States
    adapter: str
    adapters: int
    scores: dict[Rule, dict[str, ScoreFigures]]
    transfer: dict[Rule, Transfer]
    forgetting: Estimate | None
    mixing: Estimate | None = None
    declined: float | None = None
    rates: dict[str, list[float]]
    trials: list[RateTrial] = Field(default_factory=list)
    latecomers: list[Latecomer]
    lone: list[Lone]
    served: LossCurve
    trained: LossCurve
    clients: dict[str, LossCurve]
    course: Course | None = None
    by_round: RoundBytes
    bytes_up: float
    bytes_down: float
    wall_seconds: float
    cpu_seconds: float
    importance: ImportanceSummary | None = None
    bank: BankSummary | None = None
    relevance: RelevanceSummary | None = None
    alignment: AlignmentSummary | None = None
    worst: LossCurve
    tasks: dict[Rule, ByTask] = Field(default_factory=dict)

    @property
    def loss(self) -> ScoreFigures:
        return next(iter(self.scores.values()))[LOSS]

    @property
    def main_transfer(self) -> Transfer | None:
        return self.transfer.get(next(iter(self.scores)))

    @property
    def main_tasks(self) -> ByTask:
        return self.tasks.get(next(iter(self.scores)), {})


class Report(Strict):
    """A comparison: its methods in run order, and the missing runs."""

    study: str
    """The study's name."""
    rules: list[Rule]
    """The rules by which a client's result is chosen that apply, the one of the tables first."""
    seeds: list[int]
    """The requested seeds."""
    paired_seeds: list[int]
    """The seeds with results of all methods."""
    tests: int
    """The largest number of test items of a silo."""
    examples: dict[str, int]
    """The number of training examples of each silo."""
    models: dict[str, str]
    """The base model of each silo."""
    cut: dict[str, TextCount] = Field(default_factory=dict)
    """The number of texts of a silo that are cut, for silos with any."""
    search_cpu_seconds: float
    """The CPU seconds of all rate searches, which methods share."""
    control: str | None = None
    """The method with which all scores are compared; None without one that trains alone."""
    budgets: list[float] = Field(default_factory=list)
    """Bytes of a founder, from the least that a whole run takes to the most."""
    search_seed: int | None = None
    """The seed of the whole runs in which a fair comparison searched rates; None for another comparison."""
    methods: list[MethodSummary]
    """The figures of each method: losses, other scores, differences to training alone, bytes, times."""
    costs: list[RunCost] = Field(default_factory=list)
    """The cost of every run, searches included."""
    missing: list[str]
    """The runs without a result, each with its log file."""

    @property
    def baselines(self) -> list[str]:
        """The local baselines and the control that a method here is compared with."""
        names = dict.fromkeys([*BASELINES, *([self.control] if self.control is not None else [])])
        return [name for name in names if any(name in method.loss.against for method in self.methods)]

    @property
    def is_searched(self) -> bool:
        """Whether whole runs searched the learning rate of a method."""
        return any(method.trials for method in self.methods)

    @property
    def compares_bytes(self) -> bool:
        """Whether budgets differ; at a single one, all methods have the scores of their last round."""
        return len(self.budgets) > 1

    @property
    def courses(self) -> dict[str, Course]:
        """The courses of the methods that have one, by method."""
        return {method.method: method.course for method in self.methods if method.course is not None}

    @property
    def course_scores(self) -> list[str]:
        """The scores of all courses, loss first: those that every founder has."""
        return next((list(course.rounds) for course in self.courses.values()), [])

    @property
    def metrics(self) -> list[str]:
        """The names of all scores but loss and perplexity."""
        names = {name for method in self.methods for name in method.scores[self.rules[0]]}
        return sorted(names - {LOSS})


def summarise(
    study: Study,
    name: str,
    seeds: Sequence[int],
    results: Sequence[CellResult],
    missing: Sequence[str],
    *,
    trials: Mapping[str, list[RateTrial]] = {},
    costs: Sequence[RunCost] = (),
) -> Report:
    """Summarise all available results of the requested seeds.

    Args:
        trials: the rates that a fair comparison tried with each method.
        costs: those of every run, searches included.
    """
    order = list(dict.fromkeys(result.method for result in results))
    by_method = {method: [r for r in results if r.method == method] for method in order}
    # Only seeds that all methods have: otherwise a difference would also be one of seeds.
    paired = [s for s in seeds if all(s in {r.seed for r in runs} for runs in by_method.values())]
    runs = {method: Runs(study, method_results, paired) for method, method_results in by_method.items()}
    rules = rules_of(results)
    control = _control(study, order)
    budgets, courses = courses_of(rules[0], runs, control)
    # By digest, since methods that share runs also share their search.
    searches = {result.digest: result.search_cpu_seconds for result in results}
    return Report(
        study=name,
        rules=rules,
        seeds=list(seeds),
        paired_seeds=paired,
        tests=study.tests,
        examples=sizes_of(study),
        models={client.name: client.base_model for client in results[0].clients},
        cut=texts_of(results),
        search_cpu_seconds=sum(searches.values()) + sum(cost.cpu_seconds for cost in costs if cost.search),
        control=control,
        budgets=budgets,
        search_seed=study.fair.search_seed if study.fair is not None else None,
        methods=[
            _summary(method, runs, rules, control, courses.get(method), trials.get(method, []))
            for method in order
        ],
        costs=list(costs),
        missing=list(missing),
    )


def _control(study: Study, methods: Sequence[str]) -> str | None:
    """Return the control of a fair comparison, or a local baseline, an ordinary LoRA first."""
    named = study.fair.control if study.fair is not None else LOCAL_LORA
    return next((name for name in (named, *BASELINES) if name in methods), None)


def _summary(
    method: str,
    all_runs: dict[str, Runs],
    rules: list[Rule],
    control: str | None,
    course: Course | None,
    trials: list[RateTrial],
) -> MethodSummary:
    runs = all_runs[method]
    study, results = runs.study, runs.results
    founders = [silo.name for silo in study.founders]
    plan, rule = results[0].plan, rules[0]
    steps = plan.training.steps
    baselines = {name: alone for name, alone in all_runs.items() if name in (*BASELINES, control)}
    rounds = [entry for result in results for client in result.clients for entry in client.rounds]
    return MethodSummary(
        method=method,
        alone=results[0].alone,
        seeds=[result.seed for result in results],
        rounds=plan.rounds.total,
        clients_per_round=plan.rounds.min_clients if plan.rounds.sample and not results[0].alone else None,
        steps_per_round=steps,
        batch_size=plan.training.batch_size * plan.training.accumulation,
        states=results[0].clients[0].states,
        adapter=adapter_label(plan.adapter),
        adapters=results[0].adapters,
        scores={
            by: {
                score: figures(score, by, method, runs, baselines) for score in runs.score_names(by, founders)
            }
            for by in rules
        },
        transfer=_transfer(method, runs, all_runs, rules),
        forgetting=_forgetting(results, founders),
        mixing=_mixing(results, founders),
        declined=_declined(results, founders),
        rates={silo.name: [client.learning_rate for client in runs.of(silo.name)] for silo in study.silo},
        trials=trials,
        latecomers=[
            _latecomer(method, s.name, rule, runs, {b: r for b, r in baselines.items() if b in BASELINES})
            for s in study.latecomers
        ],
        lone=[_lone(method, name, rule, runs, baselines) for name in _lone_names(study)],
        served=served_curve(results, founders, steps),
        trained=trained_curve(results, founders, steps),
        clients=client_curves(results, steps),
        course=course,
        by_round=bytes_of(results),
        bytes_up=mean([entry.bytes_up for entry in rounds]),
        bytes_down=mean([entry.bytes_down for entry in rounds]),
        wall_seconds=mean([result.wall_seconds for result in results]),
        cpu_seconds=mean([result.cpu_seconds for result in results]),
        importance=importance_of(results, founders),
        bank=bank_of(results),
        relevance=relevance_of(results),
        alignment=packs_of(results),
        worst=worst_curve(results, founders, steps),
        tasks={by: tasks_of(by, method, runs, baselines) for by in rules},
    )


def _transfer(
    method: str, runs: Runs, all_runs: dict[str, Runs], rules: Sequence[Rule]
) -> dict[Rule, Transfer]:
    if runs.results[0].alone:
        return {}
    control = control_of(runs.study, method, runs.results[0].plan)
    if control is None or control not in all_runs:
        return {}
    transfers = {rule: transfer_of(rule, runs, control, all_runs[control]) for rule in rules}
    return {rule: transfer for rule, transfer in transfers.items() if transfer is not None}


def _forgetting(results: Sequence[CellResult], founders: Sequence[str]) -> Estimate | None:
    by_seed = [
        [c.forgetting for c in result.clients if c.name in founders and c.forgetting is not None]
        for result in results
    ]
    means = [mean(losses) for losses in by_seed if losses]
    return estimate(means) if means else None


def _mixing(results: Sequence[CellResult], founders: Sequence[str]) -> Estimate | None:
    by_seed = [
        [
            entry.scores.mixing.value
            for client in result.clients
            if client.name in founders
            for entry in client.rounds
            if entry.scores.mixing is not None
        ]
        for result in results
    ]
    means = [mean(changes) for changes in by_seed if changes]
    return estimate(means) if means else None


def _declined(results: Sequence[CellResult], founders: Sequence[str]) -> float | None:
    rounds = [
        entry.scores.began == "trained"
        for result in results
        for client in result.clients
        if client.name in founders
        for entry in client.rounds
        if entry.scores.mixing is not None
    ]
    return mean(rounds) if any(rounds) else None


def _latecomer(method: str, name: str, rule: Rule, runs: Runs, baselines: dict[str, Runs]) -> Latecomer:
    steps = runs.results[0].plan.training.steps
    seeds = [result.seed for result in runs.results]
    curves = [trained_losses(client) for client in runs.of(name)]
    ends = {
        baseline: {seed: seed_losses[name] for seed, seed_losses in alone.values(LOSS, rule, [name]).items()}
        for baseline, alone in baselines.items()
        if baseline != method
    }
    return Latecomer(
        name=name,
        curve=trained_curve(runs.results, [name], steps),
        alone={baseline: estimate(list(end.values())) for baseline, end in ends.items()},
        against=compare(LOSS, rule, method, [name], runs, baselines),
        ahead_after={
            baseline: [
                _stays_ahead(steps, curve, end[seed])
                for seed, curve in zip(seeds, curves, strict=True)
                if seed in end
            ]
            for baseline, end in ends.items()
        },
    )


def _lone(method: str, name: str, rule: Rule, runs: Runs, baselines: dict[str, Runs]) -> Lone:
    return Lone(
        name=name,
        loss=estimate([by_client[name] for by_client in runs.values(LOSS, rule, [name]).values()]),
        against=compare(LOSS, rule, method, [name], runs, baselines),
    )


def _stays_ahead(steps: int, curve: Sequence[float], end: float) -> int | None:
    """Return the first step from which every later loss is below `end`, or None."""
    # From the end: a curve may pass the baseline, fall back and pass it again.
    first = None
    for index in reversed(range(len(curve))):
        if curve[index] >= end:
            break
        first = steps * index
    return first


def _lone_names(study: Study) -> list[str]:
    sizes = Counter(silo.group for silo in study.silo)
    return [silo.name for silo in study.founders if silo.group is not None and sizes[silo.group] == 1]


class BankSummary(Strict):
    """The bank of a method's first seed that has one."""

    seed: int
    record: BankRecord


def bank_of(results: Sequence[CellResult]) -> BankSummary | None:
    """Return the bank of the first run that has one; None = the method has no experts."""
    for result in results:
        if result.bank is not None:
            # One seed only, since experts of different seeds have no common order to average by.
            return BankSummary(seed=result.seed, record=result.bank)
    return None


def worst_curve(results: Sequence[CellResult], names: Sequence[str], steps: int) -> LossCurve:
    """Return the loss of the worst of some clients after each round's local steps, estimated over seeds."""
    by_seed = [[trained_losses(c) for c in result.clients if c.name in names] for result in results]
    # Clients that were not drawn in every round have shorter curves.
    length = min(len(curve) for curves in by_seed for curve in curves)
    return LossCurve(
        steps=[steps * i for i in range(length)],
        loss=[estimate([max(curve[i] for curve in curves) for curves in by_seed]) for i in range(length)],
    )
