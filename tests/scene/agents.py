"""Agents in this process: enrolment, rounds of one step after the other, and plans of a silo alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.daemon import run
from client_agent.errors import Stopped
from client_agent.identity.membership import enrol, read_key
from client_agent.preflight import Finding, findings
from client_agent.rounds.participant import Participant
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.rounds import FinishedBrief, RoundBrief
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.waiting import wait_until


def enrolled(
    served: Served,
    federation_id: str,
    silo: Silo,
    folder: Path,
    stack: ExitStack,
    *,
    name: str = "aster",
    keep_rounds: int = 2,
    transport: httpx.BaseTransport | None = None,
) -> Participant:
    """Enrol a silo, and connect it until the stack ends."""

    def connect(key: Ed25519PrivateKey | None, **options: Any) -> CoordinatorApi:
        api = CoordinatorApi(served.url, key=key, deadline_seconds=20, sleep=lambda _: None, **options)
        return stack.enter_context(api)

    token = served.enrolment_token(federation_id, name)
    member = enrol(connect(None), folder, token=token, name=name, profile=silo.profile)
    api = connect(read_key(folder), server_key=member.server_key, transport=transport)
    return Participant.of(silo, api, member, folder, keep_rounds=keep_rounds)


def next_brief(participant: Participant) -> RoundBrief:
    """Wait for a round in which a silo may take part."""

    def find() -> RoundBrief | None:
        brief = participant.session.api.current_round(participant.session.federation_id)
        assert not isinstance(brief, FinishedBrief)
        return brief if isinstance(brief, RoundBrief) else None

    return wait_until(find)


def checked(file: Path, plan: Path | None = None) -> dict[str, Finding]:
    """Check a configuration file; return the findings by subject."""
    return {finding.subject: finding for finding in findings(file, plan)}


Enrolled = Callable[..., Participant]

"""Enrols a silo in a federation, as the fixture `participant` does."""

QUICK = {"steps": 2, "max_length": 64, "learning_rate": 0.01}
"""Training of two steps."""


def limited_sleep(limit: int) -> Callable[[float], None]:
    """Return a function that sleeps 20 ms in place of any time, and stops the agent after `limit` calls."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > limit:
            raise Stopped
        time.sleep(0.02)

    return sleep


def alone_plan(**changes: Any) -> dict[str, Any]:
    """Return the plan of a federation of one silo: two rounds of two steps."""
    return {
        "strategy": {"name": "fedmosaic"},
        "rounds": {"total": 2, "min_clients": 1},
        "training": QUICK,
    } | changes


def start_alone(served: Served, **changes: Any) -> tuple[str, str]:
    """Start a federation of one silo; return its id and an enrolment token for `aster`."""
    federation_id = served.federation(**alone_plan(**changes))
    token = served.enrolment_token(federation_id, "aster")
    served.start_federation(federation_id)
    return federation_id, token


DP = {"epsilon": 2.0, "releases": 2, "minimum_sample": 12}


def run_until_killed(
    participant: Participant, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(module, name, die)
        with pytest.raises(Killed):
            run(participant, limited_sleep(500))
