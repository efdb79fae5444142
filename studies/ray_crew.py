"""The silos of a run in several workers on Ray; each loads the base models of its silos once.

A silo stays with one worker, and its folder is the durable state. When a worker is killed, another one on the
same node continues from the folders of its silos.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from client_agent.errors import AgentError, EngineUnusable, LossNotFinite
from studies.crew import Report, SiloWork, T, TimeSpent, local_crew, unreported
from studies.ray_board import BoardFiles
from studies.ray_setup import Draw, RaySetup, opened_context
from studies.results import Cell
from studies.study import Study
from studies.worker import CHANGED, SILO_REMARK

log = logging.getLogger(__name__)

_remote: Any = ray.remote  # its types know no options of a class
_TRIES = 3
"""How many workers may end, one after the other, in the same piece of work."""


@dataclass(frozen=True, slots=True)
class SiloProgress:
    """A silo that works now, and its finished rounds."""

    name: str
    rounds: int


@dataclass(frozen=True, slots=True)
class SiloResults:
    """The results of silos, and what they have spent."""

    results: dict[str, Any]
    spent: TimeSpent


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The reason of a failure; with `diverges` every repetition fails too."""

    reason: str
    diverges: bool = False


class SiloWorker:
    """A worker that hosts some silos of a run; it does one piece of work at a time."""

    def __init__(self, setup: RaySetup, board: Any, name: str, cell: Cell, draw: Draw) -> None:
        self._setup = setup
        context = opened_context(setup, name, BoardFiles(board, name), trains=True)
        # The examples came with the actor: this node may not have the study's files.
        context.draw = lambda *_: dict(draw)
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._opened = local_crew(context, cell)
        self._crew = self._opened.__enter__()

    def node(self) -> str:
        """Return the node of this worker."""
        return str(ray.get_runtime_context().get_node_id())

    def do(
        self, work: SiloWork[Any], names: Sequence[str], at_once: bool
    ) -> Iterator[SiloProgress | logging.LogRecord | SiloResults | WorkFailed]:
        """Do a piece of work for silos: yield what they reach and log, and the results last."""
        if not self._setup.is_current:
            yield WorkFailed(CHANGED)
            return
        messages: queue.SimpleQueue[SiloProgress | logging.LogRecord | SiloResults | WorkFailed] = (
            queue.SimpleQueue()
        )
        handler = _Records(messages, names)
        logging.getLogger().addHandler(handler)
        # A generator of Ray has to yield while the work is in progress.
        threading.Thread(target=self._do, args=(messages, work, names, at_once), daemon=True).start()
        while isinstance(message := messages.get(), SiloProgress | logging.LogRecord):
            yield message
        logging.getLogger().removeHandler(handler)
        yield message

    def _do(
        self, messages: queue.SimpleQueue[Any], work: SiloWork[Any], names: Sequence[str], at_once: bool
    ) -> None:
        before = self._crew.spent()
        try:
            results = self._crew.run(
                names, work, lambda name, rounds: messages.put(SiloProgress(name, rounds)), at_once=at_once
            )
        except Exception as error:
            # Here, since exceptions lose their traceback on the way to another process.
            log.exception("%s failed", ", ".join(names[:3]))
            reason = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
            messages.put(WorkFailed(reason, isinstance(error, LossNotFinite)))
        else:
            messages.put(SiloResults(results, self._crew.spent().since(before)))


class _Records(logging.handlers.QueueHandler):
    """Passes on log records, with the name of the only silo that works."""

    def __init__(self, messages: queue.SimpleQueue[Any], names: Sequence[str]) -> None:
        super().__init__(messages)
        self.setLevel(logging.INFO)
        self._name = f"{names[0]}: " if len(names) == 1 else ""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        prepared: logging.LogRecord = super().prepare(record)  # its arguments are text now
        prepared.msg = prepared.message = f"{self._name}{prepared.getMessage()}"
        setattr(prepared, SILO_REMARK, True)
        return prepared


@dataclass(slots=True)
class _Share:
    """The silos of one worker, and the worker that has them now."""

    number: int
    names: list[str]
    actor: Any = None
    owner: str = ""
    node: str | None = None
    started: int = 0
    search_wall: float = 0.0


