"""A coordinator that is killed in a phase continues it after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from coordinator.observability.fault_points import Place
from tests.scene.coordinator_process import ServedProcess, start_process
from tests.scene.sum_members import CONFIRM, KEYS, MASKED, SHARES, UNMASK, SummedRound, summing

STEPS = (KEYS, SHARES, MASKED, CONFIRM, UNMASK)
MEMBERS = 3
Start = Callable[..., ServedProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a coordinator in a process of its own; it is stopped after the test unless it was killed."""
    with ExitStack() as stack:

        def begin(database_url: str, **settings: object) -> ServedProcess:
            served = start_process(database_url, tmp_path, **settings)
            stack.callback(_stop, served)
            return served

        yield begin


def _stop(served: ServedProcess) -> None:
    """Stop a process that may be dead already."""
    for opened in served._opened:
        opened.close()
    with served._server as program:  # type: ignore[attr-defined]
        program.terminate()


def _kill(served: ServedProcess) -> None:
    program = served._server
    program.kill()  # type: ignore[attr-defined]
    program.wait(timeout=20)  # type: ignore[attr-defined]


def _move(scene: SummedRound, served: ServedProcess) -> None:
    """Connect all clients to another process."""
    scene.served = served
    for client in scene.clients:
        client.silo.http = served.signing(client.silo.key)


@pytest.mark.slow
def test_a_sum_survives_kills_in_its_phases(start: Start, fresh_database: Callable[[str], str]) -> None:
    url = fresh_database("sqlite")
    scene = summing(start(url), MEMBERS)
    scene.begin()
    for step in STEPS:
        first, *others = scene.clients
        receipt = first.put(step)
        assert receipt.status_code == 201, receipt.text
        _kill(scene.served)  # type: ignore[arg-type]
        _move(scene, start(url))
        again = first.put(step)
        assert (again.status_code, again.json()) == (200, receipt.json())
        for client in others:
            assert client.put(step).status_code == 201
    assert np.array_equal(scene.total(), scene.expected())


@pytest.mark.slow
@pytest.mark.parametrize("step", [MASKED, UNMASK])
@pytest.mark.parametrize("place", ["sum-message-written", "sum-message-committed"])
def test_a_sum_survives_an_interrupted_last_message(
    start: Start, fresh_database: Callable[[str], str], place: Place, step: int
) -> None:
    url = fresh_database("sqlite")
    scene = summing(start(url, crash=f"{place}:{(step + 1) * MEMBERS}"), MEMBERS)
    scene.begin()
    for earlier in range(step):
        scene.step(earlier)
    *others, last = scene.clients
    for client in others:
        assert client.put(step).status_code == 201
    last.message(step)
    with suppress(httpx.TransportError):
        pytest.fail(f"the process answered {last.put(step).text}")
    _move(scene, start(url))
    repeated = last.put(step)
    if step == UNMASK and place == "sum-message-committed":
        assert repeated.status_code in (200, 409)  # the messages go with the total
    else:
        assert repeated.status_code == (201 if place == "sum-message-written" else 200), repeated.text
    for later in range(step + 1, UNMASK + 1):
        scene.step(later)
    assert np.array_equal(scene.total(), scene.expected())
