"""Results of single runs on disk, and the conditions for their reuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from client_agent.adapters.variational.measures import MeasuresFile
from client_agent.model.examples import Example
from client_agent.model.loading import base_model_slug
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import FinalScores, TaskScores
from client_agent.training.data import SiloData
from schemas.messages.base import Strict
from schemas.messages.federations import FederationPlan
from schemas.messages.scores import Scores
from studies.bank_record import BankRecord
from studies.code_fingerprint import code_of_runs
from studies.methods import Method, control_of, plan_of, require_equal_training
from studies.partition import digest_of_examples, draw_examples
from studies.run_records import AlignmentRecord, RelevanceRecord, TextCount
from studies.study import Study
from studies.study_fields import States


class ClientRound(Strict):
    """One client in one round: test scores, validation losses, and bytes on the wire in a federation.

    `validation` has the losses of `served` and `trained`; it is empty with fewer than 16 validation examples.
    `tasks` has the scores of each task of both, where the rows have tasks.
    """

    round: int
    scores: Scores
    validation: dict[str, float] = Field(default_factory=dict)
    tasks: dict[str, TaskScores] = Field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


class ClientResult(Strict):
    """One client's rounds, in order.

    Attributes:
        final: the scores of the final published weights; None for a client that trained alone.
        learning_rate: the rate of its training, searched or from the plan.
        forgetting: loss on the study's anchor texts of the model that it ends with, minus the bare model's.
        measures: its importance measures, if its method learns them.
        states: those that may be its result, by its method.
        texts: how many of its examples are cut.
    """

    name: str
    base_model: str
    joins_after: int
    rounds: list[ClientRound]
    final: FinalScores | None = None
    learning_rate: float
    forgetting: float | None = None
    measures: MeasuresFile | None = None
    states: States = "all"
    texts: TextCount | None = None


class CellResult(Strict):
    """One method with one seed. Times cover training and rounds only.

    `cpu_seconds` are the clients' alone; the coordinator serves several runs. `search_cpu_seconds` are those
    of the rate searches that this run happened to do first, and that other runs share. `adapters` is how many
    a client trains, each in all steps of a round. `bank` is None by a method without experts. `relevance` is
    by round, and empty by a method that trains alone or sums updates; `alignment` is empty without packs.
    """

    digest: str
    method: str
    seed: int
    alone: bool
    plan: FederationPlan
    clients: list[ClientResult]
    wall_seconds: float
    cpu_seconds: float
    search_cpu_seconds: float
    adapters: int = 1
    bank: BankRecord | None = None
    relevance: list[RelevanceRecord] = Field(default_factory=list)
    alignment: list[AlignmentRecord] = Field(default_factory=list)

    def of(self, cell: Cell) -> CellResult:
        """Return it as the result of a cell of the same run."""
        clients = [client.model_copy(update={"states": cell.states}) for client in self.clients]
        return self.model_copy(update={"method": cell.method, "clients": clients})


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with one seed, to run; `digest` covers all inputs of its results.

    `run` is the method whose runs it shares, if it is not itself, `states` are those that count by it. `rate`
    is the learning rate of a run of a fair comparison.
    """

    method: str
    seed: int
    alone: bool
    plan: FederationPlan
    digest: str
    run: str = ""
    states: States = "all"
    rate: float | None = None

    @property
    def label(self) -> str:
        return f"{self.method}, seed {self.seed}" + (f", rate {self.rate:g}" if self.rate is not None else "")

    def folder(self, out: Path) -> Path:
        rate = f"-rate-{self.rate:g}" if self.rate is not None else ""
        # Methods with the same plan share the folder, and so the run.
        return out / "cells" / f"{self.run or self.method}{rate}-seed-{self.seed}"

    def log(self, out: Path) -> Path:
        return self.folder(out) / "log.txt"

    def result(self, out: Path) -> Path:
        return self.folder(out) / "result.json"


