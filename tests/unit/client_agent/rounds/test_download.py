"""Downloads of weights in fewer bits: their precision, size and verification."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import numpy as np
import pytest

from client_agent.identity.membership import read_key
from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import RECEIPT, SENT, WEIGHTS
from client_agent.transport.client import CoordinatorApi
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import slots, unpack
from tests.scene.agent_rounds import LORA, PQ, SERVED, LoneSilo
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served


def values(scene: LoneSilo, body: bytes) -> dict[str, np.ndarray]:
    with unpack(body, encoding=None, expected=slots(layout(scene)), max_bytes=2**24) as weights:
        return {name: weights.read_float32(name) for name in weights.names}


def layout(scene: LoneSilo) -> dict[str, tuple[int, ...]]:
    return dict(scene.participant.session.api.me().layout)


def bytes_down(scene: LoneSilo) -> list[int]:
    return [view["bytes"]["down"] for view in scene.served.rounds(scene.federation_id)]


@pytest.mark.parametrize("adapter", [PQ | {"rank": 32}, LORA], ids=["pq", "lora"])
def test_coded_weights_take_a_fraction_of_dense_bytes(
    served: Served, participant: Enrolled, adapter: dict[str, object]
) -> None:
    scene = LoneSilo(served, participant, adapter=adapter)
    folder = scene.run_rounds(2)
    dense = scene.participant.session.api.weights(scene.federation_id, 2)
    assert folder.base == dense.digest
    coded, exact_values = values(scene, folder.read(WEIGHTS)), values(scene, dense.body)
    for name, exact in exact_values.items():
        np.testing.assert_allclose(coded[name], exact, atol=0.02 * max(1e-6, np.abs(exact).max()))
    first, second = bytes_down(scene)[:2]
    assert second - len(dense.body) < 0.6 * first
    assert folder.has(RECEIPT)


def test_update_against_served_weights_downloads_dense_weights(served: Served, participant: Enrolled) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": SERVED})
    folder = scene.run_rounds(2)
    assert folder.read(WEIGHTS) == scene.participant.session.api.weights(scene.federation_id, 2).body


def test_silo_without_last_update_downloads_dense_weights(served: Served, participant: Enrolled) -> None:
    scene = LoneSilo(served, participant)
    scene.run_rounds(1).forget(SENT)
    assert (
        scene.run_rounds(1).read(WEIGHTS)
        == scene.participant.session.api.weights(scene.federation_id, 2).body
    )


class ChangedWeights(httpx.HTTPTransport):
    """A proxy that changes the header fields or the body of weights."""

    def __init__(self, change: Callable[[httpx.Response, bytes], httpx.Response]) -> None:
        super().__init__()
        self._change = change

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if "recipe=" not in request.headers.get("Accept", ""):
            return answer
        body = b"".join(answer.stream)  # type: ignore[arg-type]
        return self._change(answer, body)


def replace_proof(answer: httpx.Response, body: bytes) -> httpx.Response:
    headers = dict(answer.headers) | {"tessera-weights": "e30="}
    return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(body))


def remove_proof(answer: httpx.Response, body: bytes) -> httpx.Response:
    headers = {name: value for name, value in answer.headers.items() if name != "tessera-weights"}
    return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(body))


def replace_body(answer: httpx.Response, body: bytes) -> httpx.Response:
    changed = body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]
    headers = dict(answer.headers) | {"repr-digest": to_field(digest_of(changed))}
    return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(changed))


@pytest.mark.parametrize("change", [replace_proof, remove_proof, replace_body])
def test_unsigned_coded_weights_are_downloaded_dense_instead(
    served: Served,
    participant: Enrolled,
    change: Callable[[httpx.Response, bytes], httpx.Response],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = LoneSilo(served, participant)
    scene.run_rounds()
    agent, honest = scene.participant, scene.participant.session.api
    with CoordinatorApi(
        served.url,
        key=read_key(agent.workspace.folder),
        server_key=agent.session.server_key,
        deadline_seconds=5,
        sleep=lambda _: None,
        transport=ChangedWeights(change),
    ) as agent.session.api:
        assert take_part(agent, scene.brief())
    agent.session.api = honest
    assert "downloading dense ones" in caplog.text
    assert agent.workspace.rounds.open(2).read(WEIGHTS) == honest.weights(scene.federation_id, 2).body
