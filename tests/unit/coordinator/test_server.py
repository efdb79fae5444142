from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.errors import SettingsUnusable
from coordinator.server import listening_hints, migrate
from coordinator.settings import Settings
from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY, Served, slug
from tests.scene.postgres_server import PostgresServer

PLAN = {"name": "x", "strategy": {"name": "fedavg"}}


def test_health_readiness_and_hello_need_no_credential(coordinator: Served) -> None:
    anonymous = coordinator.http()
    assert anonymous.get("/healthz").status_code == 200
    assert anonymous.get("/readyz").status_code == 200
    hello = anonymous.get("/v1/hello").json()
    assert hello["name"] == "Tessera"
    assert hello["protocol_version"] == 2
    assert hello["server_time"].endswith("Z")
    assert anonymous.get("/docs").status_code == 200


def test_framework_errors_are_problem_documents(coordinator: Served) -> None:
    anonymous = coordinator.http()
    assert slug(anonymous.get("/v1/nothing/here")) == "not-found"
    assert slug(anonymous.get("/v1/federations/")) == "not-found"
    refused = anonymous.patch("/v1/hello")
    assert (refused.status_code, slug(refused)) == (405, "method-not-allowed")
    assert refused.headers["allow"] == "GET"
    assert anonymous.put("/v1/federations").headers["allow"] == "GET, POST"
    refused = coordinator.admin.get("/v1/federations", params={"limit": "many"})
    assert (refused.status_code, slug(refused)) == (422, "validation")
    assert refused.json()["field"] == "limit"


