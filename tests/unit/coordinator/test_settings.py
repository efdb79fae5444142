from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from coordinator.errors import SettingsUnusable
from coordinator.server import load_settings
from coordinator.settings import suggestions, unread, variable_names

WITHOUT_PASSWORD = "postgresql://tessera@postgres/tessera"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("ADMIN_TOKEN", "DATABASE_URL", "DATABASE_PASSWORD"):
        monkeypatch.delenv(f"TESSERA_{variable}", raising=False)
    monkeypatch.setenv("TESSERA_SECRETS_DIR", str(tmp_path))
    return tmp_path


def test_secret_files_are_read_without_their_final_newline(secrets: Path) -> None:
    (secrets / "tessera_admin_token").write_text("long and random enough\n")
    token = load_settings().admin_token
    assert token is not None
    assert token.get_secret_value() == "long and random enough"


def test_options_without_a_secret_file_keep_their_default(secrets: Path) -> None:
    assert load_settings().admin_token is None
    assert load_settings().database_url == "sqlite:///tessera.db"


def test_the_environment_overrides_a_secret_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "tessera_admin_token").write_text("a token from the file")
    monkeypatch.setenv("TESSERA_ADMIN_TOKEN", "from the environment")
    token = load_settings().admin_token
    assert token is not None
    assert token.get_secret_value() == "from the environment"


def test_the_database_password_is_escaped_in_the_url(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy import make_url

    (secrets / "tessera_database_password").write_text("p@ss/w:rd%20?")
    monkeypatch.setenv("TESSERA_DATABASE_URL", WITHOUT_PASSWORD)
    settings = load_settings()
    assert make_url(settings.database_url).password == "p@ss/w:rd%20?"
    assert make_url(settings.database_url).host == "postgres"
    assert "p@ss" not in repr(settings.database_password)


@pytest.mark.parametrize(
    "url", ["postgresql://tessera:own@postgres/tessera", "sqlite:///file.db", "postgresql:///peer"]
)
def test_urls_that_need_no_password_are_unchanged(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    (secrets / "tessera_database_password").write_text("other")
    monkeypatch.setenv("TESSERA_DATABASE_URL", url)
    assert load_settings().database_url == url


def test_an_empty_password_file_is_refused(secrets: Path) -> None:
    (secrets / "tessera_database_password").write_text("\n")
    with pytest.raises(SettingsUnusable, match=r"TESSERA_DATABASE_PASSWORD: .*file is empty"):
        load_settings()


def test_a_missing_secrets_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESSERA_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(SettingsUnusable, match=r"TESSERA_SECRETS_DIR: there is no folder .*/none"):
        load_settings()


def test_an_unreadable_file_is_named_with_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unprivileged, me = 65534, os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "tessera_admin_token"
        file.write_text("x")
        file.chmod(0o000)
        monkeypatch.setenv("TESSERA_SECRETS_DIR", folder)
        if me == 0:  # root would read it all the same
            os.seteuid(unprivileged)
        try:
            with pytest.raises(SettingsUnusable) as refused:
                load_settings()
        finally:
            os.seteuid(me)
    assert f"user {unprivileged if me == 0 else me} cannot read it" in str(refused.value)
    assert str(file) in str(refused.value)


def test_an_empty_variable_keeps_the_default(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "tessera_admin_token").write_text("a token from the file")
    for variable in ("NAME", "DASHBOARD", "LOG_LEVEL", "AGGREGATION_BLOCK_MIB", "ADMIN_TOKEN"):
        monkeypatch.setenv(f"TESSERA_{variable}", "")
    settings = load_settings()
    assert (settings.name, settings.dashboard, settings.log_level) == ("Tessera", True, "info")
    assert settings.admin_token is not None


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        ("PUBLIC_NAMES", "https://tessera.example.org", "is not a host name"),
        (
            "PUBLIC_NAMES",
            "localhost, tessera.example.org/path",
            "tessera.example.org/path is not a host name",
        ),
        ("TRUSTED_PROXIES", "caddy", "'caddy' does not appear to be an IPv4 or IPv6 network"),
        ("TRUSTED_PROXIES", "127.0.0.1,10.0.0.1/8", "10.0.0.1/8 has host bits set"),
    ],
)
def test_malformed_list_items_are_named(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, error: str
) -> None:
    monkeypatch.setenv(f"TESSERA_{variable}", value)
    with pytest.raises(SettingsUnusable, match=f"TESSERA_{variable}: .*{error}"):
        load_settings()


def test_public_names_and_proxies_accept_several_forms(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_PUBLIC_NAMES", "Tessera.Example.ORG:8443, [::1],  10.0.0.5, caddy,")
    monkeypatch.setenv("TESSERA_TRUSTED_PROXIES", "*, 10.0.0.5, 172.16.0.0/12, fd00::/8")
    settings = load_settings()
    assert settings.goes_by("tessera.example.org:8443")
    assert settings.goes_by("[::1]:80")
    assert settings.goes_by("caddy")
    assert not settings.goes_by("tessera.example.org:443")
    assert not settings.goes_by("")


def test_unread_variables_are_named() -> None:
    variables = ["TESSERA_NAME", "tessera_port", "TESSERA_AGENT_URL", "TESSERA_SECRETS_DIR", "TESSERA_DOMAIN"]
    assert unread([*variables, "PATH", "TESSERA_KEEP_ROUND", "TESSERA_ADMIN_TOKENS"]) == [
        "TESSERA_ADMIN_TOKENS",
        "TESSERA_KEEP_ROUND",
    ]


def test_suggestions_name_the_nearest_variable(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_KEEP_ROUND", "3")
    (secrets / "tessera_signing_keys").write_text("x")
    misspelt = unread(variable_names())
    assert {"TESSERA_KEEP_ROUND", "TESSERA_SIGNING_KEYS"} <= {*misspelt}
    assert suggestions(["TESSERA_KEEP_ROUND", "TESSERA_SIGNING_KEYS", "TESSERA_XYZ"]) == {
        "TESSERA_KEEP_ROUND": "TESSERA_KEEP_ROUNDS",
        "TESSERA_SIGNING_KEYS": "TESSERA_SIGNING_KEY",
        "TESSERA_XYZ": None,
    }
