"""The worker of a comparison on Ray that runs cells."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
import torch

from studies.card_share import card_bytes, memory_needed
from studies.ray_board import BoardFiles
from studies.ray_crew import ray_crew
from studies.ray_setup import Draw, RaySetup, opened_context
from studies.results import Cell, has_diverged
from studies.worker import Worker
from studies.worker_protocol import Progress, RunDone, RunFailed


@dataclass(frozen=True, slots=True)
class CellEnd:
    """The end of a cell: its result or the reason of its failure, and its log.

    With `has_diverged`, training diverges in every repetition.
    """

    failure: str | None
    result: bytes | None
    log: bytes
    has_diverged: bool


class CellWorker:
    """One worker of a comparison; it runs cells in sequence, here or by workers for their silos."""

    def __init__(self, setup: RaySetup, board: Any, name: str) -> None:
        self._setup = setup
        self._draw: Draw = {}
        files = BoardFiles(board, name)
        self._context = opened_context(setup, name, files, trains=not setup.silo_workers)
        self._context.draw = lambda *_: dict(self._draw)
        if setup.silo_workers:
            self._context.spread = lambda cell: ray_crew(setup, board, name, cell, self._draw)

    def run(self, cell: Cell, draw: Draw) -> Iterator[Progress | CellEnd]:
        """Run a cell: yield its progress, and its end last."""
        self._draw = draw
        messages: queue.SimpleQueue[Progress | RunDone | RunFailed] = queue.SimpleQueue()
        worker = Worker(self._context, messages.put)
        threading.Thread(
            target=worker.run, args=(cell,), kwargs={"is_current": self._setup.is_current}, daemon=True
        ).start()
        while isinstance(message := messages.get(), Progress):
            yield message
        out = self._context.out
        failure = message.reason if isinstance(message, RunFailed) else None
        result = cell.result(out).read_bytes() if failure is None else None
        ended = CellEnd(failure, result, cell.log(out).read_bytes(), has_diverged(cell, out))
        # The result is on its way: this node's disk is not the study's.
        shutil.rmtree(cell.folder(out))
        yield ended

    def memory(self, cells: list[tuple[Cell, Any]]) -> tuple[int, int]:
        """Return the bytes of the card, and those that these cells need; 0 of a card without a GPU."""
        needed = 0
        for cell, draw in cells if torch.cuda.is_available() else ():
            self._draw = ray.get(draw)
            needed = max(needed, memory_needed(self._context, [cell]))
        return card_bytes(), needed
