"""Requests of the secure sum to the coordinator, on the agent's connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx

from client_agent.policy import Policy
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound, read
from schemas.messages.secure_sum import ReadyReceipt, ReadyRequest, SumStatus
from schemas.wire.digests import digest_of, to_field

_MASKED: Final = 2
_OCTETS: Final = "application/octet-stream"


class SumCalls(Protocol):
    """The coordinator of a round's sum as a member calls it."""

    def status(self, phase: int | None, wait_seconds: int) -> SumStatus | NoOpenRound:
        """Return the status once its phase is beyond `phase`; at once for None."""

    def put(self, session: int, step: int, body: bytes) -> None:
        """Send the body of a step. Idempotent for the same bytes."""

    def answer(self, session: int, step: int) -> bytes | NoOpenRound:
        """Return the set and the messages of a step that has closed."""


@dataclass(frozen=True, slots=True)
class HttpSumCalls:
    """The calls of one round over HTTP."""

    api: CoordinatorApi
    federation_id: str
    round_number: int
    policy: Policy = field(default_factory=Policy)

    def ready(self, request: ReadyRequest) -> ReadyReceipt:
        """Report that this client has trained, and which format of sessions it speaks. Idempotent."""
        answer = self.api.call("PUT", f"{self._round}/ready", json=request.model_dump())
        return read(ReadyReceipt, answer)

    def status(self, phase: int | None, wait_seconds: int) -> SumStatus | NoOpenRound:
        query = "" if phase is None else f"?seen={phase}"
        answer = self.api.poll(f"{self._round}/secure-sum{query}", wait_seconds)
        return read(SumStatus, answer) if isinstance(answer, httpx.Response) else answer

    def put(self, session: int, step: int, body: bytes) -> None:
        if step == _MASKED:
            # The masked vector is as large as an update, and has the same limit.
            self.policy.require_body(body)
        media_type = _OCTETS if step == _MASKED else "application/json"
        headers = {"Content-Type": media_type, "Content-Digest": to_field(digest_of(body))}
        self.api.call("PUT", self._step(session, step), content=body, headers=headers)

    def answer(self, session: int, step: int) -> bytes | NoOpenRound:
        answer = self.api.poll(self._step(session, step), 0)
        return answer.content if isinstance(answer, httpx.Response) else answer

    @property
    def _round(self) -> str:
        return f"/v1/federations/{self.federation_id}/rounds/{self.round_number}"

    def _step(self, session: int, step: int) -> str:
        return f"{self._round}/secure-sum/{session}/{step}"
