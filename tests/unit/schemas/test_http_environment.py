"""Proxies and certificates of the environment, as operator's commands and agents use them."""

from __future__ import annotations

import logging
import os

import pytest
import typer

from client_agent.errors import CoordinatorUnreachable, SettingsUnusable
from client_agent.transport.client import CoordinatorApi
from coordinator.cli.client import Coordinator
from coordinator.http.outgoing_requests import NoAnswer, request
from schemas.http_environment import EnvironmentUnusable, route_to

URL = "https://coordinator.example.org"
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_VARIABLES, *map(str.lower, _VARIABLES), *_FILES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080", "need the package socksio"),
        ("all_proxy", "socks5h://127.0.0.1:1080", "need the package socksio"),
        ("HTTPS_PROXY", "127.0.0.1:port", "is not the URL of a proxy"),
        ("https_proxy", "http://127.0.0.1:99999", "is not the URL of a proxy"),
        ("HTTPS_PROXY", "http://:3128", "is not the URL of a proxy"),
        ("HTTPS_PROXY", "ftp://127.0.0.1", "is not the URL of a proxy"),
        ("HTTPS_PROXY", "http://[::1:3128", "is not the URL of a proxy"),
        ("SSL_CERT_FILE", "/missing.pem", "no such file or directory"),
        ("SSL_CERT_FILE", os.devnull, "no certificate or crl found"),
        ("SSL_CERT_FILE", "/", "is a directory"),
        ("SSL_CERT_DIR", "/missing", "no such file or directory"),
        ("SSL_CERT_DIR", "/", "openssl rehash"),
        ("SSLKEYLOGFILE", "/missing/keys", "no such file or directory"),
    ],
)
def test_unusable_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(EnvironmentUnusable, match=reason) as raised:
        route_to(URL)
    assert str(raised.value).startswith(f"{variable} is {value}")
    with pytest.raises(SettingsUnusable, match=variable):
        CoordinatorApi(URL, key=None, deadline_seconds=0.0)
    with pytest.raises(NoAnswer, match="EnvironmentUnusable"):
        request("GET", URL, seconds=5, most_bytes=0)


def test_operators_command_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://name:secret@127.0.0.1:1")
    with pytest.raises(typer.Exit):
        Coordinator(URL, "token")
    printed = capsys.readouterr().err
    assert printed.startswith("error: ALL_PROXY is socks5://***@127.0.0.1:1")
    assert "secret" not in printed


def test_http_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/missing.pem")
    assert route_to("http://127.0.0.1:8000").proxy is None


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("[::1]", "[::1]"),
        ("::1", "[::1]:8000"),
        ("fd00::/8", "[fd12::1]"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3:8000"),
        ("example.org", "coordinator.example.org"),
        (".example.org", "coordinator.example.org"),
        ("*.example.org", "coordinator.example.org"),
        ("example.org:443", "coordinator.example.org"),
        ("https://example.org", "example.org"),
        ("a b,*", "example.org"),
        ("LOCALHOST", "localhost"),
    ],
)
def test_excluded_host_has_no_proxy(monkeypatch: pytest.MonkeyPatch, entry: str, host: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", entry)
    assert route_to(f"https://{host}").proxy is None
    assert route_to("https://example.net").proxy == (
        "http://proxy.example.com:3128" if entry[-1] != "*" else None
    )


@pytest.mark.parametrize("entry", ["fd00::/999", "[::1", "a b", "10.0.0.0/8/8", "example.org:port", "::g/4"])
def test_unparsable_entry_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, entry: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", f"{entry},example.org")
    with caplog.at_level(logging.WARNING, "tessera.http"):
        assert route_to(URL).proxy is None
        assert route_to("https://example.net").proxy is not None
    assert [record.getMessage() for record in caplog.records] == [
        f"no_proxy: the entry {entry!r} is left out, as it is no host, address, range of addresses or "
        "domain; correct it"
    ]


def test_unreachable_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "127.0.0.1:1")
    url = "http://coordinator.example.org"
    with (
        CoordinatorApi(url, key=None, deadline_seconds=0.0, sleep=lambda _: None) as api,
        pytest.raises(CoordinatorUnreachable, match=r"through the proxy in HTTP_PROXY"),
    ):
        api.hello()
