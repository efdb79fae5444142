"""Rows 51 and 52: request rates, concurrent uploads, full disks, and locked databases."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.http.limits.poll_rate import BURST
from tests.attacks.hostile.attack import at_a_bounded_cost
from tests.attacks.hostile.scene import (
    Answer,
    Scene,
    is_answered,
    listen,
    media_type_headers,
    read_answer,
    set_up,
    wait_until_counted,
)
from tests.scene.coordinator import Served, Silo
from tests.scene.coordinator_process import start_process
from tests.scene.postgres_server import PostgresServer
from tests.scene.rounds import (
    deliver,
    join,
    plan,
    put,
    running,
    update_body,
    upload_headers,
    url,
    values,
    wait_for,
)
from tests.scene.signed_requests import request_bytes, signed
from tests.scene.waiting import wait_until

Databases = Callable[[str], str]
_SPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


@pytest.mark.slow
def test_polling_limits_apply_to_one_client(scene: Scene) -> None:
    """Row 51."""
    path = f"/v1/federations/{scene.delivered.federation_id}/rounds/current"
    before = scene.stored()
    with at_a_bounded_cost(scene.served):
        answers = [scene.delivered.http.get(path) for _ in range(BURST + 5)]
    limited = [answer for answer in answers if answer.status_code != 204]
    assert len(limited) >= 4
    for answer in limited:
        assert (read_answer(answer).status, read_answer(answer).problem) == (429, "rate-limited")
        assert 1 <= int(answer.headers["retry-after"]) <= 6
    assert scene.silo.http.get(path).status_code == 200
    assert scene.stored() == before
    with CoordinatorApi(scene.served.url, key=scene.delivered.key, deadline_seconds=60) as api:
        assert isinstance(api.current_round(scene.delivered.federation_id), NoOpenRound)


@pytest.mark.slow
def test_a_second_concurrent_upload_is_refused(scene: Scene) -> None:
    """Row 51."""
    silo, body = scene.silo, scene.good()
    request = signed(scene.served, silo, "PUT", scene.update, body, **media_type_headers(body))
    before = scene.stored()
    with scene.served.line() as line:
        line.sendall(request_bytes(request, body=body[:100]))
        time.sleep(0.2)
        second = put(silo, 1, scene.manifest(examples=0))
        assert (read_answer(second).status, read_answer(second).problem) == (429, "rate-limited")
        assert int(second.headers["retry-after"]) >= 5
        another = put(scene.second, 1, b"x")
        assert read_answer(another).problem == "tensor-header"
        line.sendall(bytes(len(body) - 100))
        assert listen(line).problem == "digest-mismatch"
    assert scene.stored() == before
    assert read_answer(put(silo, 1, scene.manifest(examples=0))).problem == "metadata"


@contextmanager
def _locked(scene: Scene) -> Iterator[None]:
    """Hold the lock that every accepted update needs."""
    url = scene.served.database_url
    if url.startswith("sqlite"):
        holder = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.close()
        return
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("SELECT * FROM federations FOR UPDATE")
        yield
        connection.rollback()


@pytest.mark.long
def test_a_locked_database_answers_503_in_time(scene: Scene) -> None:
    """Rows 51 and 52: two wait in the group commit until the lock is given up; a third is sent away before.

    An SQLite file is locked as a whole, so that there all three wait to store the nonce of their request.
    """
    is_sqlite = scene.served.database_url.startswith("sqlite")
    scene = set_up(scene.served)  # a federation beside: everybody joins here
    others = [scene.second, scene.newcomer]
    bodies = {peer.client_id: update_body(peer, 1, join(peer, 1), values(1.0)) for peer in others}
    bodies[scene.silo.client_id] = scene.good()
    wait_until_counted(scene.served, scene.silo.federation_id, joined=5)
    before = scene.stored()
    with ThreadPoolExecutor(3) as pool, _locked(scene):
        requests = {}
        for silo in (scene.silo, *others):
            requests[silo.client_id] = pool.submit(_timed, silo, bodies[silo.client_id])
            time.sleep(0.3)
        answers = [peer.result() for peer in requests.values()]
        assert is_answered(scene.silo)  # reading goes on
    assert [(answer.status, answer.problem) for answer, _ in answers] == [
        (503, "unavailable"),
        (503, "unavailable"),
        (503, "unavailable" if is_sqlite else "busy"),
    ]
    assert all(1 <= int(answer.headers["retry-after"]) <= 10 for answer, _ in answers)
    assert 9 < answers[0][1] < 25
    assert answers[2][1] < (12 if is_sqlite else 9)
    assert scene.stored() == before


def _timed(silo: Silo, body: bytes) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = silo.http.put(
        f"/v1/federations/{silo.federation_id}/rounds/1/update", content=body, headers=upload_headers(body)
    )
    return read_answer(answer), time.monotonic() - began


def test_uploads_are_refused_on_a_nearly_full_disk(
    serve: Callable[..., Served],
    fresh_database: Databases,
    rows: Callable[[str, str], list[tuple[Any, ...]]],
    tmp_path: Path,
) -> None:
    """Row 52, the watermark."""
    database = fresh_database("sqlite")
    full = serve(database, storage_reserve_mib=2 * shutil.disk_usage(tmp_path).free // 2**20)
    federation_id, (silo, second) = running(full)
    body = update_body(silo, 1, join(silo, 1), values(1.0))
    stored = "SELECT (SELECT count(*) FROM payloads), (SELECT count(*) FROM updates)"
    before = rows(database, stored)
    refused = put(silo, 1, body)
    assert (read_answer(refused).status, read_answer(refused).problem) == (507, "storage-full")
    assert int(refused.headers["retry-after"]) >= 45
    assert rows(database, stored) == before
    assert read_answer(full.http().put(url(silo, 1, "/update"), content=body)).problem == "auth-missing"
    full.stop()
    mended = serve(database)
    for client in (silo, second):
        deliver(Silo(client.client_id, federation_id, client.key, mended.signing(client.key)), 1, values(1.0))
    wait_for(mended, federation_id, 1, "published")


class _Interrupted(PostgresServer):
    """A PostgreSQL server that can be stopped for a while."""

    @contextmanager
    def stopped(self) -> Iterator[None]:
        data = f"-D{self._home / 'data'}"
        self._run("pg_ctl", data, "-w", "-m", "immediate", "stop")
        try:
            yield
        finally:
            options = f"{self._options} -c port={self._port} -c unix_socket_directories={self._home}"
            self._run("pg_ctl", data, "-w", "-l", str(self._home / "log"), "-o", options, "start")


@pytest.mark.long
def test_uploads_succeed_after_an_outage_of_postgresql(tmp_path: Path) -> None:
    """Row 52."""
    with _Interrupted() as server:
        server.create("gone_for_a_while")
        database = Database(server.url("gone_for_a_while"))
        migrate.upgrade(database)
        database.close()
        served = start_process(server.url("gone_for_a_while"), tmp_path)
        try:
            scene = set_up(served)
            before = scene.stored()
            with server.stopped():
                for _ in range(3):
                    with at_a_bounded_cost(served):
                        refused = put(scene.silo, 1, scene.good())
                    assert (read_answer(refused).status, read_answer(refused).problem) == (503, "unavailable")
                    assert 1 <= int(refused.headers["retry-after"]) <= 10
            assert scene.stored() == before
            assert put(scene.silo, 1, scene.good()).status_code == 201
            assert "request-failed" not in served.log.read_text()
        finally:
            served.stop()


def _can_mount() -> bool:
    done = subprocess.run([*_SPACE, "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    return done.returncode == 0


def _fill_disk_except(disk: Path, free: int) -> None:
    """Fill a disk but for about `free` bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    with filler.open("wb") as file:
        while shutil.disk_usage(disk).free > free + 65536 and file.tell() < 2**24 and free < 2**24:
            file.write(bytes(65536))
            file.flush()


