"""The workers of a comparison on Ray, and the thread that waits for each of them."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from client_agent.errors import EngineUnusable
from client_agent.storage.files import write_durably
from studies.card_share import require_share
from studies.coordinator_process import running_coordinator
from studies.partition import draw_examples
from studies.ray_board import Board
from studies.ray_setup import RaySetup
from studies.ray_worker import CellWorker
from studies.results import Cell, store_divergence
from studies.worker_pool import CellQueue, Follow, ProgressListener, delete_database
from studies.worker_protocol import Progress

_remote: Any = ray.remote  # its types know no options of a class


@dataclass(slots=True)
class RayPool:
    """The workers of a comparison: a thread per worker waits for its actor."""

    setup: RaySetup
    board: Any
    out: Path
    listener: ProgressListener
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _draws: dict[int, Any] = field(default_factory=dict)
    _actors: set[Any] = field(default_factory=set)
    _stopped: bool = False

    @classmethod
    @contextmanager
    def on_the_cluster(
        cls,
        address: str | None,
        setup: RaySetup,
        out: Path,
        cells: Sequence[Cell],
        listener: ProgressListener,
    ) -> Iterator[RayPool]:
        """Check the cluster, share the data, and run a coordinator here if a cell needs one."""
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # On this node, which has the output folder.
        board = _remote(Board).options(num_cpus=0, scheduling_strategy=this_node).remote(out)
        try:
            is_closed = ray.get(board.has_authentication.remote())
        except (
            ray.exceptions.RayError
        ):  # processes of a cluster without tokens do not answer to one with them
            is_closed = False
        if not is_closed:
            raise EngineUnusable(
                f"the Ray cluster at {address} runs code of anybody who reaches it, or none of this process; "
                "start all of its nodes with RAY_AUTH_MODE=token"
            )
        pool = cls(setup, board, out, listener)
        try:
            if setup.gpus:
                pool.require_memory(cells)
            if all(cell.alone for cell in cells):
                yield pool
                return
            folder = out / "coordinator"
            delete_database(folder)
            with (
                running_coordinator(folder, setup.host) as running,
                # Ray's actors may keep this process from cleaning up when it is killed.
                _ended_with_this_process(running.process),
            ):
                pool.setup = dataclasses.replace(setup, url=running.url, token=running.token)
                yield pool
            delete_database(folder)
        finally:
            pool.stop()

    def run(self, cells: Sequence[Cell], workers: int, follow: Follow) -> None:
        """Run all cells, and those that follow, in at most `workers` actors."""
        waiting = CellQueue(cells, follow)
        threads = [
            threading.Thread(target=self._run_queue, args=(waiting,), daemon=True) for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if waiting.error is not None:
            raise waiting.error

    def require_memory(self, cells: Sequence[Cell]) -> None:
        """Measure the memory of all cells in a worker with its share of a GPU.

        Raises:
            EngineUnusable: the share is too small.
        """
        # In a worker with its share of a GPU: this process may have none.
        actor, name = self._started(self.setup.trainer_options)
        plans = {cell.plan.model_dump_json(include={"adapter", "training"}): cell for cell in cells}
        card, needed = ray.get(actor.memory.remote([(cell, self._drawn(cell)) for cell in plans.values()]))
        self._end(actor, name)
        require_share(self.setup.gpus, card, needed)

    def require_room(self, workers: int) -> None:
        """Check that all runs can have all of their silo workers, or they would wait for each other's.

        Raises:
            EngineUnusable: the cluster is too small.
        """
        silo_workers = self.setup.silo_workers
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        room = sum(room_of(node["Resources"], self.setup.gpus) for node in nodes if node["Alive"])
        if workers * silo_workers > room:
            raise EngineUnusable(
                f"{workers} runs at a time with {silo_workers} silo workers each are "
                f"{workers * silo_workers}, and the Ray cluster has "
                f"room for {room}; lower --workers or --silo-workers"
            )

    def stop(self) -> None:
        """End all workers."""
        self._stopped = True
        for actor in list(self._actors):
            ray.kill(actor)
        ray.kill(self.board)

    def _run_queue(self, waiting: CellQueue) -> None:
        actor, name = None, ""
        while not self._stopped and (cell := waiting.next()) is not None:
            try:
                if actor is None:
                    actor, name = self._started(self.setup.worker_options)
                self.listener.started(cell)
                failure, is_alive = self._run_cell(actor, cell)
                # The actor was killed by `stop`: its end is no failure of the run.
                if self._stopped:
                    return
                if not is_alive:
                    self._end(actor, name)
                    actor = None
                self.listener.ended(cell, failure)
            except BaseException as error:  # rich exits the thread when a pipe is closed; others wait for it
                waiting.fail(error)
                return
            waiting.end(cell)
        if actor is not None:
            self._end(actor, name)

    def _run_cell(self, actor: Any, cell: Cell) -> tuple[str | None, bool]:
        """Run one cell; return the reason of a failure, or None, and whether the worker can run another."""
        try:
            for answer in actor.run.options(num_returns="streaming").remote(cell, self._drawn(cell)):
                message = ray.get(answer)
                if isinstance(message, Progress):
                    self.listener.moved(cell, message)
                    continue
                # Workers on other nodes cannot write into the output folder.
                write_durably(cell.log(self.out), message.log)
                if message.has_diverged:
                    store_divergence(cell, self.out)
                if message.result is not None:
                    write_durably(cell.result(self.out), message.result)
                return message.failure, True
        except ray.exceptions.RayError as error:
            return f"its worker ended ({str(error).strip().splitlines()[0]}); repeat the command", False
        return "its worker ended without a result; repeat the command", False

    def _drawn(self, cell: Cell) -> Any:
        """Return a reference to the examples of a cell's seed, which all its workers share."""
        with self._lock:
            if cell.seed not in self._draws:
                # Once in the object store, instead of a copy with every cell.
                self._draws[cell.seed] = ray.put(draw_examples(self.setup.study, cell.seed))
            return self._draws[cell.seed]

    def _started(self, options: dict[str, Any]) -> tuple[Any, str]:
        with self._lock:
            self._number += 1
            name = f"worker-{self._number}"
        actor = _remote(CellWorker).options(**options).remote(self.setup, self.board, name)
        self._actors.add(actor)
        return actor, name

    def _end(self, actor: Any, name: str) -> None:
        ray.kill(actor)
        self._actors.discard(actor)
        self.board.forget.remote(name)


def room_of(resources: dict[str, float], share: float) -> int:
    """Return the number of workers with a core and a share of a GPU each that fit on a node."""
    cores, cards = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
    if not share:
        return cores
    # A share below 1 must fit on one card: three shares of .4 need two cards.
    return min(cores, int(cards * int(1 / share)) if share <= 1 else int(cards / share))


@contextmanager
def _ended_with_this_process(process: int) -> Iterator[None]:
    """Terminate another process when this one is killed: a shell waits for the end of a pipe."""
    command = ["sh", "-c", f"read _; kill {process}"]
    # The pipe closes when this process ends, also by SIGKILL. A session of its own survives Ctrl-C.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.kill()
