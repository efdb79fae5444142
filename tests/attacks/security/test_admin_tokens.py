"""Tokens of persons: minimum length, expiry, no printing, and a limit of failed attempts."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from coordinator.db.engine import Database
from coordinator.enrolment import first_admin
from coordinator.errors import SettingsUnusable
from coordinator.server import load_settings
from tests.scene.coordinator import Served, coordinator_fixture, slug
from tests.scene.rounds import running, url

LIMIT = 3


served = coordinator_fixture("each", failed_tokens_per_minute=LIMIT, trusted_proxies="127.0.0.1")


@pytest.mark.parametrize("token", ["a", "x" * 19, " " * 20 + "a"])
def test_a_short_admin_token_prevents_the_start(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("TESSERA_ADMIN_TOKEN", token)
    with pytest.raises(SettingsUnusable, match=r"ADMIN_TOKEN: shorter than 20 .*openssl rand") as refused:
        load_settings()
    assert token not in str(refused.value).split()


def ask(served: Served, token: str, address: str = "192.0.2.1", path: str = "/v1/tokens") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
    return served.http().get(path, headers=headers)


def test_wrong_tokens_are_limited_by_address(served: Served) -> None:
    created = served.admin.post("/v1/tokens", json={"role": "admin", "name": "x"}).json()["token"]
    for number in range(LIMIT):
        assert slug(ask(served, f"guess-{number}")) == "credential-invalid"
    limited = ask(served, "guess")
    assert (limited.status_code, slug(limited)) == (429, "rate-limited")
    assert 1 <= int(limited.headers["retry-after"]) <= 65
    assert ask(served, created).status_code == 200
    assert ask(served, "guess", "192.0.2.2").status_code == 401


def test_wrong_tokens_are_limited_on_the_polling_route(served: Served) -> None:
    _, (silo, _) = running(served)
    path = url(silo, 1).replace("/1", "/current")
    answers = [ask(served, "tsr_cl_guess", path=path).status_code for _ in range(LIMIT + 1)]
    assert answers == [401] * LIMIT + [429]
    assert silo.http.get(path).status_code == 200


def test_wrong_tokens_beyond_the_limit_write_nothing(served: Served) -> None:
    for _ in range(3 * LIMIT):
        ask(served, "guess")
    with served.database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM failed_enrolments")) == LIMIT


def test_a_token_expires_after_ninety_days_by_default(served: Served) -> None:
    def expires_at(**request: int | None) -> str | None:
        created = served.admin.post("/v1/tokens", json={"role": "auditor", "name": "x"} | request)
        ends: str | None = created.json()["expires_at"]
        return ends

    ends = expires_at()
    assert ends is not None
    assert timedelta(days=89) < datetime.fromisoformat(ends) - datetime.now(UTC) <= timedelta(days=90)
    soon = expires_at(expires_in_seconds=60)
    assert soon is not None
    assert datetime.fromisoformat(soon) - datetime.now(UTC) <= timedelta(seconds=60)
    assert expires_at(expires_in_seconds=None) is None


def test_the_first_admin_token_file_has_mode_0600(
    fresh_database: Callable[[str], str], serve: Callable[..., Served]
) -> None:
    database = Database(fresh_database("sqlite"))
    try:
        file = first_admin.make_token(database)
        assert file == Path(f"{database.url.database}-admin-token")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert first_admin.make_token(database) is None, "somebody has one"
    finally:
        database.close()
    served = serve(database.url.render_as_string(), admin_token=None)
    admin = served.http(file.read_text().strip())
    (token,) = admin.get("/v1/tokens").json()["items"]
    assert token["expires_at"] is not None
    (entry,) = admin.get("/v1/audit").json()["items"]
    assert (entry["event"], entry["actor"], entry["subject"]) == (
        "person-token-made",
        "coordinator",
        token["id"],
    )


def test_an_unwritable_token_file_prevents_the_first_token(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "later" / "admin-token"
    monkeypatch.setattr(first_admin, "_token_file", lambda _: file)
    with pytest.raises(SettingsUnusable, match="openssl rand"):
        first_admin.make_token(database)
    file.parent.mkdir()
    assert first_admin.make_token(database) == file, "none was kept before"