@pytest.mark.slow
@pytest.mark.skipif(not _can_mount(), reason="no file system of a few MiB can be mounted here")
def test_a_round_continues_after_a_full_disk(tmp_path: Path) -> None:
    """Row 52, past the watermark: a file system of 16 MiB, all of it taken but for a little."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=16m none {disk} && exec "$@"'
    served = start_process(
        f"sqlite:///{disk / 'tessera.db'}",
        tmp_path,
        *_SPACE,
        mount,
        "sh",
        storage_reserve_mib=0,
        lease_seconds=1,
    )
    # SQLite follows the link to the file system of this process, so that the test asks over HTTP only.
    root = Path(f"/proc/{served.process.pid}/root{disk}")
    try:
        wide = plan(adapter={"rank": 512}, rounds={"total": 1})
        federation_id = served.federation(**wide)
        silo, second = (served.enrol_over_http(federation_id, name) for name in ("silo-0", "silo-1"))
        served.start_federation(federation_id)
        deliver(second, 1, values(1.0, rank=512))
        body = update_body(silo, 1, join(silo, 1), values(2.0, rank=512))

        def shown() -> dict[str, Any]:
            round_view: dict[str, Any] = served.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()
            return round_view

        _fill_disk_except(root, 300_000)
        with at_a_bounded_cost(served):
            refused = put(silo, 1, body)
        assert (read_answer(refused).status, read_answer(refused).problem) == (507, "storage-full")
        assert shown()["counts"]["arrived"] == 1
        _fill_disk_except(root, len(body) * 3 // 2)  # for the update, and not for what is made of it
        assert put(silo, 1, body).status_code == 201
        wait_until(lambda: "aggregation-interrupted" in served.log.read_text())
        assert (shown()["state"], shown()["reason"]) == ("aggregating", None)
        _fill_disk_except(root, 10**9)
        wait_until(lambda: shown()["state"] == "published")
    finally:
        served.stop()
