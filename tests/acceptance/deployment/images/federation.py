"""The composition in the built images: what `docker compose --profile agents up` does, and checks."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.deployment.composition import ROOT, SERVICES
from tests.acceptance.deployment.images.builds import Image, Step
from tests.acceptance.deployment.images.runtime import Container, Machine

AGENTS = ("aster", "cedar")
_LIMIT = 900.0  # seconds that any step may take on a loaded machine
_START_INTERVAL = 5  # seconds between health checks of a starting container, as in Docker
_FAILURES = (AssertionError, OSError, httpx.HTTPError, KeyError, ValueError, subprocess.SubprocessError)


@dataclass
class Outcome:
    """The results: a row for each container, and statements that hold or fail."""

    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    """Seconds of each round, from its opening to the publication of its weights."""

    @contextmanager
    def holds(self, text: str) -> Iterator[None]:
        """Record a sentence as holding unless its block raises."""
        try:
            yield
        except _FAILURES as failed:
            self.failures.append(f"{text}: {type(failed).__name__}: {failed}")
        else:
            self.checks.append(text)


class Failed(AssertionError):
    """A container did not reach the state that the next container needs."""


def run_the_composition(folder: Path, images: Mapping[str, Image]) -> Outcome:
    """Start every service in the order of the composition, wait for the federation's end, and stop all."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    subprocess.run(["sh", folder / "deploy" / "make_secrets.sh"], check=True, stdout=subprocess.DEVNULL)
    outcome = Outcome()
    machine = Machine(folder, images)
    started = False
    try:
        with outcome.holds("every service starts in the order of docker-compose.yml and becomes healthy"):
            for service in in_order():
                _start(machine, service, outcome)
                if service not in AGENTS:  # nothing waits for these, which compose starts together
                    _await(machine, service, outcome)
            for service in AGENTS:
                _await(machine, service, outcome)
            started = True
        if started:
            _check_tls(machine, outcome)
            _finish(machine, outcome)
            _check_results(machine, outcome)
    finally:
        _stop(machine, outcome)
        machine.stop()
    _check_secrets(machine, outcome)
    return outcome


def in_order() -> list[str]:
    """Services, each after those that it depends on."""
    order: list[str] = []

    def visit(service: str) -> None:
        for needed in SERVICES[service].get("depends_on", {}):
            visit(needed)
        if service not in order:
            order.append(service)

    for service in SERVICES:
        visit(service)
    return order


def _start(machine: Machine, service: str, outcome: Outcome) -> None:
    for container in machine.start(service):
        _begin_row(container, outcome)


def _await(machine: Machine, service: str, outcome: Outcome) -> None:
    """Wait until a service has ended with status 0 or is healthy, as its dependants need it."""
    once = SERVICES[service].get("restart") == "no"
    for name in machine.replicas(service):
        container = machine.containers[name]
        with Step(f"{name}", {}):
            if once:
                _expect(container.wait(_LIMIT) == 0, container)
            else:
                _until_healthy(container, outcome.containers[name])
                _check_confinement(container, outcome)
        outcome.containers[name]["ready"] = time.monotonic() - container.began


def _begin_row(container: Container, outcome: Outcome) -> None:
    outcome.containers[container.name] = {
        "ready": 0.0,
        "health": None,
        "health_limit": container.health_timeout,
        "memory": 0,
        "memory_limit": container.memory_limit >> 20,
        "threads": 0,
        "threads_limit": container.threads_limit,
        "stopped": None,
        "grace": container.grace,
        "status": "",
    }


def _until_healthy(container: Container, row: dict[str, Any]) -> None:
    deadline = time.monotonic() + _LIMIT
    while True:
        status, seconds, output = container.execute(container.health_argv, timeout=_LIMIT)
        if status == 0 and seconds <= container.health_timeout:
            row["health"] = seconds
            return
        _expect(container.running and time.monotonic() < deadline, container, output)
        time.sleep(_START_INTERVAL)


def _expect(fact: bool, container: Container, more: str = "") -> None:
    if not fact:
        lines = "\n".join(container.printed().splitlines()[-30:])
        raise Failed(f"{container.name} failed; its log ends with:\n{lines}\n{more}")


