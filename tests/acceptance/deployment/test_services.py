"""The commands of all services on a real PostgreSQL, with secrets as files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from tests.acceptance.deployment.composition import ROOT, argv_of, stage_of
from tests.acceptance.deployment.containers import Host
from tests.acceptance.deployment.tls_front import tls_front
from tests.scene.postgres_server import PostgresServer
from tests.scene.replica_processes import free_port

pytestmark = pytest.mark.timeout(600)

ROLE, NAME = "tessera", "tessera_composed"


@pytest.fixture
def host(postgres: PostgresServer, tmp_path: Path) -> Iterator[Host]:
    """A machine with an empty disk, a database that asks for a password, and newly made secrets."""
    scripts = tmp_path / "deploy"
    scripts.mkdir()
    shutil.copy(ROOT / "deploy" / "make_secrets.sh", scripts)
    subprocess.run(["sh", str(scripts / "make_secrets.sh")], check=True, capture_output=True)
    host = Host(tmp_path)
    postgres.create_role(ROLE, (host.secrets / "tessera_database_password").read_text())
    postgres.create(NAME, owner=ROLE)
    port = free_port()
    host.addresses = {
        "postgres/tessera": postgres.url(NAME).rpartition("@")[2],
        "http://coordinator:8000": f"http://127.0.0.1:{port}",
        "localhost,caddy,coordinator": "localhost,caddy,127.0.0.1",
    }
    host.extra = {
        "TESSERA_PORT": str(port),
        "TESSERA_URL": f"http://127.0.0.1:{port}",
        "TESSERA_TICK_SECONDS": "0.05",
        "TESSERA_RETRY_SECONDS": "0.2",
    }
    yield host
    postgres.drop(NAME)
    postgres.drop_role(ROLE)


@contextmanager
def running(host: Host, service: str) -> Iterator[subprocess.Popen[str]]:
    process = host.start(service)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0, host.log(service)


def _healthy(host: Host, service: str = "coordinator") -> bool:
    return host.run(service, stage_of(service).health_argv) == 0


def _tokens(host: Host) -> list[str]:
    """Return the agents whose volume has a token and nothing else."""
    names = ("aster", "cedar")
    left = {name: [path.name for path in host.volume(f"enrolment-{name}").iterdir()] for name in names}
    assert all(files in (["token"], ["new"], []) for files in left.values())
    return [name for name, files in left.items() if files == ["token"]]


@contextmanager
def over_tls(host: Host) -> Iterator[None]:
    """Migrate, serve, and forward TLS to the coordinator as Caddy does."""
    root = host.volume("certificates") / "pki" / "authorities" / "local" / "root.crt"
    assert host.run("migrate") == 0, host.log("migrate")
    with running(host, "coordinator"), tls_front(int(host.extra["TESSERA_PORT"]), root) as url:
        host.addresses["https://caddy:8443"] = url
        _wait_until_healthy(host)
        yield


def _wait_until_healthy(host: Host, service: str = "coordinator") -> None:
    deadline = time.monotonic() + 60
    while not _healthy(host, service):
        assert time.monotonic() < deadline, host.log("coordinator")
        time.sleep(0.3)


def _admin(host: Host, url: str) -> httpx.Client:
    token = (host.secrets / "tessera_admin_token").read_text()
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)


@pytest.mark.long
def test_coordinator_starts_only_on_a_migrated_database(host: Host) -> None:
    assert argv_of("migrate") == ["tessera", "migrate"]
    assert argv_of("coordinator") == ["tessera", "serve"]
    assert host.start("coordinator").wait(timeout=60) == 1
    assert "run `tessera migrate`" in host.log("coordinator")
    assert not _healthy(host)
    assert host.run("migrate") == 0, host.log("migrate")
    with running(host, "coordinator"):
        _wait_until_healthy(host)
        url = host.addresses["http://coordinator:8000"]
        with _admin(host, url) as admin:
            assert admin.get("/v1/federations").json()["items"] == []
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 401
    assert not _healthy(host)
    assert "does not answer" in host.log("coordinator")
    output = host.log("migrate") + host.log("coordinator")
    assert "first admin" not in output
    for secret in host.secrets.iterdir():
        assert secret.read_text() not in output
    assert list(host.home("coordinator").iterdir()) == [], "its disk is read-only"


def test_a_wrong_password_is_refused_and_not_shown(host: Host) -> None:
    password = host.secrets / "tessera_database_password"
    password.chmod(0o600)
    password.write_text("another-password")
    host.extra["TESSERA_DATABASE_WAIT_SECONDS"] = "0"
    assert host.run("migrate") == 1
    assert "TESSERA_DATABASE_URL" in host.log("migrate")
    assert "another-password" not in host.log("migrate")


@pytest.mark.long
def test_the_example_agents_finish_their_federation_over_tls(host: Host) -> None:
    with over_tls(host):
        for _ in range(2):  # as `up` does when it is repeated
            assert host.run("trust") == 0, host.log("trust")
            assert host.run("setup") == 0, host.log("setup")
        assert not _healthy(host, "aster"), "it is not enrolled"
        agents = [host.start(name) for name in ("aster", "cedar")]
        _wait_until_healthy(host, "aster")
        for name, agent in zip(("aster", "cedar"), agents, strict=True):
            assert agent.wait(timeout=400) == 0, host.log(name)
        assert host.run("setup") == 0, host.log("setup")
        assert host.run("aster") == 0, "a finished agent that is started again ends at once"
        assert _healthy(host, "aster"), "a finished federation is no failure"
        with _admin(host, host.addresses["http://coordinator:8000"]) as admin:
            (federation,) = admin.get("/v1/federations").json()["items"]
            rounds = admin.get(f"/v1/federations/{federation['id']}/rounds").json()["items"]
    assert federation["state"] == "finished"
    assert [(r["state"], r["counts"]["arrived"]) for r in rounds] == [("published", 2)] * 3
    for name in ("aster", "cedar"):
        state = host.volume(name)
        assert next(state.glob("**/final_weights.safetensors")).stat().st_size > 1000
    assert _tokens(host) == ["aster", "cedar"]


@pytest.mark.long
def test_an_agent_refuses_an_untrusted_certificate(host: Host) -> None:
    with over_tls(host):
        assert host.run("trust") == 0, host.log("trust")
        assert host.run("setup") == 0, host.log("setup")
        trustme.CA().cert_pem.write_to_path(host.volume("authority") / "root.crt")
        host.extra["TESSERA_AGENT_REQUEST_DEADLINE_SECONDS"] = "1"
        assert host.run("aster") == 1
        assert "CERTIFICATE_VERIFY_FAILED" in host.log("aster")
        with _admin(host, host.addresses["http://coordinator:8000"]) as admin:
            (federation,) = admin.get("/v1/federations").json()["items"]
    assert federation["clients"]["enrolled"] == 0


@pytest.mark.long
def test_setup_is_repeatable_after_a_kill(host: Host) -> None:
    shadow = host.folder / "shadow"
    shadow.mkdir()
    real = Path(sys.executable).with_name("tessera")
    (shadow / "tessera").write_text(
        f'#!/bin/sh\n{real} "$@" || exit\n[ "$1 $4" != "enrolment cedar" ] || kill -KILL $PPID\n'
    )
    (shadow / "tessera").chmod(0o755)
    with over_tls(host):
        assert host.run("trust") == 0, host.log("trust")
        path = f"PATH={shadow}{os.pathsep}{real.parent}{os.pathsep}{os.defpath}"
        assert host.run("setup", ["env", path, *argv_of("setup")]) == -signal.SIGKILL
        assert _tokens(host) == ["aster"]
        for _ in range(2):
            assert host.run("setup") == 0, host.log("setup")
        with _admin(host, host.addresses["http://coordinator:8000"]) as admin:
            states = [item["state"] for item in admin.get("/v1/federations").json()["items"]]
    assert states == ["running"]
    assert _tokens(host) == ["aster", "cedar"]


def test_a_new_databases_owner_is_no_superuser(postgres: PostgresServer, host: Host) -> None:
    """The script that PostgreSQL's image runs in a new volume, on a database that is its superuser's."""
    postgres.drop(NAME)
    postgres.drop_role(ROLE)
    postgres.create(ROLE)  # POSTGRES_DB
    address = httpx.URL(postgres.url(ROLE).replace("postgresql+psycopg", "http"))
    script = (ROOT / "deploy" / "postgres" / "owner.sh").read_text()
    local_script = script.replace("/run/secrets", str(host.secrets))
    variables = {"PGHOST": address.host, "PGPORT": str(address.port), "POSTGRES_DB": ROLE}
    try:
        done = subprocess.run(
            ["sh", "-c", local_script],
            env={"PATH": f"{postgres.binaries}{os.pathsep}{os.defpath}"} | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert postgres.ask(
            "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles"
            f" WHERE rolname = '{ROLE}'"
        ) == [(False,) * 5]
        host.addresses["postgres/tessera"] = postgres.url(ROLE).rpartition("@")[2]
        assert host.run("migrate") == 0, host.log("migrate")
    finally:
        postgres.drop(ROLE)
        postgres.create(NAME, owner=ROLE)
