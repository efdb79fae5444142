"""Distillation at the coordinator: the peers whose outputs are served, their weights, and refusals."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.storage.server_key import ServerKey
from schemas.identity.documents import is_signed
from schemas.identity.keys import decode as decoded
from schemas.identity.keys import public_key
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import MEDIA_TYPE, Array, unpack
from schemas.wire.outputs import SHARES, VALUES, Outputs, slots
from tests.scene.coordinator import SIGNING_KEY, Served, Silo, slug
from tests.scene.rounds import deliver, join, last_update, plan, put, show, update_body, url, values, wait_for

ANCHORS = {"anchors": [{"id": name, "prompt": "p", "answer": "a"} for name in "xy"]}
ROWS = 4
NEAR, FAR = (np.array(vector, np.float32) for vector in ([1, 0, 0, 0], [0, 1, 0, 0]))


def distillation_plan(**changes: Any) -> dict[str, Any]:
    """Return a plan for three clients that distil from peers with a relevance of 0.5 or more."""
    options = {"distil": {"texts": 2}, "min_relevance": 0.5, "temperature": 1.0}
    signature = {"model": "m0-aaaaaaaaaaaa"}  # sketches of one model are comparable
    return plan(
        **(
            {
                "signature": signature,
                "strategy": {"name": "fedmosaic", "options": options},
                "rounds": {"min_clients": 3},
            }
            | changes
        )
    )


def start_federation(coordinator: Served, **changes: Any) -> list[Silo]:
    federation_id = coordinator.federation(**distillation_plan(**changes))
    silos = [coordinator.enrol(federation_id, f"silo-{i}", base_model=f"m{i}-aaaaaaaaaaaa") for i in range(3)]
    assert coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS).status_code == 201
    coordinator.start_federation(federation_id)
    return sorted(silos, key=lambda silo: silo.client_id)


def one_hot_outputs(byte: int) -> dict[str, Array]:
    dense = np.zeros((ROWS, VALUES), np.float32)
    dense[:, byte] = 1.0
    return Outputs.of(dense).tensors


def play_round(
    coordinator: Served,
    silos: list[Silo],
    sketches: list[NDArray[np.float32]],
    outputs: list[dict[str, Array]],
    **members: Any,
) -> None:
    """Deliver round 1 for all silos, and join round 2."""
    for place, (silo, sketch, sent) in enumerate(zip(silos, sketches, outputs, strict=True)):
        tensors: dict[str, Any] = {**values(float(place + 1)), **sent}
        deliver(silo, 1, tensors, signature=sketch, **members)
    wait_for(coordinator, silos[0].federation_id, 1, "published")
    for silo in silos:
        join(silo, 2)


def request_outputs(silo: Silo, number: int = 2) -> httpx.Response:
    return silo.http.get(url(silo, number, "/weights"), headers={"Accept": f"{MEDIA_TYPE};outputs=peers"})


def mixture(answer: httpx.Response) -> NDArray[np.float32]:
    assert answer.status_code == 200, answer.text
    body = answer.content
    with unpack(body, encoding=None, expected=slots(), max_bytes=2**20) as envelope:
        assert envelope.manifest(WeightsManifest).round == 2
        outputs = Outputs.read(envelope)
    assert outputs is not None
    return outputs.dense()


def test_mixtures_contain_relevant_peers_without_the_client(
    coordinator: Served,
) -> None:
    silos = start_federation(coordinator)
    play_round(coordinator, silos, [NEAR, NEAR, FAR], [one_hot_outputs(byte) for byte in (1, 2, 3)])
    first, second = mixture(request_outputs(silos[0])), mixture(request_outputs(silos[1]))
    assert np.all(first[:, 2] == 1)
    assert np.all(second[:, 1] == 1)
    refused = request_outputs(silos[2])  # it resembles nobody
    assert (refused.status_code, slug(refused)) == (404, "not-found")
    # Their weights stay their own: the base models differ.
    for place, silo in enumerate(silos):
        assert np.all(last_update(silo)["b0.q.P"] == place + 1)


def test_a_mixture_is_signed_with_round_and_weights(coordinator: Served) -> None:
    silos = start_federation(coordinator)
    play_round(coordinator, silos, [NEAR, NEAR, FAR], [one_hot_outputs(byte) for byte in (1, 2, 3)])
    with silos[0].http.stream(
        "GET", url(silos[0], 2, "/weights"), headers={"Accept": f"{MEDIA_TYPE};outputs=peers"}
    ) as answer:
        raw = b"".join(answer.iter_raw())
    statement = json.loads(urlsafe_b64decode(answer.headers["tessera-weights"]))
    key = public_key(ServerKey(decoded(SIGNING_KEY)).public)
    assert is_signed("tessera-weights-v1", statement, statement["signature"], key)
    dense = silos[0].http.get(url(silos[0], 2, "/weights")).content
    expected = (silos[0].client_id, 2, digest_of(raw), digest_of(dense))
    assert tuple(statement[name] for name in ("client", "round", "digest", "weights")) == expected


def test_mixtures_accept_compressed_updates_and_missing_outputs(coordinator: Served) -> None:
    silos = start_federation(coordinator)
    outputs: list[dict[str, Array]] = [one_hot_outputs(1), one_hot_outputs(2), {}]
    for silo, sent in zip(silos, outputs, strict=True):
        tensors: dict[str, Any] = {**values(1.0), **sent}
        body = update_body(silo, 1, join(silo, 1), tensors, signature=NEAR, compress=True)
        assert put(silo, 1, body, "zstd").status_code == 201
    wait_for(coordinator, silos[0].federation_id, 1, "published")
    for silo in silos:
        join(silo, 2)
    assert np.all(mixture(request_outputs(silos[0]))[:, 2] == 1)
    assert request_outputs(silos[2]).status_code == 404


def test_a_first_round_has_no_mixture(coordinator: Served) -> None:
    silos = start_federation(coordinator)
    join(silos[0], 1)
    assert request_outputs(silos[0], 1).status_code == 404


@pytest.mark.parametrize(("least", "status"), [(2, 200), (3, 404)])
def test_mixtures_with_too_few_voices_are_not_served(coordinator: Served, least: int, status: int) -> None:
    silos = start_federation(coordinator, privacy={"min_voices": least})
    play_round(coordinator, silos, [NEAR] * 3, [one_hot_outputs(byte) for byte in (1, 2, 3)])
    answer = request_outputs(silos[0])
    assert answer.status_code == status
    if status == 200:
        np.testing.assert_allclose(mixture(answer)[:, [1, 2, 3]], [[0, 0.5, 0.5]] * ROWS, atol=1e-3)


def test_positions_with_too_few_voices_are_zeros(coordinator: Served) -> None:
    silos = start_federation(coordinator, privacy={"min_voices": 2})
    alone = np.zeros((ROWS, VALUES), np.float32)
    alone[0, 3] = 1.0  # its tokenizer ends a token at the other places, where the third's does not
    play_round(
        coordinator, silos, [NEAR] * 3, [one_hot_outputs(1), one_hot_outputs(2), Outputs.of(alone).tensors]
    )
    first = mixture(request_outputs(silos[0]))
    assert np.all(first[0, [2, 3]] == 0.5)
    assert not first[1:].any()


def test_long_absent_clients_are_served_a_mixture(coordinator: Served) -> None:
    rounds = {"min_clients": 2, "max_staleness": 0, "collect_seconds": 2}
    silos = start_federation(coordinator, rounds=rounds)
    for number, present in ((1, silos), (2, silos[:2])):
        for silo in present:
            join(silo, number)
        for place, silo in enumerate(present):
            deliver(silo, number, {**values(float(place + 1)), **one_hot_outputs(place + 1)}, signature=NEAR)
        wait_for(coordinator, silos[0].federation_id, number, "published")
    for silo in silos:
        join(silo, 3)
    assert [request_outputs(silo, 3).status_code for silo in silos] == [200, 200, 200]


def test_texts_with_too_long_answers_are_refused(coordinator: Served) -> None:
    strategy = {"name": "fedmosaic", "options": {"distil": {"texts": 7}}}
    federation_id = coordinator.federation(**distillation_plan(strategy=strategy))
    long = {"anchors": [{"id": str(i), "prompt": "p", "answer": "a" * 20_000} for i in range(7)]}
    answer = coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=long)
    assert (answer.status_code, slug(answer)) == (422, "validation")
    assert "send shorter ones" in answer.text


def test_outputs_of_other_texts_are_left_out(coordinator: Served) -> None:
    silos = start_federation(coordinator)
    longer = {name: np.concatenate([tensor, tensor]) for name, tensor in one_hot_outputs(3).items()}
    play_round(coordinator, silos, [NEAR] * 3, [one_hot_outputs(1), one_hot_outputs(2), longer])
    assert np.all(mixture(request_outputs(silos[0]))[:, 2] == 1)
    assert request_outputs(silos[2]).status_code == 404


def test_outputs_must_be_distributions(coordinator: Served) -> None:
    silo = start_federation(coordinator)[0]
    base = join(silo, 1)
    wrong: dict[str, Any] = {**values(1.0), **one_hot_outputs(1), SHARES: np.ones((ROWS, 8), np.float16)}
    refused = put(silo, 1, update_body(silo, 1, base, wrong))
    assert (refused.status_code, slug(refused)) == (422, "tensor-schema")
    right: dict[str, Any] = {**values(1.0), **one_hot_outputs(1)}
    assert put(silo, 1, update_body(silo, 1, base, right)).status_code == 201


def test_outputs_are_unknown_tensors_without_the_option(coordinator: Served) -> None:
    federation_id = coordinator.federation(**plan(strategy={"name": "fedmosaic", "options": {}}))
    silo = coordinator.enrol(federation_id, "silo")
    coordinator.start_federation(federation_id)
    tensors: dict[str, Any] = {**values(1.0), **one_hot_outputs(1)}
    refused = put(silo, 1, update_body(silo, 1, join(silo, 1), tensors))
    assert (refused.status_code, slug(refused)) == (422, "tensor-schema")


def test_a_federation_with_distillation_needs_its_texts(coordinator: Served) -> None:
    federation_id = coordinator.federation(**distillation_plan())
    path = f"/v1/federations/{federation_id}"
    refused = coordinator.admin.post(f"{path}/start")
    assert (refused.status_code, slug(refused)) == (409, "anchors-missing")
    assert coordinator.admin.put(f"{path}/anchors", json=ANCHORS).status_code == 201
    assert coordinator.admin.post(f"{path}/start").status_code == 200
    assert show(coordinator, federation_id, 1)["state"] == "open"


def test_claims_describe_the_information_in_outputs(coordinator: Served) -> None:
    views = [
        coordinator.admin.get(f"/v1/federations/{coordinator.federation(**distilled_plan)}").json()
        for distilled_plan in (distillation_plan(), plan(strategy={"name": "fedmosaic", "options": {}}))
    ]
    with_outputs, without = ([c for c in view["claims"] if "public texts" in c] for view in views)
    of_members, of_operator = with_outputs
    assert "may be one member's own" in of_members
    assert "The operator sees" in of_operator
    assert not without
    assert views[1]["plan"]["strategy"]["options"]["distil"] is None


def test_secure_sum_plans_refuse_distillation(coordinator: Served) -> None:
    body = {"name": "f"} | distillation_plan(privacy={"secure_sum": {"minimum": 3}})
    body["adapter"] = {"kind": "lora"}
    refused = coordinator.admin.post("/v1/federations", json=body)
    assert refused.status_code == 422
    assert "outputs of each client's model" in refused.text


def test_texts_are_refused_without_the_option(coordinator: Served) -> None:
    federation_id = coordinator.federation(**plan(strategy={"name": "fedmosaic", "options": {}}))
    refused = coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS)
    assert (refused.status_code, slug(refused)) == (409, "federation-state")