def _check_confinement(container: Container, outcome: Outcome) -> None:
    """Read from /proc what the kernel allows the container's processes."""
    name = container.name
    with outcome.holds(f"{name}: its user, no capability, no new privileges, a filter of system calls"):
        assert "build" not in container.own or container.image.config["User"] == container.own["user"]
        for pid in _processes(container):
            status = dict(
                line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            assert set(status["Uid"].split()) == {str(container.uid)}, status["Uid"]
            assert set(status["Gid"].split()) == {str(container.gid)}, status["Gid"]
            assert set(status["Groups"].split()) <= {str(container.gid)}, status["Groups"]
            for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(status[kind], 16) == 0, f"{kind} {status[kind]}"
            assert status["NoNewPrivs"].strip() == "1"
            assert status["Seccomp"].strip() == ("2" if container.machine.seccomp else "0")
    with outcome.holds(
        f"{name}: a read-only root; only tmpfs and volumes of docker-compose.yml are writable"
    ):
        writable = set()
        for line in Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            fields = before.split()
            if "ro" not in fields[5].split(",") and after.split()[0] not in ("proc", "devpts", "mqueue"):
                writable.add(fields[4])
        allowed = {text.partition(":")[0] for text in container.own.get("tmpfs", [])}
        allowed |= {v.split(":")[1] for v in container.own.get("volumes", []) if not v.endswith(":ro")}
        allowed = {place.replace("/var/run/", "/run/") for place in allowed} | {"/dev", "/dev/shm"}
        devices = {place for place in writable if place.startswith("/dev/")}
        assert "/" not in writable
        assert writable - devices <= allowed, writable - devices - allowed


def _processes(container: Container) -> list[int]:
    processes = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and str((path / "ns/pid").readlink()) == container.space:
                processes.append(int(path.name))
        except OSError:
            continue
    assert processes
    return processes


def _client(machine: Machine) -> httpx.Client:
    """Return a client that calls Caddy at port 8443, in place of port 443 of a real machine."""
    address = machine.addresses_of("caddy", "caddy")["outside"]
    trust = ssl.create_default_context(cafile=str(_authority(machine)))
    token = (machine.folder / "secrets/tessera_admin_token").read_text()
    return httpx.Client(
        base_url=f"https://{address}:8443",
        headers={"Authorization": f"Bearer {token}", "Host": "localhost"},
        verify=trust,
        trust_env=False,
        timeout=60,
    )


def _authority(machine: Machine) -> Path:
    return machine.volume("certificates") / "pki/authorities/local/root.crt"


def _ask(machine: Machine, path: str) -> Any:
    with _client(machine) as client:
        reply = client.get(path, extensions={"sni_hostname": "localhost"})
        reply.raise_for_status()
        return reply.json()


def _check_tls(machine: Machine, outcome: Outcome) -> None:
    address = machine.addresses_of("caddy", "caddy")["outside"]
    with outcome.holds("Caddy: its own authority signs localhost, and the coordinator answers behind it"):
        assert _ask(machine, "/v1/federations")["items"]
    with outcome.holds("Caddy: who does not trust its authority gets no connection"):
        try:
            raw = socket.create_connection((address, 8443), timeout=10)
            ssl.create_default_context().wrap_socket(raw, server_hostname="localhost").close()
        except ssl.SSLCertVerificationError:
            pass
        else:
            raise AssertionError("an unknown authority was trusted")
    with outcome.holds("Caddy: plain HTTP is sent on to HTTPS"):
        reply = httpx.get(f"http://{address}:8080/", headers={"Host": "localhost"}, trust_env=False)
        assert reply.status_code == 308, reply.status_code
        assert reply.headers["location"].startswith("https://localhost"), reply.headers["location"]
    with outcome.holds("agents share no network with the coordinator or the database"):
        for service, port in (("coordinator", 8000), ("postgres", 5432)):
            for replica in machine.replicas(service):
                for address in machine.addresses_of(replica, service).values():
                    probe = f"import socket; socket.create_connection(({address!r}, {port}), timeout=3)"
                    status, _, output = machine.containers["aster"].execute(["python", "-c", probe])
                    assert status != 0, f"aster reaches {replica}"
                    assert "unreachable" in output or "timed out" in output, output


def _finish(machine: Machine, outcome: Outcome) -> None:
    """Wait for both agents, whose federation ends by itself."""
    with Step("federation of three rounds", {}), outcome.holds("both agents end by themselves with status 0"):
        for name in AGENTS:
            container = machine.containers[name]
            _expect(container.wait(_LIMIT) == 0, container)


def _check_results(machine: Machine, outcome: Outcome) -> None:
    with outcome.holds("all three rounds are published with both updates, and the federation is finished"):
        (federation,) = _ask(machine, "/v1/federations")["items"]
        rounds = _ask(machine, f"/v1/federations/{federation['id']}/rounds")["items"]
        assert federation["state"] == "finished", federation["state"]
        assert [(r["state"], r["counts"]["arrived"]) for r in rounds] == [("published", 2)] * 3
        for entry in sorted(rounds, key=lambda entry: entry["round"]):
            opened, published = (datetime.fromisoformat(entry[key]) for key in ("opened_at", "published_at"))
            outcome.rounds.append((published - opened).total_seconds())
            print(f"round {entry['round']} ... {outcome.rounds[-1]:.0f} s")
    for name in AGENTS:
        with outcome.holds(f"{name}: its volume has the final weights"):
            (weights,) = machine.volume(name).glob("**/final_weights.safetensors")
            assert weights.stat().st_size > 1000
            assert weights.stat().st_uid == machine.containers[name].uid
    with outcome.holds("setup and a finished agent can be started again, as a repeated `up` does"):
        for service in ("setup", "aster"):
            (container,) = machine.start(service)
            _expect(container.wait(_LIMIT) == 0, container)


def _stop(machine: Machine, outcome: Outcome) -> None:
    for container in reversed(machine.containers.values()):
        row = outcome.containers[container.name]
        row["memory"], row["threads"] = container.peak.bytes >> 20, container.peak.threads
        if container.running:
            with (
                Step(f"stopping {container.name}", {}),
                outcome.holds(f"{container.name}: stops in time"),
            ):
                row["status"], row["stopped"] = container.stop(container.grace)
                assert row["status"] == 0, row["status"]
        else:
            row["status"] = container.wait(0)
    with outcome.holds("memory and threads stay below the limits of the composition"):
        for name, row in outcome.containers.items():
            assert row["memory"] < row["memory_limit"], f"{name} had {row['memory']} MiB"
            assert row["threads"] < row["threads_limit"], f"{name} had {row['threads']} threads"


def _check_secrets(machine: Machine, outcome: Outcome) -> None:
    with outcome.holds("no secret is in a log, and nothing but mount points is in a root"):
        secrets = {path.name: path.read_text() for path in (machine.folder / "secrets").iterdir()}
        for name, container in machine.containers.items():
            log = container.printed()
            for secret, value in secrets.items():
                assert value not in log, f"{secret} is in the log of {name}"
            written = [p for p in (container.bundle / "upper").rglob("*") if p.is_file() and p.stat().st_size]
            assert not written, f"{name} wrote {written}"
