"""One client of the round benchmark, in a process of its own: the agent's own calls, and no training.

It adds seeded random numbers to the served weights: random, so that nothing compresses, and known, so that
the next weights can be checked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpcore
import httpx
import numpy as np
from numpy.typing import NDArray

from client_agent.identity.membership import enrol, read_key
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from schemas.maths.adapter import SIGNATURE
from schemas.messages.enrolment import Profile
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.messages.updates import UpdateManifest
from schemas.wire.envelope import pack, slots, unpack

Adapter = dict[str, NDArray[np.float32]]

_DEADLINE_SECONDS = 120.0
_WAIT_SECONDS = 30
_TOLERANCES = {"fedavg": 1e-4, "fedmosaic": 0.05}
"""Under fedmosaic weights differ from equal ones by the cosines of random updates."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a client: its coordinator, its name, and the strategy of the federation."""

    url: str
    token: str
    place: int
    clients: int
    profile: Profile
    strategy: str
    compress: bool


@dataclass(frozen=True, slots=True)
class WeightsReceipt:
    """The receipt of a round's weights by a client: the time (monotonic seconds), and the bytes so far."""

    place: int
    round: int
    at: float
    sent: int
    received: int


class WrongRound(Exception):
    """The coordinator named another round than the next one."""


class WrongWeights(Exception):
    """The served weights are not the mean of the delivered updates."""


def take_part(task: Task, reported: Queue[WeightsReceipt | str]) -> None:
    """Take part until the federation is over; report the receipt of every round's weights, or the failure."""
    try:
        _take_part(task, reported)
    except Exception as error:
        reported.put(f"client {task.place}: {type(error).__name__}: {error}")
        raise


def _take_part(task: Task, reported: Queue[WeightsReceipt | str]) -> None:
    traffic = _Traffic()
    api = CoordinatorApi(task.url, key=None, deadline_seconds=_DEADLINE_SECONDS)
    with TemporaryDirectory() as folder:
        home, name = Path(folder), f"client-{task.place}"
        member = enrol(api, home, token=task.token, name=name, profile=task.profile)
        key = read_key(home)
    api = CoordinatorApi(
        task.url,
        key=key,
        server_key=member.server_key,
        deadline_seconds=_DEADLINE_SECONDS,
        transport=_counting(traffic),
    )
    layout = {name: tuple(shape) for name, shape in api.me().layout.items()}
    steps = [_step(layout, place) for place in range(task.clients)]
    firsts = {name: np.stack([step[name][0] for step in steps]) for name in layout}  # (N, width)
    stored = {name: np.zeros_like(rows[0]) for name, rows in firsts.items()}
    local, number = steps[task.place], 1
    del steps
    while True:
        brief = _next(api, member.federation_id, number)
        if isinstance(brief, RoundBrief):
            api.join(member.federation_id, number, None)
        body = api.weights(member.federation_id, number)
        reported.put(WeightsReceipt(task.place, number, time.monotonic(), traffic.sent, traffic.received))
        with unpack(body.body, encoding=None, expected=slots(layout), max_bytes=2**40) as envelope:
            served = {name: envelope.read_float32(name) for name in layout}
        _check(served, stored, number, _TOLERANCES[task.strategy])
        if isinstance(brief, FinishedBrief):
            return
        update = _update(served, local, task, member.federation_id, member.client_id, number, body.digest)
        del body, served
        api.push_update(member.federation_id, number, update)
        stored = {name: row + firsts[name].mean(axis=0) for name, row in stored.items()}
        number += 1


def _next(api: CoordinatorApi, federation: str, number: int) -> RoundBrief | FinishedBrief:
    """Wait for a round as the agent does."""
    while True:
        answer = api.current_round(federation, wait_seconds=_WAIT_SECONDS)
        if isinstance(answer, NoOpenRound):
            time.sleep(answer.seconds)
        elif answer.round == number:
            return answer
        else:
            raise WrongRound(f"round {answer.round} instead of {number}")


def _step(layout: dict[str, tuple[int, ...]], place: int) -> Adapter:
    """Return the values that a client adds in every round."""
    random = np.random.default_rng(place)
    return {name: random.standard_normal(shape, np.float32) for name, shape in layout.items()}


def _check(served: Adapter, stored: dict[str, Any], number: int, tolerance: float) -> None:
    """Compare the first row of every tensor with the expected mean of all updates so far."""
    for name, values in served.items():
        if not np.allclose(values[0], stored[name], rtol=tolerance, atol=tolerance):
            raise WrongWeights(f"round {number}: {name}: not the mean of what was delivered")


def _update(
    served: Adapter, local: Adapter, task: Task, federation: str, client: str, number: int, base: str
) -> bytes:
    manifest = UpdateManifest(
        federation=federation, recipe={}, round=number, client=client, base=base, pack=None, examples=1
    )
    moved = {name: values + local[name] for name, values in served.items()}
    if task.strategy == "fedmosaic":
        moved[SIGNATURE] = np.eye(task.clients, dtype=np.float32)[task.place]
    return pack(moved, manifest, compress=task.compress)


class _Traffic:
    """Bytes that went through a client's connections, headers and all."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class _CountedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, traffic: _Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        result = self._stream.read(max_bytes, timeout)
        self._traffic.received += len(result)
        return result

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._traffic.sent += len(buffer)
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CountingBackend(httpcore.SyncBackend):
    def __init__(self, traffic: _Traffic) -> None:
        self._traffic = traffic

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        return _CountedStream(super().connect_tcp(*arguments, **options), self._traffic)


def _counting(traffic: _Traffic) -> httpx.HTTPTransport:
    """Make httpx's own transport count the bytes of its sockets."""
    transport = httpx.HTTPTransport(trust_env=False)
    transport._pool = httpcore.ConnectionPool(network_backend=_CountingBackend(traffic))
    return transport
