"""The silos of one run: in this process (`LocalCrew`), or spread over workers that each host some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorStopped
from client_agent.identity.agent_folder import read_membership
from client_agent.identity.membership import read_key
from client_agent.model.examples import Example, encode_for, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import precision_of
from client_agent.model.tokens import TokenizedText
from client_agent.rounds.participant import Participant
from client_agent.training.data import SiloData
from client_agent.training.evaluate import mean_loss
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.alignment import Anchor
from schemas.trackers.trackers import NO_TRACKERS, Trackers
from studies.clients import build_silo, pivot_dtype
from studies.pack_cache import PackCache, read_anchors
from studies.results import Cell
from studies.shared_rates import SharedRates
from studies.study_fields import StudySilo
from studies.worker_context import WorkerContext

DEADLINE_SECONDS = 60.0

T = TypeVar("T")
TResult = TypeVar("TResult", covariant=True)

Report = Callable[[str, int], None]
"""Called with the name of the silo that works, and how many rounds of a training alone it has finished."""


def unreported(name: str, rounds: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds of processor time in all and in searches; `search_wall` is elapsed time, waiting included."""

    cpu: float = 0.0
    search_cpu: float = 0.0
    search_wall: float = 0.0

    def plus(self, more: TimeSpent) -> TimeSpent:
        return TimeSpent(
            self.cpu + more.cpu, self.search_cpu + more.search_cpu, self.search_wall + more.search_wall
        )

    def since(self, before: TimeSpent) -> TimeSpent:
        return TimeSpent(
            self.cpu - before.cpu, self.search_cpu - before.search_cpu, self.search_wall - before.search_wall
        )


class SiloWork(Protocol[TResult]):
    """One step of one silo. After a kill it is repeated by another process, from the silo's folder."""

    def __call__(self, host: SiloHost, name: str) -> TResult: ...


class Crew(Protocol):
    """The silos of a run."""

    def run(
        self, names: Sequence[str], work: SiloWork[T], report: Report = unreported, *, at_once: bool = False
    ) -> dict[str, T]:
        """Do a piece of work for silos, in their order in one process; `at_once`: in a thread for each.

        Raises:
            AgentError: the first error of a silo.
        """

    def spent(self) -> TimeSpent:
        """Return the time spent by all silos; `search_wall` is that of the process that searched longest."""


@dataclass(slots=True)
class SiloHost:
    """The silos of a run in this process: each base model once, and each silo's folder and connection.

    A member is opened from its folder, so that a host continues what another one began.
    """

    context: WorkerContext
    cell: Cell
    rates: SharedRates
    trackers: Trackers = NO_TRACKERS
    report: Report = unreported
    _data: dict[str, SiloData] = field(default_factory=dict)
    _silos: dict[str, Silo] = field(default_factory=dict)
    _members: dict[str, Participant] = field(default_factory=dict)
    _packs: dict[str, Pack] = field(default_factory=dict)
    _forgetting: list[Forgetting] = field(default_factory=list)
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        """The coordinator's address."""
        if self.context.operator is None:
            raise CoordinatorStopped(
                f"{self.cell.label} needs a coordinator, and none was started; start the comparison again"
            )
        return self.context.operator.url

    @property
    def folder(self) -> Path:
        """The folder of all silos' folders."""
        return clients_folder(self.context, self.cell)

    def entry(self, name: str) -> StudySilo:
        return next(silo for silo in self.context.study.silo if silo.name == name)

    def silo(self, name: str) -> Silo:
        """Return a silo; load its base model at the first call of one that has it."""
        if name not in self._silos:
            study = self.context.study
            # Drawn once for all silos: examples of different silos are disjoint.
            self._data = self._data or self.context.draw(study, self.cell.seed)
            self._silos[name] = build_silo(study, self.entry(name), self._data[name], self.context.models)
        return self._silos[name]

    def member(self, name: str) -> Participant:
        """Return an enrolled silo; connect to the coordinator at the first call."""
        if name not in self._members:
            folder = self.folder / name
            membership = read_membership(folder)
            api = self._opened.enter_context(
                CoordinatorApi(
                    self.url,
                    key=read_key(folder),
                    server_key=membership.server_key,
                    deadline_seconds=DEADLINE_SECONDS,
                )
            )
            self._members[name] = Participant.of(
                self.silo(name),
                api,
                membership,
                folder,
                # A run reads the newest round only, and many silos share a disk.
                keep_rounds=1,
                lora_rank=self.entry(name).lora_rank,
                rates=self.rates,
                trackers=self.trackers.named(name),
            )
        return self._members[name]

    def pack(self, name: str, *, is_pivot: bool = False) -> Pack | None:
        """Return the alignment pack of a silo's base model, or of the pivot; None for random frames."""
        study, plan = self.context.study, self.cell.plan.alignment
        if plan is None or plan.frames == "random" or study.pivot_model is None or study.anchors is None:
            return None
        pivot = self.context.models.at(study.pivot_model, pivot_dtype(self.entry(name)))
        base = pivot if is_pivot else self.silo(name).base
        if base.slug not in self._packs:
            cache = PackCache(self.context.files, read_anchors(study.anchors).anchors)
            self._packs[base.slug] = cache.pack(
                base, pivot, self.cell.plan.adapter, plan, lambda doing: self.report(doing, 0)
            )
        return self._packs[base.slug]

    @property
    def texts(self) -> Sequence[Anchor]:
        """Return the study's public texts if the plan pulls silos to their base models; () otherwise."""
        study, pull = self.context.study, self.cell.plan.training.anchor_pull
        return read_anchors(study.anchors).anchors if study.anchors is not None and pull else ()

    def forgetting(self, name: str) -> Forgetting | None:
        """Return the measure of forgetting, with a silo's bare model measured; None without one.

        Call it while the model has no adapter.
        """
        study = self.context.study
        if study.anchors is None or not study.forgetting:
            return None
        if not self._forgetting:
            anchors, longest = read_anchors(study.anchors).anchors, self.cell.plan.training.max_length
            self._forgetting.append(Forgetting(anchors, study.forgetting, longest))
        self._forgetting[0].measure_bare(self.silo(name).base)
        return self._forgetting[0]

    def close(self) -> None:
        """Close all connections."""
        self._opened.close()


