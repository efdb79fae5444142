"""Trackers that never stop or delay training: one warning, and later attempts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from schemas.trackers.tracker import Axis, TrackedRun
from schemas.trackers.trackers import NO_TRACKERS, Trackers
from tests.scene.waiting import wait_until

RUN = TrackedRun("federation", "aster", "client-1")


@dataclass
class Server:
    """A tracker's server, which may be down or slow."""

    is_down: bool = False
    may_answer: threading.Event = field(default_factory=threading.Event)
    values: list[tuple[Axis, int, Mapping[str, float]]] = field(default_factory=list)
    starts: int = 0
    tries: int = 0
    ends: int = 0

    def start(self, run: TrackedRun) -> None:
        self.starts += 1
        self._answer()

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        self.may_answer.wait(10)
        self._answer()
        self.values.append((axis, place, values))

    def finish(self) -> None:
        self.ends += 1

    def _answer(self) -> None:
        self.tries += 1
        if self.is_down:
            raise ConnectionError("server is down")


@pytest.fixture
def server() -> Server:
    return Server()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_values_reach_a_restarted_server_after_one_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.may_answer.set()
    server.is_down = True
    trackers = Trackers.of(RUN, {"mlflow": lambda: server}, retry_seconds=0)
    with trackers:
        trackers.begin()
        for step in range(5):
            trackers.log("step", step, {"loss": 1.0})
        wait_until(lambda: server.tries >= 6, event="five tries")
        server.is_down = False
        trackers.log("step", 5, {"loss": 0.5})
    assert server.values == [("step", 5, {"loss": 0.5})]
    (warning,) = warnings(caplog)
    assert warning.startswith("mlflow: values are lost (ConnectionError: server is down); training continues")
    assert server.ends == 1


def test_a_failing_server_is_not_tried_per_value(server: Server) -> None:
    server.may_answer.set()
    server.is_down = True
    with Trackers.of(RUN, {"mlflow": lambda: server}) as trackers:
        for step in range(100):
            trackers.log("step", step, {"loss": 1.0})
    assert server.tries == 1


def test_logging_returns_while_a_server_does_not_answer(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.trackers.trackers._CLOSING_SECONDS", 0.05)
    with Trackers.of(RUN, {"mlflow": lambda: server}) as trackers:
        for step in range(11_000):
            trackers.log("step", step, {"loss": 1.0})
    assert len(warnings(caplog)) == 1
    server.may_answer.set()


def test_names_have_the_prefixes_of_their_clients(server: Server) -> None:
    server.may_answer.set()
    with Trackers.of(RUN, {"mlflow": lambda: server}) as trackers:
        trackers.named("aster").log("round", 1, {"loss": 1.0})
        trackers.log("round", 1, {"mean/loss": 2.0, "broken": float("inf")})
        trackers.log("round", 1, {"broken": float("nan")})
    assert server.values == [("round", 1, {"aster/loss": 1.0}), ("round", 1, {"mean/loss": 2.0})]


def test_empty_trackers_start_no_threads() -> None:
    before = threading.active_count()
    NO_TRACKERS.begin()
    NO_TRACKERS.log("step", 1, {"loss": 1.0})
    NO_TRACKERS.close()
    assert threading.active_count() == before
