"""Two replicas on PostgreSQL behind the real Caddy with the file that Compose gives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.system.caddy import PORT_BEHIND, URL, Caddy, caddy
from tests.faults.stress.agents import wait_for_the_end
from tests.faults.stress.one_hot import Trial, check, taking_part
from tests.scene.coordinator import ADMIN_TOKEN
from tests.scene.replica_processes import Coordinator
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ADDRESSES = ("127.0.0.2", "127.0.0.3")
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture
def database_url(fresh_postgres: Callable[[], str]) -> str:
    return fresh_postgres()


@pytest.fixture
def replicas(database_url: str, tmp_path: Path) -> Iterator[list[Coordinator]]:
    both = [
        Coordinator(
            database_url,
            tmp_path / f"log-{host}",
            host=host,
            port=PORT_BEHIND,
            TESSERA_PUBLIC_NAMES="localhost,caddy",
            TESSERA_TRUSTED_PROXIES="127.0.0.1/32",
        )
        for host in ADDRESSES
    ]
    for replica in both:
        replica.start()
    yield both
    for replica in both:
        replica.kill()


@pytest.fixture
def proxy(replicas: list[Coordinator], tmp_path: Path) -> Iterator[Caddy]:
    folder = tmp_path / "caddy"
    folder.mkdir()
    with caddy(folder, ADDRESSES, TESSERA_MAX_BODY="256MiB") as running:
        yield running


def test_killing_each_replica_in_turn_loses_nothing(
    database_url: str, replicas: list[Coordinator], proxy: Caddy
) -> None:
    trial = Trial(clients=4, rounds=12)
    go_on = threading.Event()
    go_on.set()
    with taking_part(trial, [URL], go_on) as (federation_id, agents):
        for replica, after in zip(replicas, (3, 7), strict=True):
            wait_until(lambda number=after: min(len(agent.receipts) for agent in agents) >= number)
            replica.kill()
            wait_until(lambda number=after: min(len(agent.receipts) for agent in agents) >= number + 2)
            replica.start()
        wait_for_the_end(agents)
        check(trial, database_url, federation_id, agents)
    for replica in replicas:
        assert replica.log.read_text().count("update-accepted") > 0, "Caddy left one of the two idle"


def test_caddy_has_its_own_authority_and_drops_forgeries(replicas: list[Coordinator], proxy: Caddy) -> None:
    with httpx.Client(base_url=URL, verify=proxy.trust, headers=ADMIN, trust_env=False) as admin:
        created = admin.post("/v1/federations", json={"name": "a", "strategy": {"name": "fedavg"}})
        assert created.status_code == 201, created.text
        forged = {"X-Forwarded-For": "203.0.113.9"}
        token = {"token": "tsr1_no_such", "name": "a", "profile": {}}
        assert admin.post("/v1/enrolments", json=token, headers=forged).status_code in (401, 422)
    output = "".join(replica.log.read_text() for replica in replicas)
    assert "203.0.113.9" not in output


def test_events_come_through_at_once(replicas: list[Coordinator], proxy: Caddy) -> None:
    with httpx.Client(base_url=URL, verify=proxy.trust, headers=ADMIN, trust_env=False, timeout=20) as admin:
        plan = {"name": "a", "strategy": {"name": "fedavg"}}
        federation_id = admin.post("/v1/federations", json=plan).json()["id"]
        with admin.stream("GET", f"/v1/federations/{federation_id}/events") as events:
            assert admin.post(f"/v1/federations/{federation_id}/start").status_code == 200
            event = next(line for line in events.iter_lines() if line.startswith("event:"))
    assert event == "event: round"


def test_caddy_refuses_a_body_above_its_limit(replicas: list[Coordinator], tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with (
        caddy(folder, ADDRESSES, TESSERA_MAX_BODY="1KiB") as proxy,
        httpx.Client(base_url=URL, verify=proxy.trust, headers=ADMIN, trust_env=False) as admin,
    ):
        plan = {"name": "a" * 4096, "strategy": {"name": "fedavg"}}
        refused = admin.post("/v1/federations", json=plan)
        assert refused.status_code in (413, 502)  # 502 is what Caddy said before it had a better word
        assert "server" in refused.headers, "it was not Caddy who refused"
        assert admin.get("/v1/federations").json()["items"] == []
