"""The check of a hostile input: the exact refusal, a bounded cost, and no trace.

A case is a row of the table of hostile inputs: what is sent, and the status and problem type that answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import httpx

from tests.attacks.hostile.scene import Answer, Scene, changed, is_answered, read_answer
from tests.scene.coordinator_process import ServedProcess
from tests.scene.rounds import put

CPU_SECONDS = 0.25
MEMORY_BYTES = 64 * 2**20

_CPU_SECONDS_PER_MIB = 0.004  # of what travels: to receive, hash and write down a MiB takes some 2.5 ms
Sent = Answer | httpx.Response


@dataclass(frozen=True)
class Case:
    """One hostile input, or several of a kind that are sent one by one.

    `travels_mib` is what the coordinator really receives, and `writes` names the tables in which a refusal is
    itself written down.
    """

    row: int
    name: str
    send: Callable[[Scene], Sent | Iterator[Sent]]
    status: int
    problem: str
    closes: bool = False
    travels_mib: int = 0
    writes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.row} {self.name}"


@contextmanager
def at_a_bounded_cost(served: ServedProcess, *, travels_mib: int = 0) -> Iterator[None]:
    """Check the cost of one input for a coordinator."""
    in_use, computed = served.forget_peak(), served.cpu_seconds()
    yield
    computed = served.cpu_seconds() - computed
    grown = served.peak_bytes() - in_use
    assert computed <= CPU_SECONDS + _CPU_SECONDS_PER_MIB * travels_mib
    assert grown <= MEMORY_BYTES


def assert_refused(scene: Scene, case: Case) -> None:
    """Send hostile inputs; check each answer, its cost, and that nothing is stored afterwards."""
    before, answered = scene.stored(), 0
    for answer in iter(partial(_next, scene, case, _answers(scene, case)), None):
        answered += 1
        assert (answer.status, answer.problem) == (case.status, case.problem)
        assert not case.closes or answer.is_closed or answer.headers.get("connection") == "close"
    assert answered, "no input was sent"
    written = changed(before, scene.stored())
    assert written <= case.writes, f"written: {written}"
    assert is_answered(scene.silo)
    # What is good is still taken: a wrong base would not be told before everything else is right.
    assert (
        read_answer(put(scene.silo, 1, scene.manifest(base="sha256:" + "0" * 64))).problem == "base-mismatch"
    )


def _answers(scene: Scene, case: Case) -> Iterator[Answer]:
    """Yield answers; each input is sent when its answer is requested."""
    sent = case.send(scene)
    yield from map(read_answer, sent if isinstance(sent, Iterator) else [sent])


def _next(scene: Scene, case: Case, answers: Iterator[Answer]) -> Answer | None:
    with at_a_bounded_cost(scene.served, travels_mib=case.travels_mib):
        return next(answers, None)
