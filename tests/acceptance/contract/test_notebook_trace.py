"""The notebook with two clients, round by round, by a client of the HTTP contract alone.

Nothing of ours is imported but the fixture that starts a coordinator: httpx, safetensors and json are what a
stranger would use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as safetensors

from tests.scene.waiting import wait_until

MEDIA_TYPE = "application/vnd.tessera.adapter+safetensors"
TRACE: dict[str, Any] = json.loads((Path(__file__).parent / "notebook_trace.json").read_text())
TOLERANCE = 1e-6

PLAN = {
    "name": "notebook",
    "strategy": {
        "name": "fedmosaic",
        "options": {
            "temperature": 0.5,
            "evidence": "sketches",
            "centre": False,
            "guard": "off",
            "min_relevance": None,
            "sources": "all",
        },
    },
    "adapter": {"rank": 2, "blocks": 1, "roles": ["q"]},
    "rounds": {"total": 3, "min_clients": 2},
    "signature": {"dim": 4},
    "privacy": {"allow_bearer_clients": True},
}


class Stranger:
    """One client of the notebook."""

    def __init__(self, url: str, operator: httpx.Client, federation: str, name: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, verify=False)
        self.rounds = f"/v1/federations/{federation}/rounds"
        token = operator.post(f"/v1/federations/{federation}/enrolment-tokens", json={"client_name": name})
        profile = {
            "architecture": "LlamaForCausalLM",
            "base_model": "toy-000000000000",
            "hidden_size": 4,
            "layers": 1,
            "agent_version": "0",
            "protocol_version": 2,
        }
        request = {"token": token.json()["token"], "name": name, "profile": profile}
        enrolled = self.http.post("/v1/enrolments", json=request)
        assert enrolled.status_code == 201, enrolled.text
        self.id: str = enrolled.json()["client_id"]
        self.federation = federation
        self.http.headers["Authorization"] = f"Bearer {enrolled.json()['credential']}"

    def brief(self) -> dict[str, Any]:
        """Wait until there is something to do."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self.http.get(f"{self.rounds}/current")
            if answer.status_code == 200:
                return dict(answer.json())
            assert answer.status_code == 204
            assert int(answer.headers["Retry-After"]) >= 1
            time.sleep(0.02)
        raise TimeoutError

    def join(self, number: int) -> str:
        """Take part; return the digest of the weights to start from."""
        answer = self.http.post(f"{self.rounds}/{number}/join")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["weights"]["digest"])

    def weights(self, number: int, digest: str) -> dict[str, NDArray[np.float32]]:
        """Download weights and check that they are the announced bytes."""
        answer = self.http.get(f"{self.rounds}/{number}/weights")
        assert answer.status_code == 200, answer.text
        hashed = hashlib.sha256(answer.content).digest()
        assert digest == "sha256:" + hashed.hex()
        assert answer.headers["Repr-Digest"] == f"sha-256=:{base64.b64encode(hashed).decode()}:"
        tensors: dict[str, NDArray[np.float32]] = safetensors.load(answer.content)
        return tensors

    def push(self, number: int, base: str, tensors: dict[str, NDArray[np.float32]]) -> None:
        """Deliver an adapter and a signature."""
        manifest = {
            "version": 1,
            "kind": "update",
            "federation": self.federation,
            "round": number,
            "client": self.id,
            "base": base,
            "pack": None,
            "examples": 64,
            "recipe": {},
        }
        body = safetensors.save(tensors, {"tessera": json.dumps(manifest)})
        digest = hashlib.sha256(body).digest()
        headers = {
            "Content-Type": MEDIA_TYPE,
            "Content-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        answer = self.http.put(f"{self.rounds}/{number}/update", content=body, headers=headers)
        assert answer.status_code == 201, answer.text
        receipt = answer.json()
        assert receipt["digest"] == "sha256:" + digest.hex()
        assert (receipt["round"], receipt["client"], receipt["clipped"]) == (number, self.id, False)


def test_an_independent_client_reproduces_the_notebook(coordinator: Any) -> None:
    operator: httpx.Client = coordinator.admin
    federation = operator.post("/v1/federations", json=PLAN).json()["id"]
    strangers = [Stranger(coordinator.url, operator, federation, name) for name in ("first", "second")]
    assert operator.post(f"/v1/federations/{federation}/start").json()["state"] == "running"

    for expected_round in TRACE["rounds"]:
        number = expected_round["round"]
        for i, stranger in enumerate(strangers):
            assert stranger.brief()["round"] == number
            base = stranger.join(number)
            served = stranger.weights(number, base)
            expected = TRACE["rounds"][number - 2] if number > 1 else None
            _check_served(served, expected, i)
            stranger.push(number, base, _local(expected_round, i))
        _check_relevance(_published(operator, federation, number), expected_round, strangers)

    for i, stranger in enumerate(strangers):
        finished = stranger.brief()
        assert (finished["state"], finished["round"]) == ("finished", 4)
        _check_served(stranger.weights(4, finished["weights"]["digest"]), TRACE["rounds"][2], i)
        stranger.http.close()
    assert operator.get(f"/v1/federations/{federation}").json()["state"] == "finished"


def _local(expected: dict[str, Any], i: int) -> dict[str, NDArray[np.float32]]:
    return {
        "b0.q.P": np.array(expected["P_local"][i], np.float32),
        "b0.q.Q": np.array(expected["Q_local"][i], np.float32),
        "signature": np.array(expected["signature"][i], np.float32),
    }


def _check_served(served: dict[str, NDArray[np.float32]], expected: dict[str, Any] | None, i: int) -> None:
    assert sorted(served) == ["b0.q.P", "b0.q.Q"]
    p = expected["P_global"][i] if expected else np.zeros((2, 2))
    q = expected["Q_global"][i] if expected else np.zeros(2)
    np.testing.assert_allclose(served["b0.q.P"], p, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(served["b0.q.Q"], q, rtol=0, atol=TOLERANCE)


def _published(operator: httpx.Client, federation: str, number: int) -> dict[str, Any]:
    url = f"/v1/federations/{federation}/rounds/{number}"
    wait_until(lambda: operator.get(url).json()["state"] == "published")
    return dict(operator.get(f"{url}/relevance").json())


def _check_relevance(shown: dict[str, Any], expected: dict[str, Any], strangers: list[Stranger]) -> None:
    order = [shown["clients"].index(stranger.id) for stranger in strangers]
    for name in ("relevance", "similarity"):
        matrix = np.array(shown[name])[np.ix_(order, order)]
        np.testing.assert_allclose(matrix, expected[name], rtol=0, atol=TOLERANCE)
    relevance = np.array(shown["relevance"])
    np.testing.assert_allclose(relevance.sum(axis=1), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        shown["entropy"], -(relevance * np.log(relevance)).sum(axis=1), rtol=0, atol=1e-12
    )
