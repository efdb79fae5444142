"""The coordinator's signing key: its storage, and what it signs; copies of the database do not contain it."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from coordinator.db.engine import Database
from coordinator.db.tables.federations import Table
from coordinator.errors import SettingsUnusable
from coordinator.storage.server_key import ServerKey, load
from schemas.identity.documents import is_signed
from schemas.identity.enrolment_token import read
from schemas.identity.keys import encode, public_key, thumbprint
from tests.scene.coordinator import Served, slug

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def test_sqlite_keys_are_in_a_private_file(sqlite_database: Database, rows: Rows) -> None:
    first = load(sqlite_database, None)
    assert load(sqlite_database, None).public == first.public
    file = Path(f"{sqlite_database.url.database}-signing-key")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    url = sqlite_database.url.render_as_string()
    content = "".join(str(rows(url, f"SELECT * FROM {table}")) for table in Table.metadata.tables)
    assert first.public in content
    assert file.read_text().strip() not in content


def test_postgresql_needs_a_configured_key(postgres_database: Database) -> None:
    with pytest.raises(SettingsUnusable, match="TESSERA_SIGNING_KEY is not set"):
        load(postgres_database, None)


@pytest.mark.parametrize("text", ["short", "=" * 43, encode(bytes(31)), encode(bytes(33))])
def test_a_malformed_key_is_refused_without_showing_it(sqlite_database: Database, text: str) -> None:
    with pytest.raises(SettingsUnusable, match="TESSERA_SIGNING_KEY: not 32 bytes") as refused:
        load(sqlite_database, SecretStr(text))
    assert text not in str(refused.value)


def test_a_replica_with_another_key_does_not_start(database: Database) -> None:
    text = secrets.token_urlsafe(32)
    load(database, SecretStr(text))
    with pytest.raises(SettingsUnusable, match="set the same key on all replicas"):
        load(database, SecretStr(secrets.token_urlsafe(32)))
    assert load(database, SecretStr(text + "\n")).id


def test_enrolment_nonces_are_valid_for_an_hour() -> None:
    seed, moment = secrets.token_bytes(32), datetime(2026, 1, 1, tzinfo=UTC)
    key, replica, stranger = ServerKey(seed), ServerKey(seed), ServerKey(secrets.token_bytes(32))
    nonce = key.nonce(moment)
    assert replica.issued(nonce, moment + timedelta(minutes=59))
    assert not key.issued(nonce, moment + timedelta(minutes=61))
    assert not key.issued(nonce, moment - timedelta(minutes=1))
    assert not stranger.issued(nonce, moment)
    for place in range(len(nonce) - 1):
        altered = nonce[:place] + ("A" if nonce[place] != "A" else "B") + nonce[place + 1 :]
        assert not key.issued(altered, moment)
    assert not any(key.issued(text, moment) for text in ("", "=", "AAAA", "A" * 86))


def test_hello_signs_the_challenge_with_the_pinned_key(coordinator: Served) -> None:
    anonymous, challenge = coordinator.http(), "c" * 32
    hello = anonymous.get("/v1/hello", params={"challenge": challenge}).json()
    token = read(coordinator.enrolment_token(coordinator.federation(), "a"))
    assert thumbprint(hello["signing_key"]) == token.server
    assert hello["challenge"] == challenge
    key = public_key(hello["signing_key"])
    assert is_signed("tessera-hello-v1", hello, hello["signature"], key)
    assert not is_signed("tessera-hello-v1", hello | {"challenge": "d" * 32}, hello["signature"], key)
    for wrong in ("short", "c" * 65, "with space " * 2):
        refused = anonymous.get("/v1/hello", params={"challenge": wrong})
        assert (refused.status_code, slug(refused)) == (422, "validation")
