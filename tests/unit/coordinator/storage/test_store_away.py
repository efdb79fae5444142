"""A coordinator without its object store serves what needs no store, and reports the failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import typer
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from benchmarks.s3_server import NoServer, S3Server, s3_server
from coordinator import workers
from coordinator.cli import commands
from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from coordinator.server import serve as serve_here
from coordinator.storage import payload_moves, payloads, server_key
from tests.scene.coordinator import SIGNING_KEY, Served
from tests.scene.operator import Operator
from tests.scene.rounds import deliver, plan, running, values
from tests.scene.waiting import wait_until

pytest.importorskip("obstore")

READY, AWAY = "ready\n", "ready\nthe payload store does not answer"
BODIES = [os.urandom(payload_moves.SMALLEST + number) for number in range(3)]


@pytest.fixture(autouse=True)
def _many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PASS_SECONDS", 0.05)


def readiness(served: Served) -> str:
    answer = served.http().get("/readyz")
    assert answer.status_code == 200
    return answer.text


def wait_for_answers(served: Served, answers: float) -> None:
    wait_until(lambda: served.counted("tessera_payload_store_up") == answers, event="a pass of the mover")


def play_a_round(served: Served) -> None:
    federation_id, silos = running(served, **plan(rounds={"total": 1}))
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_until(lambda: served.round_state(federation_id, 1) == "published")


def command(database_url: str, *arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    commands(app)
    environment = {"TESSERA_DATABASE_URL": database_url}
    return CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)


@pytest.mark.slow
def test_a_coordinator_is_ready_without_its_store(
    serve: Callable[..., Served], database_url: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    served = serve(database_url, payload_store=f"file://{store}", tick_seconds=0.05)
    operator = Operator(served)
    wait_until(store.exists)  # the first pass makes it
    assert readiness(served) == READY
    assert operator("ready") == ""
    with_store = store.rename(tmp_path / "elsewhere")
    store.write_text("no folder, so that every request fails")
    wait_for_answers(served, 0)
    assert readiness(served).startswith(AWAY)
    assert "does not answer" in operator.warnings("ready")
    play_a_round(served)
    store.unlink()
    with_store.rename(store)
    wait_for_answers(served, 1)
    assert readiness(served) == READY


@pytest.mark.s3
@pytest.mark.slow
def test_a_coordinator_is_ready_while_s3_is_unavailable(
    serve: Callable[..., Served], database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        with s3_server(tmp_path) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            served = serve(database_url, payload_store=server.bucket, tick_seconds=0.05)
            wait_until(lambda: _listed(server), event="the first pass")
            assert readiness(served) == READY
    except NoServer as error:
        pytest.skip(str(error))
    wait_for_answers(served, 0)
    assert readiness(served).startswith(AWAY)
    play_a_round(served)
    stopped = command(database_url, "payloads", "move", "--to", server.bucket)
    assert stopped.exit_code == 1
    assert "does not answer" in stopped.stderr


def _listed(server: S3Server) -> bool:
    return "list-type=2" in server.log.read_text("utf-8")


@pytest.mark.s3
@pytest.mark.slow
def test_a_missing_bucket_is_reported(serve: Callable[..., Served], database_url: str, s3: S3Server) -> None:
    endpoint = httpx.URL(s3.environment["AWS_ENDPOINT_URL"])
    name = f"no-such-bucket-{endpoint.port}"  # a store is opened once per URL
    served = serve(database_url, payload_store=f"s3://{name}/tessera", tick_seconds=0.05)
    wait_for_answers(served, 0)
    assert readiness(served).startswith(AWAY)
    play_a_round(served)
    bucket = httpx.put(endpoint.join(name), trust_env=False)
    assert bucket.is_success
    wait_for_answers(served, 1)
    assert readiness(served) == READY


def test_an_unmigrated_database_makes_the_service_unready(
    serve: Callable[..., Served], database_url: str, tmp_path: Path
) -> None:
    served = serve(database_url, payload_store=f"file://{tmp_path}/store", tick_seconds=0.05)
    with served.database.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = 'other'")
    assert served.http().get("/readyz").status_code == 503


@pytest.mark.parametrize("url", ["ftp://example.org/payloads", "s3://", "payloads"])
def test_an_invalid_store_prevents_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    monkeypatch.setenv("TESSERA_DATABASE_URL", f"sqlite:///{tmp_path}/tessera.db")
    monkeypatch.setenv("TESSERA_PAYLOAD_STORE", url)
    with pytest.raises(SettingsUnusable, match="write s3://BUCKET/PREFIX"):
        serve_here()
    assert not (tmp_path / "tessera.db").exists()


def test_payloads_are_checked_and_moved_by_commands(database_url: str, tmp_path: Path) -> None:
    with closing(Database(database_url)) as database, database.write() as session:
        server_key.load(database, SecretStr(SIGNING_KEY))
        for body in BODIES:
            payloads.store_bytes(session, body)
    store = f"file://{tmp_path}/store"
    moved = command(database_url, "payloads", "move", "--to", store)
    assert moved.stdout == f"moved 3 payloads, 3.0 MiB, to {store}\n"
    checked = command(database_url, "payloads", "check")
    assert (checked.exit_code, checked.stdout) == (0, "no payload is missing in the store\n")
    missing, short, _ = sorted(file for file in (tmp_path / "store").rglob("*-*") if file.is_file())
    missing.unlink()
    short.write_bytes(b"the beginning")
    checked = command(database_url, "payloads", "check")
    assert checked.exit_code == 1
    assert [line.partition(":")[0] for line in checked.stdout.splitlines()] == ["payload 1", "payload 2"]
    refused = command(database_url, "payloads", "move", "--to", "ftp://example.org")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "write s3://BUCKET/PREFIX" in refused.stderr
