"""The federation that receives hostile inputs, and their transport."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from sqlalchemy import create_engine, text, update

from coordinator.db.tables.federations import RoundRow, Table
from schemas.messages.federations import ALL_ROLES
from schemas.messages.recipes import Recipe
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.coordinator_process import ServedProcess
from tests.scene.rounds import (
    deliver,
    join,
    plan,
    running,
    try_join,
    update_body,
    upload_headers,
    url,
    values,
    wait_for,
)

CAP = 64 * 2**20
RECIPE = Recipe(reference="own_last", density=0.5, values="int4")
"""What updates may be written in, beside dense: all that a recipe can do."""

_A_DAY = 86400
_VOLATILE = {"used_nonces": "*", "failed_enrolments": "*", "clients": "last_seen_at"}


@dataclass(frozen=True)
class Answer:
    """An answer; status 0 means no answer."""

    status: int
    problem: str
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    is_closed: bool = False


@dataclass
class Scene:
    """A federation in its first round, and clients of every kind.

    `silo` and `second` have joined, `delivered` has done that too, `newcomer` has done nothing, `revoked` was
    shut out after it had joined. Of other federations, `elsewhere` has joined a round that ended with its
    federation, `late` one that is being aggregated, `private` one of a plan with differential privacy, and
    `deep` one whose adapter needs the longest header.
    `base` is what `silo` was told to start from, `private_base` what `private` was.
    """

    served: ServedProcess
    silo: Silo
    second: Silo
    delivered: Silo
    newcomer: Silo
    revoked: Silo
    elsewhere: Silo
    late: Silo
    private: Silo
    deep: Silo
    base: str
    private_base: str

    @property
    def update(self) -> str:
        return url(self.silo, 1, "/update")

    def good(self, **changes: Any) -> bytes:
        return update_body(self.silo, 1, self.base, values(1.0), **changes)

    def raw(self, change: Callable[[dict[str, Any]], object], data: bytes | None = None) -> bytes:
        """Return a valid body with a changed header."""
        good = self.good()
        length = int.from_bytes(good[:8], "little")
        header = json.loads(good[8 : 8 + length])
        change(header)
        return framed(json.dumps(header).encode(), good[8 + length :] if data is None else data)

    def manifest(self, **changes: Any) -> bytes:
        """Return a valid body with changed members of its manifest; ... removes a member."""

        def change(header: dict[str, Any]) -> None:
            manifest = json.loads(header["__metadata__"]["tessera"]) | changes
            changed_manifest = {name: value for name, value in manifest.items() if value is not ...}
            header["__metadata__"]["tessera"] = json.dumps(changed_manifest)

        return self.raw(change)

    def stored(self) -> dict[str, str]:
        """Name every table's content."""
        engine = create_engine(self.served.database_url)  # a kept connection would not outlive its server
        try:
            with engine.connect() as connection:
                return {name: _content(connection, name) for name in Table.metadata.tables}
        finally:
            engine.dispose()

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until background writes have ended, such as events and expired rows."""
        deadline = time.monotonic() + seconds
        before: dict[str, str] = {}
        while (after := self.stored()) != before:
            assert time.monotonic() < deadline, f"still written: {changed(before, after)}"
            before = after
            time.sleep(1.0)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Name the tables whose contents differ."""
    return {name for name in after if after[name] != before.get(name)}


def media_type_headers(body: bytes) -> dict[str, str]:
    """Return the headers of an upload without its digest."""
    return {"Content-Type": upload_headers(body)["Content-Type"]}


def read_answer(answer: Answer | httpx.Response) -> Answer:
    """Read an answer."""
    if isinstance(answer, Answer):
        return answer
    return Answer(answer.status_code, slug(answer) if answer.is_error else "", answer.headers)


def is_answered(silo: Silo) -> bool:
    """Whether a member's signed request without a rate limit is answered."""
    return silo.http.get(f"/v1/federations/{silo.federation_id}/plan").status_code == 200