@dataclass(slots=True)
class CellPlanner:
    """Plans the cells of a study; what the cells of a seed have in common is drawn once."""

    study: Study
    _slugs: dict[str, str] = field(default_factory=dict)
    _silos: dict[int, JsonValue] = field(default_factory=dict)
    _cells: dict[tuple[str, int, float | None], Cell] = field(default_factory=dict)

    def cell(self, method: Method, seed: int, rate: float | None = None) -> Cell:
        """Plan one run.

        Raises:
            StudyUnusable: the plan or a pool is invalid.
            ModelNotFound, DataInvalid: files are missing.
        """
        key = method.name, seed, rate
        if key not in self._cells:
            self._cells[key] = self._planned(method, seed, rate)
        return self._cells[key]

    def _planned(self, method: Method, seed: int, rate: float | None) -> Cell:
        study = self.study
        if not self._slugs:
            # Once: a slug is a digest over the files of a model.
            self._slugs = {model: base_model_slug(model) for model in study.models}
        pivot = self._slugs[study.pivot_model] if study.pivot_model is not None else None
        plan = plan_of(study, method, seed, pivot, rate)
        control_of(study, method.name, plan)  # raises before any run
        facts = [
            method.alone,
            plan.model_dump(mode="json"),
            self._facts(seed),
            hashlib.sha256(study.anchors.read_bytes()).hexdigest() if study.anchors is not None else "",
            study.forgetting,
            # Results of other code are not mixed with these.
            code_of_runs(),
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return Cell(method.name, seed, method.alone, plan, digest, method.run, method.states, rate)

    def _facts(self, seed: int) -> JsonValue:
        """Return what a run's result depends on in all silos."""
        if seed not in self._silos:
            data = draw_examples(self.study, seed)
            self._silos[seed] = [
                [
                    silo.name,
                    self._slugs[silo.model],
                    silo.dtype,
                    silo.quantization,
                    silo.joins_after,
                    *map(digest_of_examples, _sides(data[silo.name])),
                    # Metrics and references are not in an example's own digest, and change the scores.
                    _digest_of_scoring(data[silo.name].test),
                    silo.lora_rank,
                ]
                for silo in self.study.silo
            ]
        return self._silos[seed]


def cells_of(study: Study, methods: list[Method], seeds: list[int]) -> Iterator[Cell]:
    """Yield every (method, seed), all methods of a seed together.

    Raises:
        StudyUnusable: a plan or a pool is invalid, or the methods train unequal amounts.
        ModelNotFound, DataInvalid: files are missing.
    """
    planner = CellPlanner(study)
    for seed in seeds:
        cells = [planner.cell(method, seed) for method in methods]
        require_equal_training({cell.method: cell.plan for cell in cells})
        yield from cells


def _digest_of_scoring(tests: Sequence[Example]) -> str:
    """Return the digest of what scores depend on beside the model: metrics, options, references."""
    return hashlib.sha256(repr([example.scored_by for example in tests]).encode()).hexdigest()


def _sides(data: SiloData) -> tuple[Sequence[Example], ...]:
    return data.train, data.validation, data.test


def stored_result(cell: Cell, out: Path) -> CellResult | None:
    """Return the stored result if it has this cell's digest."""
    try:
        result = CellResult.model_validate_json(cell.result(out).read_bytes())
    # A result of an older version is run again, as one that is missing.
    except (FileNotFoundError, ValidationError):
        return None
    # A result of other inputs lies in the same folder, and is replaced.
    return result.of(cell) if result.digest == cell.digest else None


def store_result(cell: Cell, out: Path, result: CellResult) -> None:
    write_durably(cell.result(out), result.model_dump_json(indent=1).encode())


_DIVERGED = "diverged.txt"


def store_divergence(cell: Cell, out: Path) -> None:
    """Record that training diverges in a cell, whenever it is run."""
    write_durably(cell.folder(out) / _DIVERGED, cell.digest.encode())


def has_diverged(cell: Cell, out: Path) -> bool:
    """Whether the training of exactly this cell is known to diverge."""
    try:
        return (cell.folder(out) / _DIVERGED).read_text() == cell.digest
    except FileNotFoundError:
        return False
