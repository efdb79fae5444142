"""HTTP transports of agents that record bodies, change answers, or stop before a request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from tests.scene.faults import Killed

STEP = re.compile(r"/secure-sum/(\d+)/(\d)$")


@dataclass(frozen=True)
class Exchange:
    """One request and its answer, as everybody on the way sees them."""

    agent: str
    method: str
    path: str
    sent: bytes
    status: int
    received: bytes

    @property
    def step(self) -> int | None:
        match = STEP.search(self.path)
        return int(match[2]) if match else None


@dataclass
class Wire:
    """All connections of a federation's agents."""

    exchanges: list[Exchange] = field(default_factory=list)
    dies_before: dict[str, int] = field(default_factory=dict)
    """The step before whose message an agent ends, by name."""
    change: Callable[[Exchange], bytes] = lambda exchange: exchange.received
    """Change what agents receive."""
    on_exchange: Callable[[Exchange], None] = lambda exchange: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def transport(self, agent: str) -> httpx.BaseTransport:
        return _Recorded(self, agent)

    def of(self, method: str, ending: str) -> list[Exchange]:
        return [e for e in self.exchanges if e.method == method and e.path.endswith(ending)]


class _Recorded(httpx.BaseTransport):
    def __init__(self, wire: Wire, agent: str) -> None:
        self._wire, self._agent = wire, agent
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        wire, path = self._wire, request.url.path
        match = STEP.search(path)
        if request.method == "PUT" and match and int(match[2]) >= wire.dies_before.get(self._agent, 9):
            raise Killed
        sent = b"".join(request.stream)  # type: ignore[arg-type]
        passed_on = httpx.Request(
            request.method, request.url, headers=request.headers, content=sent, extensions=request.extensions
        )
        answer = self._inner.handle_request(passed_on)
        received = answer.read()
        exchange = Exchange(self._agent, request.method, path, sent, answer.status_code, received)
        with wire.lock:
            wire.exchanges.append(exchange)
        wire.on_exchange(exchange)
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        body = httpx.ByteStream(wire.change(exchange))
        return httpx.Response(answer.status_code, headers=headers, stream=body)

    def close(self) -> None:
        self._inner.close()
