"""Stolen logs of a run with debug output, also the agents': no secret, tensor or example."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import safetensors
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from schemas.identity.enrolment_token import read
from tests.attacks.hostile.stolen import RETRY_KEY, bearer_client, forms, seed_of
from tests.scene.agent_processes import EXAMPLES, TESSERA, AgentProcess, environment, prepare_agent
from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY
from tests.scene.coordinator_process import start_process

pytestmark = pytest.mark.long

PLAN: dict[str, Any] = {
    "strategy": {"name": "fedmosaic"},
    "rounds": {"total": 2, "min_clients": 1, "collect_seconds": 300},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
    "signature": {"probe_examples": 12},
    "privacy": {"allow_bearer_clients": True},
}
_WINDOW = 12  # bytes: 24 characters in hex, 16 in base64
_WINDOWS = 200
_DIGITS = 9


@dataclass
class Logs:
    """What was said in a run, without white space, as lines break anywhere; and what must not be in it."""

    text: str
    secrets: dict[str, str]
    tensors: dict[str, list[str]]
    texts: list[str]


@pytest.fixture(scope="module")
def logs(
    backend: str, fresh_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Logs:
    """An agent that enrols, replaces its key and trains, one that is refused, and a bearer client."""
    folder = tmp_path_factory.mktemp("logs")
    served = start_process(fresh_database(backend), folder, log_level="debug")
    try:
        federation_id = served.federation(**PLAN)
        tokens = {name: served.enrolment_token(federation_id, name) for name in ("aster", "bearer", "late")}
        agent = prepare_agent(folder, "aster", served.url, tokens["aster"])
        _tessera(agent, "enrol")
        first = _key(agent)
        _tessera(agent, "rotate-key")
        credential = bearer_client(served, tokens["bearer"])
        served.start_federation(federation_id)
        _tessera(agent, "run")
        refused = prepare_agent(folder, "refused", served.url, tokens["aster"], silo="aster")
        _tessera(refused, "enrol", fails=True)
    finally:
        served.stop()
    output = served.log.read_text() + agent.log + refused.log
    secrets = {
        "the admin's token": ADMIN_TOKEN,
        "the bearer's credential": credential,
        "the bearer's retry key": RETRY_KEY,
        **{f"{name}'s enrolment token": read(token).secret for name, token in tokens.items()},
        **forms("the coordinator's key", base64.urlsafe_b64decode(SIGNING_KEY + "=")),
        **forms("the agent's first key", first),
        **forms("the agent's key", _key(agent)),
    }
    return Logs(_without_white_space(output), secrets, dict(_tensors(agent)), list(_texts()))


def _tessera(agent: AgentProcess, command: str, *, fails: bool = False) -> None:
    """Run an agent's command, and append its output to the agent's log."""
    variables = {
        "TESSERA_AGENT_TOKEN": agent.token,
        "TESSERA_AGENT_NAME": agent.name,
        "TESSERA_AGENT_LOG_LEVEL": "debug",
    }
    named = ["--name", "aster"] if command == "enrol" else []
    with (agent.folder / "agent.log").open("ab") as log:
        done = subprocess.run(
            [TESSERA, "agent", command, *named, "--config", str(agent.folder / "silo.toml")],
            env=environment() | variables,
            stdout=log,
            stderr=log,
            timeout=180,
            check=False,
        )
    assert (done.returncode != 0) is fails, agent.log[-3000:]


def _key(agent: AgentProcess) -> bytes:
    key: Any = load_pem_private_key((agent.folder / "state" / "client.key").read_bytes(), password=None)
    return seed_of(key)


def _without_white_space(output: str) -> str:
    return "".join(output.split())


def _tensors(agent: AgentProcess) -> Iterator[tuple[str, list[str]]]:
    """Yield the logged forms of pieces of all tensors that the agent received, made and sent."""
    for file in sorted((agent.folder / "state").rglob("*.safetensors")):
        with safetensors.safe_open(file, "numpy") as opened:
            for name in opened.keys():  # noqa: SIM118
                values = opened.get_tensor(name).ravel()
                if values.dtype.kind == "f" and values.any():
                    yield f"{file.parent.name}/{file.name}: {name}", list(_shown(values))
    for file in sorted((agent.folder / "state").rglob("update.body")):
        body = file.read_bytes()
        places = range(len(body) // 2 // 3 * 3, len(body) - _WINDOW, 3 * max(1, len(body) // 6 // _WINDOWS))
        yield f"{file.parent.name}/{file.name}", [_base64(body[at : at + _WINDOW]) for at in places]


def _shown(values: np.ndarray[Any, Any]) -> Iterator[str]:
    """Yield pieces in hex, in base64, as Python shows bytes, and as a number.

    Base64 makes four characters of three bytes: pieces begin at every third value.
    """
    size = values.itemsize
    items = _WINDOW // size
    for at in range(0, values.size - items, 3 * max(1, values.size // 3 // _WINDOWS)):
        raw = values[at : at + items].tobytes()
        if values[at] != 0 and len(set(raw)) > _WINDOW // 2:
            yield raw.hex()
            yield _base64(raw)
            yield repr(raw)[2:-1].replace(" ", "")
            yield repr(float(values[at]))[:_DIGITS]


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _texts() -> Iterator[str]:
    for file in (EXAMPLES / "silos" / "aster").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            yield _without_white_space(json.loads(line)["prompt"])


def test_shown_forms_of_tensors_are_detected() -> None:
    values = np.linspace(0.01, 1.0, 300, dtype=np.float32)
    raw, shown = values.tobytes(), list(_shown(values))
    for shown_form in (raw.hex(), _base64(raw), repr(raw), str(values.tolist()), str(values)):
        assert any(form in _without_white_space(shown_form) for form in shown)


def test_logs_of_a_run_contain_its_events(logs: Logs) -> None:
    for event in ("client-enrolled", "update-accepted", "round-published"):
        assert event in logs.text
    for sentence in ("update of", "delivered", "the new key is in use", "error: "):
        assert _without_white_space(sentence) in logs.text
    assert "DEBUG" in logs.text


def test_logs_contain_no_secret(logs: Logs) -> None:
    assert len(logs.secrets) == 15
    assert [name for name, secret in logs.secrets.items() if secret in logs.text] == []
    assert "sig1=:" not in logs.text


def test_logs_contain_no_tensor(logs: Logs) -> None:
    kinds = {name.rpartition(": ")[0].rpartition("/")[2] or name for name in logs.tensors}
    assert {"trained.safetensors", "signature.safetensors", "weights.safetensors"} <= kinds
    assert sum(map(len, logs.tensors.values())) > 1000
    leaks = {name: [form for form in shown if form in logs.text] for name, shown in logs.tensors.items()}
    assert {name: forms for name, forms in leaks.items() if forms} == {}


def test_logs_contain_no_example(logs: Logs) -> None:
    assert len(logs.texts) > 100
    assert [text for text in logs.texts if text in logs.text] == []
