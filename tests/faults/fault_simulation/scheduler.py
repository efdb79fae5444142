"""Virtual time and tasks that take turns in one thread; their order depends only on the seed.

A task belongs to a process (a replica, an agent). A process that is killed runs nothing more: its tasks are
woken with `Killed`, and whatever they do while they unwind is refused.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Stands for kill -9: later actions of the task have no effect."""


class Violation(Exception):
    """A broken promise, by its name."""

    def __init__(self, promise: str, event: str) -> None:
        super().__init__(f"{promise}: {event}")
        self.promise = promise


class Process:
    """A set of tasks that is killed, delayed and restarted together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped_until = 0.0
        self.tasks: list[Task] = []


class Task:
    """One thread of work."""

    def __init__(self, process: Process, work: Callable[[], None], *, is_worker: bool) -> None:
        self.process = process
        self.is_worker = is_worker  # more happens to those who aggregate
        self.is_rare = False  # and to those who do what few requests do
        self.work = work
        self.turn = 0  # a wake-up for an earlier turn is stale
        self.over = False
        self.greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            if self.process.alive:
                self.work()
        except Killed:
            pass
        finally:
            self.over = True
            self.process.tasks.remove(self)


class Flag:
    """An event that tasks wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[tuple[Task, int]] = []

    def set(self) -> None:
        self._set = True
        for task, turn in self._waiting:
            self._scheduler.push(task, turn, self._scheduler.now)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so many seconds."""
        if not self._set:
            task = self._scheduler.current()
            self._waiting.append((task, task.turn + 1))
            self._scheduler.sleep(math.inf if timeout is None else timeout)
        return self._set


class Scheduler:
    """Runs tasks in an order that the seed determines."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.dice = random.Random(f"schedule {seed}")
        self.steps = 0
        self.trace: list[str] | None = None
        self._digest = hashlib.sha256()
        self._queue: list[tuple[float, int, int, Task]] = []
        self._number = 0
        self._tasks: dict[greenlet, Task] = {}
        self._hub = getcurrent()
        self._failure: BaseException | None = None

    def spawn(
        self, process: Process, work: Callable[[], None], *, delay: float = 0.0, is_worker: bool = False
    ) -> Task:
        """Start a task after a random delay."""
        task = Task(process, work, is_worker=is_worker)
        process.tasks.append(task)
        self._tasks[task.greenlet] = task
        self.push(task, 0, self.now + delay)
        return task

    def call_off(self, task: Task) -> None:
        """Cancel a task that has not begun."""
        if task.over or task.greenlet:
            return
        task.over = True
        task.process.tasks.remove(task)
        del self._tasks[task.greenlet]

    def push(self, task: Task, turn: int, when: float) -> None:
        """Wake a task at a moment, unless it was woken before."""
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, turn, task))

    def current(self) -> Task:
        """Return the running task."""
        return self._tasks[getcurrent()]

    def running_task(self) -> Task | None:
        """The running task; None for the schedule itself."""
        return self._tasks.get(getcurrent())

    def sleep(self, seconds: float) -> None:
        """Run the other tasks for so many seconds."""
        task = self.current()
        if not task.process.alive:
            raise Killed
        task.turn += 1
        self.push(task, task.turn, self.now + seconds)
        self._hub.switch()
        if not task.process.alive:
            raise Killed

    def kill(self, process: Process) -> None:
        """Kill a process; a caller of the same process continues to its next step."""
        process.alive = False
        for task in process.tasks:
            task.turn += 1
            self.push(task, task.turn, self.now)

    def fail(self, error: BaseException) -> None:
        """End the schedule with what went wrong first."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """End the schedule now if anything went wrong."""
        if self._failure is not None:
            raise self._failure

    def say(self, line: str) -> None:
        """Add a line to the trace."""
        entry = f"{self.now:.6f} {line}"
        self._digest.update(entry.encode() + b"\n")
        if self.trace is not None:
            self.trace.append(entry)

    @property
    def digest(self) -> str:
        """Return the digest of the trace, which is equal for two runs of a seed."""
        return self._digest.hexdigest()

    def run(self, is_over: Callable[[], bool], until: float) -> None:
        """Take turns until `is_over`, nothing is left to do, or the time has come.

        Raises:
            Violation, Exception: what a task failed with.
        """
        while self._queue and not is_over():
            when, _, turn, task = heapq.heappop(self._queue)
            if task.over or turn != task.turn:
                continue
            if when > until:
                break
            stopped = task.process.stopped_until
            if task.process.alive and stopped > when:
                self.push(task, turn, stopped)
                continue
            self.now = max(self.now, when)
            self._step(task)
            self.raise_failure()

    def end(self) -> None:
        """Unwind all remaining tasks."""
        for task in list(self._tasks.values()):
            task.process.alive = False
        for task in list(self._tasks.values()):
            while not task.over and task.greenlet:
                self._step(task)
            task.over = True
        self._tasks.clear()
        self._queue.clear()

    def _step(self, task: Task) -> None:
        self.steps += 1
        try:
            task.greenlet.switch()
        except Exception as error:
            self.fail(error)
        if task.over:
            self._tasks.pop(task.greenlet, None)