@dataclass(slots=True)
class RayCrew:
    """The silos of a run in several workers. A worker that ends is replaced, and its silos continue."""

    setup: RaySetup
    board: Any
    owner: str
    cell: Cell
    draw: Draw
    shares: list[_Share]
    _spent: TimeSpent = field(default_factory=TimeSpent)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, names: Sequence[str], work: SiloWork[T], report: Report = unreported, *, at_once: bool = False
    ) -> dict[str, T]:
        chosen = set(names)
        parts = [(share, [name for name in share.names if name in chosen]) for share in self.shares]
        parts = [(share, part) for share, part in parts if part]
        failed = threading.Event()
        with ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix="share") as threads:
            pending = [
                threads.submit(self._work_of, share, part, work, report, at_once, failed)
                for share, part in parts
            ]
        results: dict[str, T] = {}
        for done in pending:
            results |= done.result()
        # In the order of the names, whichever share was first.
        return {name: results[name] for name in names}

    def spent(self) -> TimeSpent:
        driving = TimeSpent(
            cpu=time.process_time(), search_wall=max(share.search_wall for share in self.shares)
        )
        return self._spent.plus(driving)

    def close(self) -> None:
        """End all workers."""
        for share in self.shares:
            self._end(share)

    def _work_of(
        self,
        share: _Share,
        names: list[str],
        work: SiloWork[T],
        report: Report,
        at_once: bool,
        failed: threading.Event,
    ) -> dict[str, T]:
        results: dict[str, T] = {}
        try:
            for part in [names] if at_once else [[name] for name in names]:
                if failed.is_set():
                    break
                # Silo by silo: a worker that is lost costs the work of one.
                results |= self._repeated(share, part, work, report, at_once)
        except BaseException:
            failed.set()
            raise
        return results

    def _repeated(
        self, share: _Share, names: list[str], work: SiloWork[T], report: Report, at_once: bool
    ) -> dict[str, T]:
        """Do work for silos of one share; a worker that ends meanwhile is replaced, up to `_TRIES`."""
        for _ in range(_TRIES):
            try:
                return self._done(share, names, work, report, at_once)
            except ray.exceptions.RayTaskError:
                raise  # an error of the worker's own code, which another one repeats
            except ray.exceptions.RayError as error:
                lost = str(error).strip().splitlines()[0]
                log.warning(
                    "silo worker %d ended (%s); its %d silos continue in another worker",
                    share.number,
                    lost,
                    len(share.names),
                )
                self._end(share)
        raise EngineUnusable(
            f"{names[0]}: {_TRIES} workers ended while it worked ({lost}); see whether its node is there and "
            "has memory for its base model, and repeat the command"
        )

    def _done(
        self, share: _Share, names: list[str], work: SiloWork[T], report: Report, at_once: bool
    ) -> dict[str, T]:
        actor = self._started(share)
        for answer in actor.do.options(num_returns="streaming").remote(work, names, at_once):
            match ray.get(answer):
                case SiloProgress(name, rounds):
                    report(name, rounds)
                # Handled as if logged here, so that a run has one log.
                case logging.LogRecord() as record:
                    logging.getLogger(record.name).handle(record)
                case SiloResults(results, spent):
                    with self._lock:
                        self._spent = self._spent.plus(TimeSpent(spent.cpu, spent.search_cpu))
                    share.search_wall += spent.search_wall
                    return results
                case WorkFailed(reason, diverges):
                    raise LossNotFinite(reason) if diverges else AgentError(reason)
        raise AgentError(f"{names[0]}: its worker gave no answer; repeat the command")

    def _started(self, share: _Share) -> Any:
        """Return the worker of a share; start it first, on the node of its silos' folders."""
        if share.actor is None:
            share.started += 1
            share.owner = f"{self.owner}.silos-{share.number}-{share.started}"
            options = dict(self.setup.trainer_options)
            if share.node is not None:
                # The folders of its silos are on that node.
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(share.node, soft=False)
            draw = {name: self.draw[name] for name in share.names}
            actor = _remote(SiloWorker).options(**options)
            share.actor = actor.remote(self.setup, self.board, share.owner, self.cell, draw)
            share.node = ray.get(share.actor.node.remote())
        return share.actor

    def _end(self, share: _Share) -> None:
        actor, share.actor = share.actor, None
        if actor is not None:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
            # Locks of a killed worker would be held forever.
            self.board.forget.remote(share.owner)


@contextmanager
def ray_crew(setup: RaySetup, board: Any, owner: str, cell: Cell, draw: Draw) -> Iterator[RayCrew]:
    """Spread the silos of a run over its workers, and end them with the block."""
    parts = shares(setup.study, setup.silo_workers)
    crew = RayCrew(setup, board, owner, cell, draw, [_Share(n, names) for n, names in enumerate(parts, 1)])
    try:
        yield crew
    finally:
        crew.close()


def shares(study: Study, workers: int) -> list[list[str]]:
    """Divide the silos of a study into at most `workers` equal shares, with few base models in each."""
    # Neighbours have one base model, so that a worker loads few.
    silos = sorted(study.silo, key=lambda silo: (silo.model, silo.dtype, silo.quantization))
    bounds = [len(silos) * n // workers for n in range(workers + 1)]
    parts = [[silo.name for silo in silos[a:b]] for a, b in pairwise(bounds)]
    return [part for part in parts if part]
