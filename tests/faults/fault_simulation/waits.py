"""Waiting in virtual time: timers of deadlines, long polls, and slots.

The coordinator's `Waiting` is the product's; only what it asks of asyncio and anyio is ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from client_agent.transport import client, timeouts
from coordinator.db import group_commit
from coordinator.http.limits import concurrency
from coordinator.joining import cold_start
from coordinator.rounds import long_poll
from tests.faults.fault_simulation.scheduler import Flag, Process, Scheduler, Task, Violation

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

LOOK_SECONDS = 4.0
"""How often a replica looks for its waiting clients what others have moved."""


class _Timer:
    """Stands for `threading.Timer`: calls after a while, unless it is cancelled before."""

    daemon = True

    def __init__(self, scheduler: Scheduler, seconds: float, work: Callable[[], None]) -> None:
        self._scheduler, self._seconds, self._work = scheduler, seconds, work
        self._task: Task | None = None

    def start(self) -> None:
        process = self._scheduler.current().process
        self._task = self._scheduler.spawn(process, self._work, delay=self._seconds)

    def cancel(self) -> None:
        if self._task is not None:
            self._scheduler.call_off(self._task)


class _Event:
    """Stands for `asyncio.Event`, waited for no longer than the `move_on_after` around it says."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._flag = Flag(loop.scheduler)
        self.set, self.clear = self._flag.set, self._flag.clear

    async def wait(self) -> None:
        """Wait in this task; to be cut short by the time is to return, as nothing follows in the block."""
        self._flag.wait(self._loop.left())


class _Threads:
    """Stands for `threading` where calls have deadlines."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.Event = threading.Event

    def Timer(self, seconds: float, work: Callable[[], None]) -> _Timer:
        return _Timer(self._scheduler, seconds, work)


class _Lines:
    """Stands for `threading` in the group commit."""

    Lock = staticmethod(threading.Lock)  # nobody takes turns while he holds it

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Event(self) -> Flag:
        return Flag(self._scheduler)


class _Loop:
    """The parts of asyncio and anyio that long polls use."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._until: dict[Task, float] = {}

    def Event(self) -> _Event:
        return _Event(self)

    def get_running_loop(self) -> _Loop:
        return self

    def call_soon_threadsafe(self, work: Callable[[], None]) -> None:
        work()

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[None]:
        task = self.scheduler.current()
        self._until[task] = self.scheduler.now + seconds
        try:
            yield
        finally:
            del self._until[task]

    def left(self) -> float:
        """The seconds that the running task may wait."""
        return max(0.0, self._until[self.scheduler.current()] - self.scheduler.now)


class Slots:
    """Stands for a semaphore of a process; a waiting task lets other tasks run."""

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self._scheduler, self._number = scheduler, number
        self._taken: dict[Process, int] = {}
        self._freed: dict[Process, Flag] = {}

    def acquire(self, timeout: float) -> bool:
        """Take a slot of the running process; False when none was free for so many seconds."""
        scheduler, process = self._scheduler, self._scheduler.current().process
        freed = self._freed.setdefault(process, Flag(scheduler))
        until = scheduler.now + timeout
        while self._taken.get(process, 0) >= self._number:
            if scheduler.now >= until:
                return False
            freed.clear()
            freed.wait(until - scheduler.now)
        self._taken[process] = self._taken.get(process, 0) + 1
        return True

    def release(self) -> None:
        process = self._scheduler.current().process
        self._taken[process] -= 1
        self._freed[process].set()


def look_for_waiting(world: World, process: Process, long_polls: long_poll.LongPolls) -> None:
    """Wake a replica's long polls while the replica runs."""

    def run() -> None:
        looking = long_polls.run()
        try:
            looking.send(None)
        except StopIteration:
            pass
        finally:
            looking.close()

    world.scheduler.spawn(process, run)


@contextmanager
def virtual_waits(scheduler: Scheduler) -> Iterator[None]:
    """Replace waiting by waiting in virtual time."""
    loop, waiter = _Loop(scheduler), long_poll._Waiter

    thread_id, wait = threading.get_ident(), threading.Condition.wait

    def wait_for_real(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.get_ident() != thread_id:  # another test's thread, which the schedule does not know
            return wait(condition, timeout)
        violation = Violation("the simulation is whole", "somebody waited for a lock in real time")
        scheduler.fail(violation)  # the product might catch it
        raise violation

    def build(federation_id: str, progress: Any) -> Any:
        return waiter(federation_id, progress, over=loop.Event())  # type: ignore[arg-type]

    seams: list[tuple[object, str, object]] = [
        (timeouts, "threading", _Threads(scheduler)),
        (client, "interruptible", lambda send, _: send()),
        (long_poll, "asyncio", loop),
        (long_poll, "anyio", loop),
        (long_poll, "_Waiter", build),
        (long_poll, "_POLL_SECONDS", LOOK_SECONDS),
        (concurrency, "_DECODERS", Slots(scheduler, concurrency._DECODERS._value)),
        (cold_start, "_WEIGHERS", Slots(scheduler, cold_start._WEIGHERS._value)),
        (group_commit, "threading", _Lines(scheduler)),
        (threading.Condition, "wait", wait_for_real),
    ]
    with ExitStack() as stack:
        for owner, name, value in seams:
            stack.enter_context(patch.object(owner, name, value))
        yield
