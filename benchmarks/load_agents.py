"""Many signed clients in one process, for the load benchmark: they ask, join, deliver, and train nothing."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.serving import Coordinator, ServerFailed
from schemas.identity.documents import sign as sign_document
from schemas.identity.enrolment_token import read
from schemas.identity.keys import name_of
from schemas.identity.signed_requests import Target, sign
from schemas.maths.adapter import SIGNATURE
from schemas.messages.enrolment import enrolment_statement
from schemas.messages.updates import UpdateManifest
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import MEDIA_TYPE, pack

_TIMEOUT = httpx.Timeout(60.0, pool=None)
# Who asks every five seconds keeps its connection; by default it would be given up just then, now and then.
_LIMITS = httpx.Limits(keepalive_expiry=15.0)
_LOOKS = 40  # samples of a soak
_JOINING_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Agent:
    """An enrolled client: its key, and the tensors it sends."""

    client_id: str
    federation: str
    key: Ed25519PrivateKey
    layout: dict[str, tuple[int, ...]]


def enrol(
    coordinator: Coordinator,
    federation_id: str,
    clients: int,
    *,
    layers: int,
    width: int,
    capabilities: Sequence[str] = (),
) -> list[Agent]:
    """Enrol clients one after the other."""
    profile = {
        "architecture": "benchmark",
        "base_model": "benchmark-000000000000",
        "hidden_size": width,
        "layers": layers,
        "shapes": {"q": (width, width)},
        "agent_version": "0",
        "protocol_version": 2,
        "capabilities": [*capabilities],
    }
    agents = []
    for place in track(range(clients), "enrolling", transient=True):
        expected = {"client_name": f"client-{place}"}
        token = coordinator.post(f"/v1/federations/{federation_id}/enrolment-tokens", expected)["token"]
        key, text = Ed25519PrivateKey.generate(), read(token)
        content = enrolment_statement(
            server=text.server,
            token=text.id,
            public_key=name_of(key),
            nonce=coordinator.get("/v1/hello")["nonce"],
        )
        request = {
            "token": token,
            "name": expected["client_name"],
            "profile": profile,
            "public_key": content["public_key"],
            "nonce": content["nonce"],
            "proof": sign_document("tessera-enrolment-v1", content, key),
        }
        agents.append(Agent(coordinator.post("/v1/enrolments", request)["client_id"], federation_id, key, {}))
    with httpx.Client(base_url=coordinator.url, timeout=60) as http:
        path = "/v1/me"
        reported = http.get(path, headers=_signed(agents[0], "GET", http, path, None)).json()
    layout = {name: tuple(shape) for name, shape in reported["layout"].items()}
    return [Agent(item.client_id, item.federation, item.key, layout) for item in agents]


@dataclass(frozen=True, slots=True)
class Poll:
    """One request for the current round.

    Attributes:
        began: seconds of `time.time`.
        seconds: from sending to the whole answer.
        is_first: whether it is its agent's first, which connects.
        is_refused: whether the answer was neither a round nor that there is none.
    """

    began: float
    seconds: float
    is_first: bool
    is_refused: bool


async def poll(url: str, agents: list[Agent], *, every: float, is_over: Callable[[], bool]) -> list[Poll]:
    """Ask for the current round until it is over, each agent every `every` seconds with its own offset."""
    polls: list[Poll] = []

    async def ask(http: httpx.AsyncClient, agent: Agent) -> None:
        path = f"/v1/federations/{agent.federation}/rounds/current"
        await asyncio.sleep(random.uniform(0, every))
        is_first = True
        while not is_over():
            wall, began = time.time(), time.monotonic()
            answer = await http.get(path, headers=_signed(agent, "GET", http, path, None))
            seconds = time.monotonic() - began
            polls.append(Poll(wall, seconds, is_first, answer.status_code not in (200, 204)))
            is_first = False
            await asyncio.sleep(max(0.0, every - seconds))

    async with _connected(url, agents) as clients:
        await asyncio.gather(*(ask(http, agent) for http, agent in clients))
    return polls


async def join(
    url: str, agents: list[Agent], number: int = 1, *, with_signatures: bool = False
) -> list[bytes]:
    """Join a round; return the updates of all agents, if asked with signatures orthogonal to each other."""
    signatures: list[NDArray[np.float32] | None] = [None] * len(agents)
    if with_signatures:
        signatures = [*np.eye(len(agents), dtype=np.float32)]
    queue = asyncio.Semaphore(_JOINING_AT_ONCE)

    async def prepare(http: httpx.AsyncClient, agent: Agent, signature: NDArray[np.float32] | None) -> bytes:
        async with queue:
            return _update(agent, number, await _join(http, agent, number), signature)

    async with _connected(url, agents) as clients:
        return await asyncio.gather(
            *(
                prepare(http, agent, signature)
                for (http, agent), signature in zip(clients, signatures, strict=True)
            )
        )


async def upload(url: str, agents: list[Agent], bodies: list[bytes], number: int = 1) -> tuple[float, int]:
    """Deliver all at once; return the seconds until the last receipt, and the number of retries."""
    digests = [digest_of(body) for body in bodies]
    async with _connected(url, agents) as clients:
        began = time.monotonic()
        waits = await asyncio.gather(
            *(
                _deliver(http, agent, number, body, digest)
                for (http, agent), body, digest in zip(clients, bodies, digests, strict=True)
            )
        )
        return time.monotonic() - began, sum(waits)


async def store(url: str, agents: list[Agent], bodies: list[bytes]) -> float:
    """Send the same bodies to a server that only stores them; seconds until the last is."""
    async with _connected(url, agents) as clients:
        began = time.monotonic()
        answers = await asyncio.gather(
            *(http.put("/", content=body) for (http, _), body in zip(clients, bodies, strict=True))
        )
        seconds = time.monotonic() - began
    for answer in answers:
        _check(answer)
    return seconds


async def soak(url: str, agents: list[Agent], rounds: int, look: Callable[[int], None]) -> int:
    """Take part in many small rounds; `look` is called now and then with how many requests were answered."""
    answered = 0
    async with _connected(url, agents) as clients:
        for number in range(1, rounds + 1):
            answered += sum(await asyncio.gather(*(_whole_round(*item, number) for item in clients)))
            if number % max(1, rounds // _LOOKS) == 0:
                look(answered)
    return answered


async def _whole_round(http: httpx.AsyncClient, agent: Agent, number: int) -> int:
    """Wait for a round, join it, download its weights, deliver; return the number of requests."""
    requested = 0
    path = f"/v1/federations/{agent.federation}/rounds/current"
    while True:
        headers = _signed(agent, "GET", http, path, None, prefer="wait=30")
        answer = await http.get(path, headers=headers)
        requested += 1
        if answer.status_code == httpx.codes.OK and answer.json()["round"] == number:
            break
    base = await _join(http, agent, number)
    weights = f"/v1/federations/{agent.federation}/rounds/{number}/weights"
    _check(await http.get(weights, headers=_signed(agent, "GET", http, weights, None)))
    body = _update(agent, number, base)
    waits = await _deliver(http, agent, number, body, digest_of(body))
    return requested + 3 + waits


async def _join(http: httpx.AsyncClient, agent: Agent, number: int) -> str:
    path = f"/v1/federations/{agent.federation}/rounds/{number}/join"
    while True:
        answer = await http.post(path, headers=_signed(agent, "POST", http, path, None))
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            return str(_check(answer).json()["weights"]["digest"])
        await asyncio.sleep(float(answer.headers["Retry-After"]))


async def _deliver(http: httpx.AsyncClient, agent: Agent, number: int, body: bytes, digest: str) -> int:
    """Deliver, and retry when the answer says so; return the number of retries."""
    path = f"/v1/federations/{agent.federation}/rounds/{number}/update"
    waits = 0
    while True:
        headers = _signed(agent, "PUT", http, path, to_field(digest)) | {"Content-Type": MEDIA_TYPE}
        answer = await http.put(path, content=body, headers=headers)
        if answer.status_code not in (429, 503):
            _check(answer)
            return waits
        waits += 1
        await asyncio.sleep(float(answer.headers["Retry-After"]) * random.uniform(1.0, 1.5))


def _update(agent: Agent, number: int, base: str, signature: NDArray[np.float32] | None = None) -> bytes:
    manifest = UpdateManifest(
        federation=agent.federation,
        recipe={},
        round=number,
        client=agent.client_id,
        base=base,
        pack=None,
        examples=1,
    )
    draw = np.random.default_rng(int.from_bytes(agent.client_id.encode()[-8:]) + number)
    tensors = {name: draw.random(shape, np.float32) for name, shape in agent.layout.items()}
    if signature is not None:
        tensors[SIGNATURE] = signature
    return pack(tensors, manifest)


def _signed(
    agent: Agent,
    method: str,
    http: httpx.AsyncClient | httpx.Client,
    path: str,
    content_digest: str | None,
    *,
    prefer: str | None = None,
) -> dict[str, str]:
    target = Target(method, http.base_url.netloc.decode("ascii"), path, "", content_digest, prefer)
    fields = sign(target, agent.key, created=int(time.time()), nonce=secrets.token_urlsafe(18))
    named = {"Content-Digest": content_digest, "Prefer": prefer}
    return fields | {name: value for name, value in named.items() if value}


def _check(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise ServerFailed(f"{answer.request.method} {answer.request.url.path}: {answer.text}")
    return answer


@asynccontextmanager
async def _connected(url: str, agents: list[Agent]) -> AsyncIterator[list[tuple[httpx.AsyncClient, Agent]]]:
    """Assign each agent its own connection: a shared pool searches all its connections at each request."""
    async with AsyncExitStack() as stack:
        trust = ssl.create_default_context()  # made once: reading it takes longer than a request
        clients = [
            (
                await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=url, timeout=_TIMEOUT, limits=_LIMITS, trust_env=False, verify=trust
                    )
                ),
                agent,
            )
            for agent in agents
        ]
        # A thousand clients in one heap: to go through it is a pause of them all, and would be counted as the
        # server's.
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        yield clients
