"""Agents and coordinators of different versions: the agent ends and names the older one."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from client_agent.daemon import run
from client_agent.errors import VersionMismatch
from client_agent.transport import handshake
from client_agent.transport.handshake import require_sums
from schemas.messages.federations import FederationPlan
from schemas.messages.tokens import Hello
from tests.scene.agents import Enrolled, alone_plan, limited_sleep

HELLO = {
    "name": "tessera",
    "protocol_version": 2,
    "server_time": "2026-01-01T00:00:00Z",
    "signing_key": "",
    "nonce": "",
    "challenge": None,
    "signature": "",
}


class ChangedAnswers(httpx.HTTPTransport):
    """Changes the members of every answer of a path."""

    def __init__(self, path: str, **members: Any) -> None:
        super().__init__()
        self._path, self._members = path, members

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if not request.url.path.endswith(self._path) or answer.status_code != httpx.codes.OK:
            return answer
        return httpx.Response(200, json=json.loads(answer.read()) | self._members, request=request)


@pytest.mark.parametrize("capabilities", [[], ["secure-sum-1"], ["secure-sum-2"]])
def test_sums_of_another_format_are_refused(capabilities: list[str]) -> None:
    hello = Hello.model_validate(HELLO | {"capabilities": capabilities})
    unsummed = {"name": "x", "strategy": {"name": "fedavg"}, "adapter": {"kind": "lora"}}
    summed = unsummed | {"privacy": {"secure_sum": {"minimum": 3}}}
    require_sums(hello, FederationPlan.model_validate(unsummed))
    with pytest.raises(VersionMismatch, match="not of this agent's format secure-sum-3; upgrade the older"):
        require_sums(hello, FederationPlan.model_validate(summed))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "speaks protocol 2, this agent 1; upgrade the older"),
        (3, "speaks protocol 2, this agent 3; upgrade the older"),
    ],
)
def test_agent_of_another_version_ends(
    started: Enrolled, monkeypatch: pytest.MonkeyPatch, version: int, message: str
) -> None:
    participant = started(**alone_plan())
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", version)
    with pytest.raises(VersionMismatch, match=message):
        run(participant, limited_sleep(5))


def test_agent_that_cannot_read_a_brief_ends(started: Enrolled) -> None:
    line = ChangedAnswers("/current", training={"learning_rate": "warm"})
    participant = started(line, **alone_plan())
    with pytest.raises(VersionMismatch, match=r"training\.learning_rate.*; upgrade"):
        run(participant, limited_sleep(5))
