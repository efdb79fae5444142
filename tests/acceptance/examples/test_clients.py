"""The small clients of the examples against a coordinator."""

from __future__ import annotations

import ast
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scene.coordinator import Served, coordinator_fixture, slug
from tests.scene.rounds import PLAN, show

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"
ROUNDS = {"total": 2, "min_clients": 2, "collect_seconds": 120}


served = coordinator_fixture("sqlite", tick_seconds=0.05, retry_seconds=0.2)


def run(served: Served, folder: Path, command: list[str], **plan: Any) -> tuple[str, list[str]]:
    """Run two clients to the end; return the federation and their output."""
    federation_id = served.federation(**PLAN | {"rounds": ROUNDS} | plan)
    served.start_federation(federation_id)
    processes = []
    for name in ("first", "second"):
        process = subprocess.Popen(
            [*command, served.url, name, str(folder / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(served.enrolment_token(federation_id, name) + "\n")
        process.stdin.flush()
        processes.append(process)
    output = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], output
    assert served.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "finished"
    for number in (1, 2):
        assert show(served, federation_id, number)["counts"] == {
            "joined": 2,
            "arrived": 2,
            "late": 0,
            "dropped": 0,
            "rejected": 0,
        }
    return federation_id, output


def identities(served: Served, federation_id: str) -> set[str]:
    items = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    return {client["identity"] for client in items}


def test_the_signing_client_imports_httpx_and_cryptography_only() -> None:
    tree = ast.parse((CLIENTS / "signed_client.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert foreign == {"httpx", "cryptography"}


@pytest.mark.slow
def test_the_signing_client_completes_a_federation(served: Served, tmp_path: Path) -> None:
    federation_id, output = run(served, tmp_path, [sys.executable, str(CLIENTS / "signed_client.py")])
    assert all("finished before round 3" in line for line in output)
    assert identities(served, federation_id) == {"key"}
    assert stat.S_IMODE((tmp_path / "first" / "client.key").stat().st_mode) == 0o600
    client = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"][0]["client_id"]
    state = served.admin.get(f"/v1/federations/{federation_id}/clients/{client}/adapter", params={"round": 2})
    np.testing.assert_array_equal(np.frombuffer(state.content[-24:], "<f4"), np.full(6, 2.0))


@pytest.mark.slow
def test_the_signing_client_supports_same_architecture_lora(served: Served, tmp_path: Path) -> None:
    plan = {"adapter": {"rank": 2, "same_architecture_rank": 2}, "strategy": {"name": "fedavg"}}
    _, output = run(served, tmp_path, [sys.executable, str(CLIENTS / "signed_client.py")], **plan)
    assert all("finished before round 3" in line for line in output)


def test_the_signing_client_prints_the_coordinators_error(served: Served, tmp_path: Path) -> None:
    spent = served.enrolment_token(served.federation(**PLAN), "first")
    command = [sys.executable, str(CLIENTS / "signed_client.py"), served.url, "other", str(tmp_path)]
    ended = subprocess.run(command, input=spent, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert '"status": 4' in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "jq", "openssl"))), reason="needs curl, jq and openssl"
)
def test_the_curl_client_completes_a_federation(served: Served, tmp_path: Path) -> None:
    command = ["sh", str(CLIENTS / "bearer_client.sh")]
    federation_id, output = run(served, tmp_path, command, privacy={"allow_bearer_clients": True})
    assert all("finished before round 3" in line for line in output)
    assert identities(served, federation_id) == {"bearer"}
    refused = served.http().get(f"/v1/federations/{federation_id}/rounds/current")
    assert slug(refused) == "auth-missing"
