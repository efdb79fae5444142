"""The guard on durations: a limit for a fast test, and a budget for all together.

Tests that run beside each other slow each other down, and other work slows all of them. So what took too long
is run again by itself, and fails the run only where it takes too long once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

LIMIT = 3.0
"""Seconds that a fast test may take, without its fixtures; what takes longer is marked `slow`."""
BUDGET = 480.0
"""Seconds that all fast tests together may take on two cores."""
DEAREST = 5
FAR_ALONE = 1.25
"""How far over the limit a test fails the run when it is alone; below, it warns: machines differ."""
FAR_OVER = 1.5
"""How far over the budget a run fails; below, it warns."""
MOST_AGAIN = 20
"""Tests that are run again, at most."""
AGAIN = "TESSERA_TESTS_AGAIN"
"""An environment variable of the run of these tests, which judges nothing."""
_TWICE = "import sys, pytest; [pytest.main(sys.argv[1:]) for _ in range(2)]"
NOT_FAST = frozenset({"slow", "long", "gpu", "system"})


@dataclass
class Durations:
    """Seconds of the fast tests of a run, without and with their fixtures."""

    calls: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, test: str, phase: str, seconds: float) -> None:
        self.totals[test] = self.totals.get(test, 0.0) + seconds
        if phase == "call":
            self.calls[test] = seconds


def too_long(durations: Durations) -> dict[str, float]:
    """Return the tests over the limit with their seconds, the longest first."""
    return {test: seconds for test, seconds in _dearest(durations.calls) if seconds > LIMIT}


def over_budget(durations: Durations, elapsed: float) -> str | None:
    """Return the excess of a run of `elapsed` seconds as text; None within the budget."""
    if elapsed <= BUDGET:
        return None
    dearest = ", ".join(f"{test} ({seconds:.1f} s)" for test, seconds in _dearest(durations.totals)[:DEAREST])
    return f"the fast tests took {elapsed:.0f} s of {BUDGET:.0f} s; the dearest: {dearest}"


def is_machine_loaded() -> bool:
    """Whether other work keeps the cores busy, so that durations are not comparable.

    To be called before the tests begin, since they are a load themselves.
    """
    return os.getloadavg()[0] > len(os.sched_getaffinity(0))


def run_alone(tests: Sequence[str]) -> dict[str, float]:
    """Run tests twice more, one after the other in a process of their own; return each call's later seconds.

    What the first run imports is no duration of a test: whichever comes first pays for all.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [
                sys.executable,
                "-c",
                _TWICE,
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                "-o",
                "junit_duration_report=call",
                f"--junitxml={report}",
                *tests,
            ],
            env=os.environ | {AGAIN: "1"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not report.exists():
            return {}
        cases = ElementTree.parse(report).iter("testcase")
        seconds = {
            f"{case.get('classname')}.{case.get('name')}": float(case.get("time", 0)) for case in cases
        }
    return {test: seconds[name] for test in tests if (name := _junit_name(test)) in seconds}


class Guard:
    """Fails a run whose fast tests took too long."""

    def __init__(self, again: Callable[[Sequence[str]], Mapping[str, float]] = run_alone) -> None:
        self._again = again
        self._durations = Durations()
        self._began = time.monotonic()
        self._is_loaded = is_machine_loaded()
        self._failures: list[str] = []
        self._warnings: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not NOT_FAST & report.keywords.keys():
            self._durations.add(report.nodeid, report.when or "", report.duration)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.OK or not self._durations.totals or AGAIN in os.environ:
            return
        elapsed = time.monotonic() - self._began
        self._judge_budget(elapsed)
        self._judge_tests()
        if self._failures:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge_budget(self, elapsed: float) -> None:
        complaint = over_budget(self._durations, elapsed)
        if complaint is not None:
            is_far_over = elapsed > FAR_OVER * BUDGET and not self._is_loaded
            (self._failures if is_far_over else self._warnings).append(complaint)

    def _judge_tests(self) -> None:
        first = too_long(self._durations)
        if len(first) > MOST_AGAIN:
            self._warnings.append(f"{len(first)} tests took over {LIMIT:.0f} s; the longest are run again")
        retried = list(first)[:MOST_AGAIN]
        alone = self._again(retried) if retried else {}
        for test in retried:
            line = f"{test} took {first[test]:.1f} s, and {alone.get(test, 0):.1f} s by itself"
            if alone.get(test, 0) > FAR_ALONE * LIMIT:
                self._failures.append(
                    f"{line}; a fast test may take {LIMIT:.0f} s: shorten it, or mark it slow"
                )
            else:
                self._warnings.append(line)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for verdict, lines in (("the run fails", self._failures), ("warnings", self._warnings)):
            if lines:
                terminalreporter.section(f"durations: {verdict}")
            for line in lines:
                terminalreporter.write_line(line)


def _junit_name(test: str) -> str:
    file, _, path = test.partition("::")
    return f"{file.removesuffix('.py').replace('/', '.')}.{path.replace('::', '.')}"


def _dearest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])
