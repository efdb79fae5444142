"""Conformance of the service to its OpenAPI document, for generated requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_agent.identity.membership import encode_pem
from tests.scene.coordinator import ADMIN_TOKEN, PROFILE, Served
from tests.scene.rounds import join, running

# What is right in form may still be refused for its meaning: an unknown strategy, another protocol version.
# A revoked token stays readable, so that people can see when it was revoked.
EXCLUDED = "positive_data_acceptance,use_after_free"

# Its bodies are tensors, which clients send: they are below. The event stream never ends.
OUT_OF_REACH = r"events|/update$|/join$|/alignments/\{"

# What clients may ask for. A tensor has no schema: what is wrong in one is a matter of meaning.
OF_CLIENTS = r"/me|/rounds|/experts|/plan$|/roster|/anchors|/alignments|/clients/"
OF_TENSORS = "negative_data_rejection"


def conformance(served: Served, *options: str, cwd: Path, examples: str = "20", **environment: str) -> None:
    schemathesis = Path(sys.executable).with_name("st")
    done = subprocess.run(
        [
            schemathesis,
            "run",
            f"{served.url}/openapi.json",
            "--no-color",
            *options,
            "--max-examples",
            examples,
            "--seed",
            "1",
            "--suppress-health-check",
            "all",
        ],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def answered_routes(served: Served) -> set[tuple[str, str, int]]:
    """Return the statuses by method and route."""
    lines = re.findall(
        r'tessera_request_seconds_count{method="(\w+)",route="([^"]+)",status="(\d+)"}',
        served.admin.get("/metrics").text,
    )
    return {(method, route, int(status)) for method, route, status in lines}


@pytest.mark.long
def test_answers_conform_to_the_openapi_document(coordinator: Served, tmp_path: Path) -> None:
    coordinator.enrol(coordinator.federation(), "a")
    person = ("--header", f"Authorization: Bearer {ADMIN_TOKEN}")
    checks = ("--exclude-checks", EXCLUDED, "--exclude-path-regex", OUT_OF_REACH)
    conformance(coordinator, *person, *checks, cwd=tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_answers_to_signed_tensors_conform_to_the_document(coordinator: Served, tmp_path: Path) -> None:
    federation_id, (silo, _) = running(coordinator)
    cases = {
        "key": encode_pem(silo.key).decode(),
        "host": coordinator.url.removeprefix("http://"),
        "federation": federation_id,
        "client": silo.client_id,
        "base_model": PROFILE["base_model"],
        "base": join(silo, 1),
    }
    conformance(
        coordinator,
        "--include-path-regex",
        OF_CLIENTS,
        "--exclude-path-regex",
        "events",
        "--exclude-checks",
        f"{EXCLUDED},{OF_TENSORS}",
        "--request-timeout",
        "60",
        cwd=tmp_path,
        examples="60",
        SCHEMATHESIS_HOOKS="tests.unit.coordinator.auth.signed_cases",
        PYTHONPATH=str(Path(__file__).parents[4]),
        CASES=json.dumps(cases),
    )
    reached = {
        (method, route.rpartition("/")[2], status)
        for method, route, status in answered_routes(coordinator)
        if route.startswith("/v1/federations/{fid}/rounds/{n}/") or route == "/v1/me"
    }
    assert {
        ("GET", "me", 200),
        ("GET", "weights", 200),
        ("POST", "join", 200),
        ("PUT", "scores", 204),
    } <= reached
    assert {("PUT", "update", status) for status in (201, 409, 422)} <= reached
