"""A coordinator below a path of nginx and of Caddy, with the lines of docs/how-to/deploy.md."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from client_agent.errors import AddressMismatch
from client_agent.identity.membership import enrol, read_key
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from schemas.identity.signed_requests import Target, sign
from schemas.messages.enrolment import Profile
from tests.acceptance.system.programs import program
from tests.scene.agent_processes import tessera
from tests.scene.coordinator import ADMIN_TOKEN, PROFILE, Served, coordinator_fixture
from tests.scene.replica_processes import free_port
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md"
AGENT = Profile.model_validate(PROFILE)


@dataclass(frozen=True)
class Front:
    """A proxy with the coordinator below /tessera."""

    url: str
    trust: Path | None = None
    """The certificate of its authority; None = plain HTTP."""


served = coordinator_fixture("sqlite", root_path="/tessera", trusted_proxies="127.0.0.1")


@pytest.fixture(params=["nginx", "caddy"])
def front(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[Front]:
    with (_nginx if request.param == "nginx" else _caddy)(served, tmp_path) as running:
        yield running


def lines_of(language: str, served: Served) -> str:
    """Return the block of the page, with the address of this coordinator."""
    block = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return block[1].replace("127.0.0.1:8000", served.url.removeprefix("http://"))


@contextmanager
def _nginx(served: Served, folder: Path) -> Iterator[Front]:
    port = free_port()
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\nevents {{}}\nhttp {{\n"
        f"access_log off;\n{temporary}"
        f"server {{\nlisten 127.0.0.1:{port};\n{lines_of('nginx', served)}}}\n}}\n"
    )
    with _running([program("nginx"), "-c", f"{folder}/nginx.conf", "-e", "stderr"], folder, port):
        yield Front(f"http://127.0.0.1:{port}/tessera")


@contextmanager
def _caddy(served: Served, folder: Path) -> Iterator[Front]:
    port = free_port()
    (folder / "Caddyfile").write_text(
        "{\nadmin off\nauto_https disable_redirects\nskip_install_trust\n}\n"
        f"https://localhost:{port} {{\ntls internal\n{lines_of('caddy', served)}}}\n"
    )
    command = [program("caddy"), "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]
    with _running(command, folder, port):
        authority = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        wait_until(authority.exists)
        yield Front(f"https://localhost:{port}/tessera", authority)


@contextmanager
def _running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run a proxy until the block ends; wait until it listens."""
    environment = os.environ | {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def listens() -> bool:
        assert process.poll() is None, (folder / "proxy.log").read_text()[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_an_agent_enrols_and_sends_signed_requests(
    served: Served, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if front.trust is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(front.trust))
    federation_id = served.federation(rounds={"min_clients": 1})
    token, folder = served.enrolment_token(federation_id, "aster"), tmp_path / "agent"
    folder.mkdir()
    with (
        CoordinatorApi(served.url, key=None, deadline_seconds=0) as api,
        pytest.raises(AddressMismatch, match=f"{served.url}/tessera"),
    ):
        enrol(api, folder, token=token, name="aster", profile=AGENT)
    with CoordinatorApi(front.url, key=None, deadline_seconds=0) as api:
        member = enrol(api, folder, token=token, name="aster", profile=AGENT)
    key = read_key(folder)
    with CoordinatorApi(front.url, key=key, deadline_seconds=0) as api:
        assert api.me().client_id == member.client_id
        assert isinstance(api.current_round(federation_id, wait_seconds=1), NoOpenRound)
        served.start_federation(federation_id)
        joined = api.join(federation_id, 1, None)
        assert api.weights(federation_id, 1).digest == joined.weights.digest
    if front.trust is not None:
        url = httpx.URL(front.url)
        target = Target("GET", url.netloc.decode(), f"{url.path}/v1/me", "", None)
        fields = sign(target, key, created=int(time.time()), nonce="nonce-over-http-2")
        headers = [part for name, value in fields.items() for part in ("--header", f"{name}: {value}")]
        sent = ["curl", "--silent", "--http2", "--cacert", str(front.trust), "--write-out", "%{http_version}"]
        answer = subprocess.check_output([*sent, *headers, f"{front.url}/v1/me"], text=True)
        assert json.loads(answer.removesuffix("2"))["client_id"] == member.client_id
        assert answer.endswith("}2"), answer


def test_the_operators_commands_and_events_work(served: Served, front: Front) -> None:
    federation_id = served.federation()
    variables = {"TESSERA_URL": front.url, "TESSERA_TOKEN": ADMIN_TOKEN}
    if front.trust is not None:
        variables |= {"SSL_CERT_FILE": str(front.trust)}
    listed = tessera("federation", "list", "--json", **variables)
    assert [row["id"] for row in json.loads(listed.stdout)] == [federation_id], listed.stderr
    assert tessera("federation", "start", federation_id, **variables).returncode == 0
    events = f"{front.url}/v1/federations/{federation_id}/events"
    fields = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Last-Event-ID": "0"}
    with (
        httpx.Client(verify=ssl.create_default_context(cafile=front.trust), timeout=20) as http,
        http.stream("GET", events, headers=fields) as stream,
    ):
        assert next(line for line in stream.iter_lines() if line.startswith("event:")) == "event: round"


@pytest.mark.parametrize("front", ["nginx"], indirect=True)
def test_page_and_api_docs_work_below_the_path(page: Page, served: Served, front: Front) -> None:
    served.federation()
    page.goto(front.url)
    expect(page).to_have_url(f"{front.url}/")
    page.get_by_label("Token").fill(ADMIN_TOKEN)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("#headline")).not_to_be_empty()
    assert page.evaluate("Object.keys({...sessionStorage})") == ["token/tessera"]
    page.goto(f"{front.url}/docs")
    expect(page.locator("#api .opblock").first).to_be_visible()
    expect(page.locator("#api .servers select")).to_have_value("/tessera")
