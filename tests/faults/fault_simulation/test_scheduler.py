"""The scheduler of the fault simulation: cancelled calls, and slots with deadlines."""

from __future__ import annotations

from tests.faults.fault_simulation.scheduler import Process, Scheduler
from tests.faults.fault_simulation.waits import Slots


def test_a_cancelled_call_never_runs() -> None:
    scheduler, process, events = Scheduler(0), Process("somebody"), list[str]()
    off = scheduler.spawn(process, lambda: events.append("called off"), delay=2.0)
    scheduler.spawn(process, lambda: events.append("done"), delay=3.0)
    scheduler.spawn(process, lambda: scheduler.call_off(off), delay=1.0)
    scheduler.run(lambda: False, until=10.0)
    assert events == ["done"]


def test_waiting_for_a_slot_ends_at_its_deadline() -> None:
    scheduler, replica, another, events = Scheduler(0), Process("replica"), Process("another"), list[str]()
    slots = Slots(scheduler, 1)

    def work(name: str, seconds: float) -> None:
        if slots.acquire(5.0):
            events.append(f"{name} at {scheduler.now:.0f}")
            scheduler.sleep(seconds)
            slots.release()
        else:
            events.append(f"{name} never, at {scheduler.now:.0f}")

    scheduler.spawn(replica, lambda: work("first", 8.0))
    scheduler.spawn(another, lambda: work("elsewhere", 1.0))
    scheduler.spawn(replica, lambda: work("impatient", 1.0), delay=1.0)
    scheduler.spawn(replica, lambda: work("patient", 1.0), delay=4.0)
    scheduler.run(lambda: False, until=20.0)
    assert events == ["first at 0", "elsewhere at 0", "impatient never, at 6", "patient at 8"]
