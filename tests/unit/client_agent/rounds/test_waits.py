"""Messages of an agent that waits for other silos."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_agent import AgentSettings, StopFlag, open_participant, run
from client_agent.errors import CoordinatorUnreachable, Stopped
from client_agent.rounds import waits
from client_agent.rounds.waits import WaitLog, awaited
from schemas.messages.enrolment import Traffic
from schemas.messages.rounds import RoundCounts, RoundSummary
from tests.scene.agents import start_alone
from tests.scene.coordinator import Served
from tests.scene.plans import federation_plan
from tests.scene.silo_config import config
from tests.scene.waiting import wait_until

PLAN = federation_plan(rounds={"total": 2, "min_clients": 2})


def _newest(
    number: int, state: Any, joined: int = 2, arrived: int = 0, advice: str | None = None
) -> RoundSummary:
    return RoundSummary(
        round=number,
        state=state,
        reason=None,
        deadline=None,
        opened_at=datetime(2026, 1, 1, tzinfo=UTC),
        published_at=None,
        counts=RoundCounts(joined=joined, arrived=arrived, late=0, dropped=0, rejected=0),
        seconds={},
        bytes=Traffic(up=0, down=0),
        scores=None,
        advice=advice,
    )


@pytest.mark.parametrize(
    ("newest", "text"),
    [
        (None, "waiting for round 1: the operator has not started the federation"),
        (_newest(1, "open", joined=1), "waiting for round 1: 1 of 2 has joined"),
        (
            _newest(1, "open", joined=0, advice="1 of 2 required clients is a member; enrol another"),
            "waiting for round 1: 0 of 2 have joined; 1 of 2 required clients is a member; enrol another",
        ),
        (_newest(1, "collecting", arrived=1), "waiting for round 2: 1 of 2 has delivered"),
        (_newest(1, "collecting", joined=3, arrived=2), "waiting for round 2: 2 of 3 have delivered"),
        (_newest(2, "collecting", arrived=1), "waiting for the final weights: 1 of 2 has delivered"),
        (_newest(1, "aggregating", arrived=2), "waiting for round 2: round 1 is aggregating"),
        (_newest(1, "published", arrived=2), "waiting for round 2"),
    ],
)
def test_wait_line_names_the_missing_step(newest: RoundSummary | None, text: str) -> None:
    assert awaited(newest, PLAN) == text


def _log(watched: bool, rounds: list[RoundSummary | Exception]) -> WaitLog:
    def newest_round(federation_id: str) -> RoundSummary:
        newest = rounds.pop(0)
        if isinstance(newest, Exception):
            raise newest
        return newest

    session: Any = SimpleNamespace(
        api=SimpleNamespace(newest_round=newest_round),
        federation_id="fed_1",
        manifests=SimpleNamespace(plan=PLAN),
    )
    return WaitLog(session, watched=watched)


@pytest.mark.parametrize(("watched", "lines"), [(True, 3), (False, 2)])
def test_wait_lines_repeat_on_a_terminal_only(
    watched: bool, lines: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level(logging.INFO)
    same, changed = _newest(1, "collecting"), _newest(1, "collecting", arrived=1)
    log = _log(watched, [same, CoordinatorUnreachable("http://c", "no route", 5.0), same, changed])
    for _ in range(4):
        log.tell()
        now[0] += 1
        log.tell()
        now[0] += log.seconds
    assert [record.message for record in caplog.records] == [
        *["waiting for round 2: 0 of 2 have delivered"] * (lines - 1),
        "waiting for round 2: 1 of 2 has delivered",
    ]


@pytest.mark.slow
def test_waiting_agent_logs_the_missing_silo(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_FIRST_SECONDS", 1)
    caplog.set_level(logging.INFO)
    _, token = start_alone(served, rounds={"total": 1, "min_clients": 2})
    settings, stop = AgentSettings.from_toml(config(tmp_path, url=served.url)), StopFlag()
    ended: list[type[BaseException]] = []
    with open_participant(settings, (token, "aster"), stop=stop) as participant:

        def take_part() -> None:
            try:
                run(participant, log_waits=True)
            except Stopped as stopped:
                ended.append(type(stopped))

        agent = threading.Thread(target=take_part)
        agent.start()
        try:
            wait_until(lambda: "waiting for round 1: 1 of 2 has joined" in caplog.text)
        finally:
            stop.set()
            agent.join()
    assert ended == [Stopped]
