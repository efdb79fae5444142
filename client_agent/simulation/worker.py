"""A worker process: takes orders from standard input, runs them one after another, says how it goes.

It ends when its standard input does, which is also how it notices that the comparing process was killed.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

import torch

from client_agent.errors import AgentError, StudyUnusable
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.clients import SharedModels
from client_agent.simulation.methods import methods_of
from client_agent.simulation.results import Cell, cells_of, keep
from client_agent.simulation.run_cell import Workplace, run_cell
from client_agent.simulation.worker_protocol import Done, Failed, Order, Progress, Setup

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Worker:
    """Runs orders at one place."""

    setup: Setup
    place: Workplace
    answers: TextIO

    def run(self, order: Order) -> None:
        """Run one order; what goes wrong is said, and the worker is fit for the next."""
        (cell,) = cells_of(self.setup.study, methods_of(self.setup.study, [order.method]), [order.seed])
        cell.folder(self.setup.out).mkdir(parents=True, exist_ok=True)
        _log_into(cell, self.setup)
        log.info("%s: %s", cell.label, cell.plan.model_dump_json())
        try:
            if cell.digest != order.digest:
                raise StudyUnusable("code or data changed since the comparison began; start it again")
            result = run_cell(self.place, cell, lambda rounds, doing: self._tell(cell, rounds, doing))
            keep(cell, self.setup.out, result)
        except Exception as error:
            log.exception("%s failed", cell.label)
            self.place.models = SharedModels()  # an adapter may be around one of the old ones
            known = isinstance(error, AgentError)
            self._say(Failed(reason=str(error) if known else f"{type(error).__name__}: {error}"))
        else:
            log.info("%s finished", cell.label)
            self._say(Done())

    def _tell(self, cell: Cell, rounds: int, doing: str) -> None:
        self._say(Progress(rounds=rounds, total=cell.plan.rounds.total, doing=doing))

    def _say(self, what: Progress | Done | Failed) -> None:
        print(what.model_dump_json(), file=self.answers, flush=True)


def main() -> None:
    """Work until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the comparing process, which ends this one
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    setup = Setup.model_validate_json(sys.stdin.readline())
    torch.set_num_threads(1)
    operator = Operator(setup.url, setup.token) if setup.url is not None else None
    place = Workplace(setup.study, setup.out, operator, SharedModels())
    worker = Worker(setup, place, answers)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, setup), daemon=True).start()
    while True:
        worker.run(orders.get())


def _listen(orders: queue.SimpleQueue[Order], setup: Setup) -> None:
    for line in sys.stdin:
        orders.put(Order.model_validate_json(line))
    if setup.coordinator is not None:
        with suppress(ProcessLookupError):
            os.kill(setup.coordinator, signal.SIGTERM)
    os._exit(0)


def _log_into(cell: Cell, setup: Setup) -> None:
    """Send everything that is logged or printed from here on into the run's log."""
    with cell.log(setup.out).open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


if __name__ == "__main__":
    main()
