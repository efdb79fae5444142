"""Refusal of plain HTTP to other machines without explicit permission."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from client_agent.errors import CoordinatorUnreachable, SettingsUnusable
from client_agent.settings import read_settings
from client_agent.transport.client import CoordinatorApi
from coordinator import cli
from schemas.identity.plain_http import is_exposed
from tests.scene.coordinator import ADMIN_TOKEN

REMOTE = "http://192.0.2.1:1"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "HTTP://192.0.2.1",
        "http://localhost.example.org",
        "http://[2001:db8::1]/",
        "http://",
    ],
)
def test_plain_http_to_another_machine_is_exposed(url: str) -> None:
    assert is_exposed(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "http://localhost:8000",
        "http://LOCALHOST.",
        "http://127.1.2.3",
        "http://[::1]:9",
    ],
)
def test_https_and_loopback_are_not_exposed(url: str) -> None:
    assert not is_exposed(url)


def silo(folder: Path, url: str, more: str = "") -> Path:
    file = folder / "silo.toml"
    file.write_text(f'url = "{url}"\nmodel = "m"\ntrain = "t.jsonl"\n{more}')
    return file


def test_an_agent_refuses_plain_http_without_insecure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = silo(tmp_path, "http://tessera.example.org")
    with pytest.raises(SettingsUnusable, match=r"insecure: http://tessera.example.org/ is not encrypted"):
        read_settings(file)
    assert read_settings(silo(tmp_path, "https://tessera.example.org")).insecure is False
    assert read_settings(silo(tmp_path, "http://127.0.0.1:8000")).insecure is False
    assert read_settings(silo(tmp_path, "http://tessera.example.org", "insecure = true")).insecure is True
    monkeypatch.setenv("TESSERA_AGENT_INSECURE", "true")
    assert read_settings(silo(tmp_path, "http://tessera.example.org")).insecure is True


def run(*arguments: str, url: str = REMOTE, token: str = ADMIN_TOKEN, **environment: str) -> Result:
    app = Typer()
    cli.commands(app)
    return CliRunner().invoke(
        app, [*arguments, "--url", url], env={"TESSERA_TOKEN": token} | environment, catch_exceptions=False
    )


@pytest.mark.parametrize(
    "command", [("audit",), ("token", "list"), ("federation", "list"), ("client", "list", "f")]
)
def test_a_command_sends_no_token_in_the_clear(command: tuple[str, ...]) -> None:
    refused = run(*command)
    assert refused.exit_code == 1
    assert f"{REMOTE} is not encrypted" in refused.output
    assert "--insecure" in refused.output


def test_a_command_uses_plain_http_with_insecure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.cli.client._SECONDS", 0.2)
    for allowed in (run("audit", "--insecure"), run("audit", TESSERA_INSECURE="true")):
        assert allowed.exit_code == 1
        assert "does not answer" in allowed.output
    assert "is not encrypted" in run("audit").output, "what one command was told is not the next one's"


def test_a_server_without_tls_is_named() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}"
        refused = run("audit", url=url)
        with pytest.raises(CoordinatorUnreachable, match="the answer is not TLS: check port and proxy"):
            CoordinatorApi(url, key=None, deadline_seconds=0).hello()
        server.shutdown()
    assert "the answer is not TLS: check port and proxy, or write http:// for this machine" in refused.output
