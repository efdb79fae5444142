"""The benchmark of polls: refusals, phases without polls, and a process that dies are no figures."""

from __future__ import annotations

import math
import multiprocessing

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.load_agents import Agent, Poll
from benchmarks.polls import PHASES, _polling, faults, latencies


def test_refused_polls_make_no_figure() -> None:
    polls = [Poll(1.0, 0.2, False, False), Poll(2.0, 0.001, False, True), Poll(3.0, 0.1, True, True)]
    measured = latencies(polls, [(0.0, 10.0)])
    assert (measured["polls"], measured["refused"]) == (2, 1)
    run = {phase: measured | {"refused": 0} for phase in PHASES}
    assert faults([run]) == []
    assert faults([run | {"aggregating": measured}]) == ["1 of 2 polls refused while aggregating"]


def test_phases_without_polls_make_no_figure() -> None:
    empty = latencies([], [(0.0, 10.0)])
    assert math.isnan(empty["p99_seconds"])
    assert faults([dict.fromkeys(PHASES, empty)]) == [f"no polls while {phase}" for phase in PHASES]


def killed_while_polling() -> None:
    agents = [Agent("client", "federation", Ed25519PrivateKey.generate(), {})]
    with _polling("http://127.0.0.1:9", agents, 5.0):
        (process,) = multiprocessing.active_children()
        process.kill()


def test_death_of_the_polling_process_is_reported() -> None:
    with pytest.raises(SystemExit, match="the process that polls died with status -9"):
        killed_while_polling()