def test_internal_errors_show_only_an_incident_number(
    serve: Callable[..., Served],
    fresh_database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inner workings")

    served = serve(fresh_database("sqlite"))
    monkeypatch.setattr("coordinator.federations.store.page", explode)
    failed = served.admin.get("/v1/federations")
    assert (failed.status_code, slug(failed)) == (500, "internal")
    problem = failed.json()
    assert set(problem) == {"type", "title", "status", "incident"}
    assert problem["incident"] in caplog.text
    monkeypatch.undo()
    assert served.admin.get("/v1/federations").status_code == 200


def test_a_failed_commit_is_answered_with_503(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.orm import Session

    def fail(*_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

    served = serve(fresh_database("sqlite"), tick_seconds=3600)
    assert served.admin.get("/v1/federations").status_code == 200
    monkeypatch.setattr(Session, "commit", fail)
    monkeypatch.setattr("sqlalchemy.orm.session.SessionTransaction.commit", fail)
    refused = served.admin.post("/v1/federations", json=PLAN)
    monkeypatch.undo()
    assert (refused.status_code, slug(refused)) == (503, "unavailable")
    assert int(refused.headers["retry-after"]) > 0
    assert served.admin.get("/v1/federations").json()["items"] == []


def test_metrics_count_requests_and_updates_without_ids(coordinator: Served) -> None:
    coordinator.federation()
    shown = coordinator.admin.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    assert 'route="/v1/federations",status="201"' in shown.text
    for name in ("tessera_updates_accepted_total", "tessera_bytes_up_total", "tessera_aggregation_seconds"):
        assert name in shown.text
    assert "fed_" not in shown.text


def test_metrics_need_a_role_and_dashboards_are_optional(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), dashboard=False)
    assert slug(served.http().get("/metrics")) == "auth-missing"
    assert served.admin.get("/metrics").status_code == 200
    for path in ("/", "/docs", "/docs/start.js", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"):
        assert slug(served.http().get(path)) == "not-found"


def test_open_metrics_are_rendered_once_a_second(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.observability.metrics._RECENT_SECONDS", 60.0)
    served = serve(fresh_database("sqlite"), public_metrics=True)
    first = served.http().get("/metrics")
    assert first.status_code == 200
    assert served.http().get("/metrics").content == first.content


def test_request_ids_of_trusted_proxies_are_kept(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), trusted_proxies="127.0.0.0/8")
    answer = served.http().get("/healthz", headers={"X-Request-Id": "trace-0001"})
    assert answer.headers["x-request-id"] == "trace-0001"
    odd = served.http().get("/healthz", headers={"X-Request-Id": "no spaces, please"})
    assert odd.headers["x-request-id"] != "no spaces, please"


def test_request_ids_of_other_callers_are_replaced(coordinator: Served) -> None:
    answer = coordinator.http().get("/healthz", headers={"X-Request-Id": "trace-0001"})
    assert answer.headers["x-request-id"] != "trace-0001"


@pytest.mark.slow
def test_a_second_process_on_sqlite_is_refused(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = fresh_database("sqlite")
    serve(url)
    refused = _tessera(["serve", "--port", "0"], tmp_path, TESSERA_DATABASE_URL=url)
    printed = refused.communicate(timeout=30)[1]
    assert refused.returncode == 1
    assert printed.startswith("error: another process serves")
    assert printed.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["no/such/folder/x.db", "notes.txt"])
def test_unusable_database_files_are_one_line_errors(tmp_path: Path, path: str) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, but a text that is long enough to be one\n" * 99)
    url = {"TESSERA_DATABASE_URL": f"sqlite:///{tmp_path / path}", "TESSERA_SIGNING_KEY": SIGNING_KEY}
    refused = _tessera(["serve", "--port", "0"], tmp_path, **url)
    printed = refused.communicate(timeout=30)[1]
    assert refused.returncode == 1
    assert printed.startswith("error: TESSERA_DATABASE_URL: "), printed
    assert path.removesuffix("/x.db") in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TESSERA_PORT", "eighty"),
        ("TESSERA_DATABASE_URL", "mysql://root:hunter2@localhost/x"),
        ("TESSERA_DATABASE_URL", "sqlite://"),
        ("TESSERA_DATABASE_URL", "sqlite:////no/such/folder/x.db"),
        ("TESSERA_DATABASE_URL", "postgresql://u:hunter2@127.0.0.1:1/x"),
        ("TESSERA_LOG_LEVEL", "loud"),
    ],
)
def test_unusable_settings_are_named_without_their_values(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("TESSERA_DATABASE_WAIT_SECONDS", "0")
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsUnusable) as refused:
        migrate()
    assert variable in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_service_waits_for_its_database_at_start(postgres: PostgresServer, tmp_path: Path) -> None:
    late = {"TESSERA_DATABASE_URL": postgres.url("created_later"), "TESSERA_SIGNING_KEY": SIGNING_KEY}
    process = _tessera(["serve", "--port", "0"], tmp_path, **late)
    waiting = json.loads(next(iter(process.stderr or [])))
    assert (waiting["event"], "created_later" in waiting["reason"]) == ("database-does-not-answer", True)
    postgres.create("created_later", template="tessera_template")
    assert _read_announcement(process)
    _stop(process)
    postgres.drop("created_later")


@pytest.mark.slow
def test_serve_writes_the_first_admin_token_once(tmp_path: Path) -> None:
    process = _tessera(["serve", "--port", "0"], tmp_path)
    first, url = _read_announcement(process)
    assert httpx.get(f"{url}/v1/tokens", headers={"Authorization": f"Bearer {first}"}).status_code == 200
    logs = _stop(process)
    assert first is not None
    assert first not in logs
    assert all(json.loads(line)["level"] for line in logs.splitlines())
    again = _tessera(["serve", "--port", "0"], tmp_path)
    second, url = _read_announcement(again)
    assert second is None
    assert httpx.get(f"{url}/v1/tokens", headers={"Authorization": f"Bearer {first}"}).status_code == 200
    _stop(again)


@pytest.mark.slow
def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        refused = _tessera(["serve", "--port", port], tmp_path, TESSERA_ADMIN_TOKEN=ADMIN_TOKEN)
        printed = refused.communicate(timeout=30)[1]
    assert refused.returncode == 1
    assert f"another program listens on 127.0.0.1:{port}" in printed
    assert "Traceback" not in printed


def test_open_event_streams_do_not_delay_the_stop(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"))
    federation_id = served.federation()
    with served.admin.stream("GET", f"/v1/federations/{federation_id}/events") as stream:
        next(stream.iter_raw())
        began = time.monotonic()
        served._server.handle_exit(15, None)
        served._thread.join(timeout=30)
        assert time.monotonic() - began < 5


def _tessera(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return subprocess.Popen(
        [Path(sys.executable).with_name("tessera"), *arguments],
        cwd=folder,
        env=variables | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _stop(process: subprocess.Popen[str]) -> str:
    """Stop the process with SIGTERM; return its log."""
    process.send_signal(signal.SIGTERM)
    logs = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    return logs


def _read_announcement(process: subprocess.Popen[str]) -> tuple[str | None, str]:
    """Read what `serve` prints: the file of the first admin's token, if any, and where it listens."""
    assert process.stdout is not None
    token: str | None = None
    for line in process.stdout:
        if match := re.search(r"first admin's token is in (\S+):", line):
            token = Path(match.group(1)).read_text("utf-8").strip()
            assert token not in line
        if "listens on" in line:
            return token, line.split()[-1]
    raise AssertionError(process.communicate())


def test_logs_contain_the_client_and_no_secret(coordinator: Served, caplog: pytest.LogCaptureFixture) -> None:
    federation_id = coordinator.federation()
    caplog.clear()
    silo = coordinator.enrol(federation_id, "a")
    silo.http.post(f"/v1/federations/{federation_id}/start")
    logged = " ".join(_record_text(record) for record in caplog.records)
    assert silo.client_id in logged
    assert ADMIN_TOKEN not in logged
    assert SIGNING_KEY not in logged
    assert "sig1=" not in logged


def _record_text(record: Any) -> str:
    return f"{record.getMessage()} {record.__dict__}"


@pytest.mark.parametrize(
    ("host", "proxies", "hints"),
    [
        ("127.0.0.1", "", []),
        ("localhost", "", []),
        ("::1", "", []),
        ("0.0.0.0", "", ["plain HTTP on a network: agents of other machines refuse it"]),
        ("192.0.2.7", "", ["plain HTTP on a network"]),
        ("0.0.0.0", "192.0.2.1", []),
        ("::", "192.0.2.1", ["IPv6 only"]),
        ("::", "", ["IPv6 only", "plain HTTP on a network"]),
    ],
)
def test_host_that_agents_refuse_has_a_hint(host: str, proxies: str, hints: list[str]) -> None:
    shown = list(listening_hints(Settings(_env_file=None, host=host, trusted_proxies=proxies)))
    assert len(shown) == len(hints)
    assert all(text.startswith(hint) for text, hint in zip(shown, hints, strict=True))
