"""The guard on durations: no fast test takes longer than the limit, and all together stay in the budget."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

LIMIT = 3.0
"""Seconds that a fast test may take, without its fixtures; what takes longer is marked `slow`."""
BUDGET = 480.0
"""Seconds that all fast tests together may take on two cores."""
DEAREST = 5
NOT_FAST = frozenset({"slow", "long", "gpu", "system"})


@dataclass
class Durations:
    """Seconds of the fast tests of a run: of the test alone, and with its fixtures."""

    calls: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, test: str, phase: str, seconds: float) -> None:
        self.totals[test] = self.totals.get(test, 0.0) + seconds
        if phase == "call":
            self.calls[test] = seconds


def complaints(durations: Durations, elapsed: float) -> list[str]:
    """Return what is wrong with the durations of a run of fast tests that took `elapsed` seconds."""
    dearest = ", ".join(f"{test} ({seconds:.1f} s)" for test, seconds in _dearest(durations.totals)[:DEAREST])
    lines = [
        f"{test} took {seconds:.1f} s, and a fast test may take {LIMIT:.0f} s: shorten it, or mark it slow"
        for test, seconds in _dearest(durations.calls)
        if seconds > LIMIT
    ]
    if elapsed > BUDGET:
        lines.append(f"the fast tests took {elapsed:.0f} s of {BUDGET:.0f} s; the dearest: {dearest}")
    return lines


def is_machine_loaded() -> bool:
    """Whether other work keeps the cores busy, so that durations mean nothing.

    To be called before the tests begin, since they are a load themselves.
    """
    return os.getloadavg()[0] > len(os.sched_getaffinity(0))


class Guard:
    """Fails a run whose fast tests took too long; on a loaded machine it warns."""

    def __init__(self) -> None:
        self._durations = Durations()
        self._began = time.monotonic()
        self._is_loaded = is_machine_loaded()
        self._complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not NOT_FAST & report.keywords.keys():
            self._durations.add(report.nodeid, report.when or "", report.duration)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        elapsed = time.monotonic() - self._began if self._durations.totals else 0.0
        self._complaints = complaints(self._durations, elapsed)
        if self._complaints and not self._is_loaded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._complaints:
            verdict = "a warning, since the machine was loaded before" if self._is_loaded else "the run fails"
            terminalreporter.section(f"durations: {verdict}")
        for line in self._complaints:
            terminalreporter.write_line(line)


def _dearest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])