def set_up(served: ServedProcess) -> Scene:
    """Create the federation, whose round ends with the fourth update, and a second federation."""
    rounds = {"min_clients": 4, "collect_seconds": _A_DAY}  # a worker may run all other tests before the end
    changed_plan = plan(rounds=rounds, limits={"max_norm": 50.0}, wire={"recipe": RECIPE.model_dump()})
    federation_id, silos = running(served, clients=5, **changed_plan)
    silo, second, delivered, newcomer, revoked = silos
    base = str(try_join(silo, 1).json()["weights"]["digest"])
    for client in (second, revoked):
        assert try_join(client, 1).status_code == 200
    deliver(delivered, 1, values(1.0))
    gone = served.admin.delete(f"/v1/federations/{federation_id}/clients/{revoked.client_id}")
    assert gone.status_code == 204
    beside, (elsewhere, _) = running(served)
    assert try_join(elsewhere, 1).status_code == 200
    assert served.admin.post(f"/v1/federations/{beside}/finish").status_code == 200
    late = _joined_and_closed(served)
    _, (private, _) = running(served, **plan(signature={"dim": 4, "dp": {"epsilon": 4}}))
    private_base = join(private, 1)
    deep = _of_many_layers(served)
    for client in (silo, second, newcomer, elsewhere, late, private, deep):
        assert is_answered(client)  # seen just now: nobody is noted as seen meanwhile
    wait_until_counted(served, federation_id, joined=4, arrived=1)
    wait_until_counted(served, private.federation_id, joined=1)
    scene = Scene(
        served,
        silo,
        second,
        delivered,
        newcomer,
        revoked,
        elsewhere,
        late,
        private,
        deep,
        base,
        private_base,
    )
    scene.settle()
    return scene


def _of_many_layers(served: Served) -> Silo:
    """Join a round with an adapter of 12,600 tensors."""
    federation_id = served.federation(**plan(adapter={"kind": "lora", "rank": 1, "roles": [*ALL_ROLES]}))
    deep = served.enrol(federation_id, "deep", layers=900, shapes={role: [1, 1] for role in ALL_ROLES})
    served.start_federation(federation_id)
    join(deep, 1)
    return deep


def _joined_and_closed(served: Served) -> Silo:
    """Join a round that then closes, and is leased to a worker for a day."""
    federation_id, (late, *others) = running(served, clients=3, **plan(rounds={"min_clients": 3}))
    for client in (late, *others):
        assert try_join(client, 1).status_code == 200
    deliver(others[0], 1, values(1.0))
    wait_until_counted(served, federation_id, joined=3, arrived=1)
    with served.database.write() as session:  # as another process' claim leaves it
        moment = datetime.now(UTC) + timedelta(seconds=_A_DAY)
        statement = update(RoundRow).where(RoundRow.federation_id == federation_id)
        session.execute(
            statement.values(state="aggregating", lease_token="another's", lease_expires_at=moment)
        )
    return late


def wait_until_counted(served: Served, federation_id: str, **counts: int) -> None:
    """Wait for the event of a round with these counts, after which nothing is written."""
    with served.admin.stream(
        "GET", f"/v1/federations/{federation_id}/events", headers={"Last-Event-ID": "0"}
    ) as events:
        for line in events.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if counts.items() <= event.get("counts", {}).items():
                return


def finish(scene: Scene) -> None:
    """Deliver for the honest clients at the end: their updates are accepted and the round is published."""
    federation_id = scene.silo.federation_id
    for client in (scene.silo, scene.second, scene.newcomer):
        deliver(client, 1, values(1.0))
    shown = wait_for(scene.served, federation_id, 1, "published")
    assert shown["counts"]["arrived"] == 4


def framed(header: bytes, data: bytes = b"") -> bytes:
    """Put a safetensors header before its data."""
    return struct.pack("<Q", len(header)) + header + data


def exchange_bytes(scene: Scene, *sent: bytes, seconds: float = 15.0, pause: float = 0.0) -> Answer:
    """Send raw bytes on a new connection, and read one answer or none."""
    with scene.served.line(seconds) as line:
        try:
            for piece in sent:
                line.sendall(piece)
                time.sleep(pause)
        except OSError:
            pass  # refused before everything was sent
        return listen(line)


def listen(line: socket.socket) -> Answer:
    """Read one answer, and whether the connection is closed after it."""
    received = b""
    try:
        while b"\r\n\r\n" not in received and (piece := line.recv(65536)):
            received += piece
        if not received:
            return Answer(0, "", is_closed=True)
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = httpx.Headers([tuple(field.split(": ", 1)) for field in lines])  # type: ignore[misc]
        while len(body) < int(headers.get("content-length", "0")):
            body += line.recv(65536)
        line.settimeout(1.0)
        closed = headers.get("connection") == "close" and line.recv(1) == b""
    except ConnectionResetError:
        closed = True
        if b"\r\n\r\n" not in received:
            return Answer(0, "", is_closed=True)
    answer = httpx.Response(int(first.split()[1]), headers=headers, content=body)
    return Answer(answer.status_code, slug(answer), headers, closed)


def _content(connection: Any, name: str) -> str:
    left_out = _VOLATILE.get(name)
    if left_out == "*":
        return ""
    columns = [column.name for column in Table.metadata.tables[name].columns if column.name != left_out]
    chosen = ", ".join(f'"{column}"' for column in columns)
    rows = connection.execute(text(f'SELECT {chosen} FROM "{name}"'))
    return hashlib.sha256(repr(sorted(repr(tuple(row)) for row in rows)).encode()).hexdigest()