@dataclass(frozen=True, slots=True)
class LocalCrew:
    """Silos of this process, which take turns."""

    host: SiloHost

    def run(
        self, names: Sequence[str], work: SiloWork[T], report: Report = unreported, *, at_once: bool = False
    ) -> dict[str, T]:
        self.host.report = report
        if at_once:
            for name in names:
                self.host.member(name)  # models are loaded by one thread
            with ThreadPoolExecutor(len(names), thread_name_prefix="silo") as threads:
                pending = {name: threads.submit(work, self.host, name) for name in names}
                return {name: done.result() for name, done in pending.items()}
        results = {}
        for name in names:
            report(name, 0)
            results[name] = work(self.host, name)
        return results

    def spent(self) -> TimeSpent:
        search = self.host.rates.spent
        return TimeSpent(time.process_time(), search.cpu, search.wall)


@contextmanager
def local_crew(context: WorkerContext, cell: Cell, trackers: Trackers = NO_TRACKERS) -> Iterator[LocalCrew]:
    """Host all silos of a run in this process; close their connections at the end."""
    host = SiloHost(context, cell, SharedRates.of(context.files), trackers)
    try:
        yield LocalCrew(host)
    finally:
        host.close()


def clients_folder(context: WorkerContext, cell: Cell) -> Path:
    """Return the folder of the folders of a run's silos."""
    return cell.folder(context.out) / "clients"


class Forgetting:
    """Measures forgetting: the loss on at most `count` public texts, minus that of the bare base model."""

    def __init__(self, anchors: Sequence[Anchor], count: int, max_length: int) -> None:
        texts = [Example("", anchor.prompt + anchor.answer) for anchor in anchors]
        self._texts = probe_set(texts, count)
        self._max_length = max_length
        self._encoded: dict[str, Sequence[TokenizedText]] = {}
        self._bare: dict[str, float] = {}

    def measure_bare(self, base: BaseModel) -> None:
        """Measure a base model that has no adapter at the moment; once per model and precision."""
        # Silos share models, so that a bare model is scored once.
        if (key := _key(base)) not in self._bare:
            self._encoded[key] = encode_for(base, self._texts, self._max_length)
            self._bare[key] = mean_loss(base, self._encoded[key])

    def of(self, base: BaseModel) -> float:
        """Return the loss of a measured base model, with the adapter that it has now, minus the bare loss."""
        key = _key(base)
        return mean_loss(base, self._encoded[key]) - self._bare[key]


def _key(base: BaseModel) -> str:
    return f"{base.slug}, {precision_of(base.model)}"
