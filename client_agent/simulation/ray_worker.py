"""Actors of a comparison on Ray: workers that run cells, and the board of the files that they share."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import ActorHandle

from client_agent.model.loading import base_model_slug
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.card_share import card_bytes, memory_needed
from client_agent.simulation.code_fingerprint import code_of_runs
from client_agent.simulation.results import Cell, has_diverged
from client_agent.simulation.run_cell import WorkerContext
from client_agent.simulation.shared_files import FolderFiles
from client_agent.simulation.study import Study
from client_agent.simulation.worker import Worker, models_in
from client_agent.simulation.worker_protocol import Done, Failed, Progress
from client_agent.training.data import SiloData

Draw = Mapping[str, SiloData]
"""The examples of every silo for one seed."""


@dataclass(frozen=True, slots=True)
class RaySetup:
    """What a worker on any node needs: texts and the identity of code and models, but no file of this one.

    `host` is the coordinator's address, `anchors` the content of the study's file of anchor texts.
    `url` and `token` are an operator's access to the coordinator. `slugs` has the base models that
    the comparison began with.
    """

    study: Study
    host: str
    run: str
    code: str
    slugs: dict[str, str]
    anchors: bytes | None = None
    url: str | None = None
    token: str = ""
    gpus: float = 0.0

    def folder(self) -> Path:
        """The working folder on a node."""
        return Path(tempfile.gettempdir()) / f"tessera-compare-{self.run}"


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell's end: its result or the reason of its failure, and its log.

    `has_diverged`: training diverges whenever the cell is run.
    """

    failure: str | None
    result: bytes | None
    log: bytes
    has_diverged: bool


class CellWorker:
    """One worker of a comparison; it runs cells in sequence."""

    def __init__(self, setup: RaySetup, board: ActorHandle[Board], name: str) -> None:
        for variable in [name for name in os.environ if name.startswith("TESSERA_")]:
            del os.environ[variable]
        os.environ |= {"NO_PROXY": setup.host, "no_proxy": setup.host}
        torch.set_num_threads(1)
        if 0 < setup.gpus < 1:
            torch.cuda.set_per_process_memory_fraction(setup.gpus)
        self._setup = setup
        self._draw: Draw = {}
        out = setup.folder()
        out.mkdir(mode=0o700, exist_ok=True)
        study = setup.study
        if setup.anchors is not None:
            anchors = out / f"anchors-{name}.json"
            anchors.write_bytes(setup.anchors)
            study = study.model_copy(update={"anchors": anchors})
        operator = Operator(setup.url, setup.token) if setup.url is not None else None
        self._context = WorkerContext(
            study, out, operator, models_in(out), BoardFiles(board, name), lambda *_: dict(self._draw)
        )

    def run(self, cell: Cell, draw: Draw) -> Iterator[Progress | Ended]:
        """Run a cell: yield its progress, and its end last."""
        self._draw = draw
        messages: queue.SimpleQueue[Progress | Done | Failed] = queue.SimpleQueue()
        worker = Worker(self._context, messages.put)
        is_current = self._setup.code == code_of_runs() and self._setup.slugs == slugs_of(self._setup.study)
        threading.Thread(
            target=worker.run, args=(cell,), kwargs={"is_current": is_current}, daemon=True
        ).start()
        while isinstance(message := messages.get(), Progress):
            yield message
        out = self._context.out
        failure = message.reason if isinstance(message, Failed) else None
        result = cell.result(out).read_bytes() if failure is None else None
        ended = Ended(failure, result, cell.log(out).read_bytes(), has_diverged(cell, out))
        shutil.rmtree(cell.folder(out))
        yield ended

    def memory(self, cells: list[tuple[Cell, Any]]) -> tuple[int, int]:
        """Return the bytes of the card, and those that these cells need; 0 of a card without a GPU."""
        needed = 0
        for cell, draw in cells if torch.cuda.is_available() else ():
            self._draw = ray.get(draw)
            needed = max(needed, memory_needed(self._context, [cell]))
        return card_bytes(), needed


class Board:
    """The files that workers share, in the output folder, with locks that end with their workers."""

    def __init__(self, out: Path) -> None:
        self._files = FolderFiles(out)
        self._owners: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def has_authentication(self) -> bool:
        """Whether this node belongs to a cluster with token authentication."""
        return os.environ.get("RAY_AUTH_MODE") == "token"

    async def read(self, name: str) -> bytes | None:
        return self._files.read(name)

    async def write(self, name: str, content: bytes) -> None:
        self._files.write(name, content)

    async def acquire(self, name: str, owner: str, *, wait: bool) -> bool:
        """Lock a name for a worker; without `wait` return False if another worker has it."""
        async with self._changed:
            if name in self._owners and not wait:
                return False
            await self._changed.wait_for(lambda: name not in self._owners)
            self._owners[name] = owner
            return True

    async def release(self, name: str) -> None:
        async with self._changed:
            self._owners.pop(name, None)
            self._changed.notify_all()

    async def forget(self, owner: str) -> None:
        """Release all locks of a worker that ended."""
        async with self._changed:
            self._owners = {name: holder for name, holder in self._owners.items() if holder != owner}
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class BoardFiles:
    """A worker's door to the board."""

    board: Any
    owner: str

    def read(self, name: str) -> bytes | None:
        content: bytes | None = ray.get(self.board.read.remote(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        ray.get(self.board.write.remote(name, content))

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        if not ray.get(self.board.acquire.remote(name, self.owner, wait=False)):
            if waiting is not None:
                waiting()
            ray.get(self.board.acquire.remote(name, self.owner, wait=True))
        try:
            yield
        finally:
            ray.get(self.board.release.remote(name))


def slugs_of(study: Study) -> dict[str, str]:
    """Return the slug of every base model of a study."""
    return {model: base_model_slug(model) for model in study.models}
