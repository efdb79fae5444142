"""The guard on durations of the fast tests of a run."""

from __future__ import annotations

import pytest

from tests.house.durations import BUDGET, LIMIT, Durations, over_budget, run_alone, too_long

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
    durations = durations_of(short=0.1, longest=LIMIT)
    assert not too_long(durations)
    assert over_budget(durations, elapsed=BUDGET) is None


def test_durations_over_the_limit_are_named() -> None:
    assert too_long(durations_of(short=0.1, long=LIMIT + 0.2)) == {"long": LIMIT + 0.2}


def test_fixtures_do_not_count_for_the_limit() -> None:
    durations = Durations()
    durations.add("test", "setup", LIMIT + 1)
    durations.add("test", "call", 0.1)
    assert not too_long(durations)


def test_a_run_over_budget_names_the_longest_tests() -> None:
    line = over_budget(
        durations_of(**{f"test_{number}": number / 10 for number in range(9)}), elapsed=BUDGET + 1
    )
    assert line is not None
    assert [f"test_{number} " in line for number in range(9)] == [False] * 4 + [True] * 5


@pytest.mark.slow
@pytest.mark.parametrize(("alone", "passes"), [(LIMIT + 1, False), (0.0, True)])
def test_a_test_too_long_alone_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, alone: float, passes: bool
) -> None:
    monkeypatch.setattr("tests.house.durations.LIMIT", 0.01)
    pytester.makeconftest(
        "from tests.house.durations import Guard\ndef pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'slow: x')\n"
        f"    config.pluginmanager.register(Guard(lambda tests: dict.fromkeys(tests, {alone})))\n"
    )
    pytester.makepyfile(SLEEPERS.format(seconds=0.02))
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert (run.ret == pytest.ExitCode.OK) is passes
    run.stdout.fnmatch_lines([f"*test_sleeping took 0.0 s, and {alone:.1f} s by itself*"])
    run.stdout.no_fnmatch_line("*test_slow took*")


@pytest.mark.slow
def test_tests_run_alone_report_their_seconds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SLEEPERS.format(seconds=0.5))
    (file,) = pytester.path.glob("test_*.py")
    ((test, seconds),) = run_alone([f"{file.name}::test_sleeping"]).items()
    assert test == f"{file.name}::test_sleeping"
    assert 0.5 <= seconds < LIMIT
