"""The guard on durations judges the fast tests of a run."""

from __future__ import annotations

import pytest

from tests.durations import BUDGET, LIMIT, Durations, complaints

pytest_plugins = ["pytester"]

SLEEPERS = """
import time, pytest

def test_sleeping():
    time.sleep({seconds})

@pytest.mark.slow
def test_slow():
    time.sleep({seconds})
"""


def durations_of(**seconds: float) -> Durations:
    durations = Durations()
    for test, duration in seconds.items():
        durations.add(test, "setup", 0.5)
        durations.add(test, "call", duration)
    return durations


def test_durations_within_limit_and_budget_pass() -> None:
    assert not complaints(durations_of(short=0.1, longest=LIMIT), elapsed=BUDGET)


def test_test_over_the_limit_is_named() -> None:
    (line,) = complaints(durations_of(short=0.1, long=LIMIT + 0.2), elapsed=10)
    assert line.startswith("long took 3.2 s")


def test_fixtures_do_not_count_for_the_limit() -> None:
    durations = Durations()
    durations.add("test", "setup", LIMIT + 1)
    durations.add("test", "call", 0.1)
    assert not complaints(durations, elapsed=10)


def test_run_over_the_budget_names_the_five_dearest() -> None:
    durations = durations_of(**{f"test_{number}": number / 10 for number in range(9)})
    (line,) = complaints(durations, elapsed=BUDGET + 1)
    assert [f"test_{number} " in line for number in range(9)] == [False] * 4 + [True] * 5


@pytest.mark.parametrize(("load", "passes"), [(0.0, False), (1000.0, True)])
def test_guard_fails_a_run_unless_the_machine_is_loaded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, load: float, passes: bool
) -> None:
    monkeypatch.setattr("tests.durations.LIMIT", 0.01)
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    pytester.makeconftest(
        "from tests.durations import Guard\ndef pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'slow: x')\n"
        "    config.pluginmanager.register(Guard())\n"
    )
    pytester.makepyfile(SLEEPERS.format(seconds=0.02))
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert (run.ret == pytest.ExitCode.OK) is passes
    run.stdout.fnmatch_lines(["*test_sleeping took 0.0 s*"])
    run.stdout.no_fnmatch_line("*test_slow took*")
