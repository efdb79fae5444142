"""Worker process: runs orders from standard input in sequence, and reports progress.

It ends with its standard input, and so also when the comparing process is killed.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from client_agent.agent_entries import PREFIXES
from client_agent.errors import AgentError, LossNotFinite, StudyUnusable
from client_agent.rounds.examine import DATA_REMARK
from client_agent.storage.prefix_store import PrefixStore
from client_agent.transport.admin_client import Operator
from schemas.messages.scores import LOSS
from schemas.trackers.tracker import Facts, TrackedRun
from schemas.trackers.trackers import Trackers
from studies.clients import SharedModels
from studies.methods import methods_of
from studies.results import Cell, CellPlanner, CellResult, ClientRound, store_divergence, store_result
from studies.run_cell import run_cell
from studies.study import Study
from studies.worker_context import WorkerContext
from studies.worker_protocol import Order, Progress, RunDone, RunFailed, Setup

log = logging.getLogger(__name__)

_PREFIX_BYTES = 8 * 2**30

CHANGED = "code or data changed since the comparison began; start the comparison again"

SILO_REMARK = "silo_remark"
"""An attribute of log records whose text names its silo."""

_ACTIVITIES = (
    "client_agent.training",
    "client_agent.rounds",
    "client_agent.alignment",
    "studies.shared_rates",
)


@dataclass(slots=True)
class Worker:
    """Runs cells in one context, with their log and result in its output folder."""

    context: WorkerContext
    send: Callable[[Progress | RunDone | RunFailed], None]
    _rounds: int = 0
    _client: str = ""

    def run_order(self, order: Order) -> None:
        """Run one order; report a failure and stay ready for the next order."""
        study = self.context.study
        cell = CellPlanner(study).cell(methods_of(study, [order.method])[0], order.seed, order.rate)
        self.run(cell, is_current=cell.digest == order.digest)

    def run(self, cell: Cell, *, is_current: bool) -> None:
        """Run one cell, or report that its inputs are not those of the comparison."""
        out = self.context.out
        cell.folder(out).mkdir(parents=True, exist_ok=True)
        _log_into(cell, out)
        logging.getLogger().addHandler(_Activity(lambda record: self._report_activity(cell, record)))
        log.info("%s: %s", cell.label, cell.plan.model_dump_json())
        try:
            if not is_current:
                raise StudyUnusable(CHANGED)
            with trackers_of(self.context.study, out, cell) as trackers:
                result = run_cell(
                    self.context,
                    cell,
                    lambda rounds, doing: self._report_progress(cell, rounds, doing),
                    trackers,
                )
                track_result(trackers, result)
            store_result(cell, out, result)
        except Exception as error:
            log.exception("%s failed", cell.label)
            self.context.models = models_in(out)  # an adapter may still be attached to a loaded model
            if isinstance(error, LossNotFinite) and cell.rate is not None:
                store_divergence(cell, out)
            is_agent_error = isinstance(error, AgentError)
            self.send(RunFailed(reason=str(error) if is_agent_error else f"{type(error).__name__}: {error}"))
        else:
            log.info("%s finished", cell.label)
            self.send(RunDone())

    def _report_progress(self, cell: Cell, rounds: int, doing: str) -> None:
        self._rounds, self._client = rounds, doing
        self.send(Progress(rounds=rounds, total=cell.plan.rounds.total, doing=doing))

    def _report_activity(self, cell: Cell, record: logging.LogRecord) -> None:
        """Report a log line of the active client: what it searches, trains or scores."""
        line = record.getMessage()
        doing = f"{self._client}: {line}" if self._client and not hasattr(record, SILO_REMARK) else line
        self.send(Progress(rounds=self._rounds, total=cell.plan.rounds.total, doing=doing))


class _Activity(logging.Handler):
    """Passes on the log lines of training and rounds, without those that hold for every silo of the study."""

    def __init__(self, report: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_ACTIVITIES) and not hasattr(record, DATA_REMARK):
            self._report(record)


def main() -> None:
    """Run orders until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the comparing process, which ends this one
    # A copy: the standard output itself goes to the log of a run.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    setup = Setup.model_validate_json(sys.stdin.readline())
    # Workers share the cores; and results do not depend on the number of threads.
    torch.set_num_threads(1)
    operator = Operator(setup.url, setup.token) if setup.url is not None else None
    context = WorkerContext(setup.study, setup.out, operator, models_in(setup.out))

    def send(message: Progress | RunDone | RunFailed) -> None:
        print(message.model_dump_json(), file=answers, flush=True)

    worker = Worker(context, send)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, setup), daemon=True).start()
    while True:
        worker.run_order(orders.get())


def models_in(out: Path) -> SharedModels:
    """Return no models yet, with stored layers in an output folder."""
    return SharedModels(PrefixStore(out / PREFIXES, _PREFIX_BYTES))


def _listen(orders: queue.SimpleQueue[Order], setup: Setup) -> None:
    for line in sys.stdin:
        orders.put(Order.model_validate_json(line))
    if setup.coordinator is not None:
        with suppress(ProcessLookupError):
            os.kill(setup.coordinator, signal.SIGTERM)
    # The main thread may be in the middle of a step, which would end first.
    os._exit(0)


def _log_into(cell: Cell, out: Path) -> None:
    """Redirect all later logging and output to the run's log."""
    with cell.log(out).open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            # On the level of descriptors, so that output of libraries in C is in the log, too.
            os.dup2(file.fileno(), stream.fileno())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def trackers_of(study: Study, out: Path, cell: Cell) -> Iterator[Trackers]:
    """Open the trackers of a run; an interrupted run starts again as a new run."""
    facts: Facts = {"method": cell.method, "seed": cell.seed, "strategy": cell.plan.strategy.name}
    # A random part: an interrupted run starts again as a new one, not on top of the old steps.
    run = TrackedRun(out.name, cell.label, f"{cell.digest[:16]}-{secrets.token_hex(4)}", facts)
    with study.trackers(out).open(run) as trackers:
        trackers.begin()
        yield trackers


def track_result(trackers: Trackers, result: CellResult) -> None:
    """Record the means over clients of every round's losses, and the bytes of all of them."""
    rounds: dict[int, list[ClientRound]] = {}
    for client in result.clients:
        for entry in client.rounds:
            rounds.setdefault(entry.round, []).append(entry)
    for number, entries in sorted(rounds.items()):
        values = {
            "mean/served/loss": _mean([entry.scores.served[LOSS].value for entry in entries]),
            "mean/trained/loss": _mean([entry.scores.trained[LOSS].value for entry in entries]),
            "bytes/up": float(sum(entry.bytes_up for entry in entries)),
            "bytes/down": float(sum(entry.bytes_down for entry in entries)),
        }
        trackers.log("round", number, values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
