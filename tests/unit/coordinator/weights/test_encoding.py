"""Weights in fewer bits: requested recipes, decoded values, and the signed statement of their origin."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from coordinator.storage.server_key import ServerKey
from schemas.identity.documents import is_signed
from schemas.identity.keys import decode as decoded
from schemas.identity.keys import public_key
from schemas.maths.adapter import in_order
from schemas.messages.recipes import NAMED, RecipeName, SentRecipe
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import MEDIA_TYPE, unpack
from schemas.wire.streams import decode, stream_slots
from tests.scene.coded_weights import LAYOUT, PLAN, RANK, Arrays, request_weights
from tests.scene.coordinator import SIGNING_KEY, Served, Silo
from tests.scene.rounds import deliver, join, plan, put, running, show, update_body, url, wait_for, weights
from tests.scene.tensors import random_tensors

ASKING = {"Accept": f"{MEDIA_TYPE};recipe=int8_own_last"}


@dataclass(frozen=True)
class SecondRound:
    """A client in round 2: its update of round 1, and the digest of its weights."""

    silo: Silo
    client_state: Arrays
    named: str

    def raw(self, **headers: str) -> tuple[httpx.Response, bytes]:
        """Download coded weights as raw bytes."""
        path = url(self.silo, 2, "/weights")
        with self.silo.http.stream("GET", path, headers=ASKING | headers) as answer:
            return answer, b"".join(answer.iter_raw())


@pytest.fixture(scope="module")
def second(coordinator: Served) -> SecondRound:
    federation_id, silos = running(coordinator, **PLAN)
    client_state = random_tensors(LAYOUT, 0)
    for seed, silo in enumerate(silos):
        deliver(silo, 1, random_tensors(LAYOUT, seed))
    wait_for(coordinator, federation_id, 1, "published")
    return SecondRound(silos[0], client_state, join(silos[0], 2))


def decode_weights(answer: httpx.Response, reference: Arrays, name: RecipeName) -> Arrays:
    """Decode coded weights."""
    layout = in_order({tensor: values.shape for tensor, values in reference.items()})
    plain = answer.read()  # httpx has taken the zstd frame off
    with unpack(plain, encoding=None, expected={}, max_bytes=2**20, coded=stream_slots()) as body:
        sent = SentRecipe.model_validate(body.manifest(WeightsManifest).recipe)
        assert sent.recipe == NAMED[name]
        decoded = dict(decode(body, layout, NAMED[name]))
    return {tensor: reference[tensor] + decoded[tensor] for tensor in decoded} if sent.against else decoded


@pytest.mark.parametrize(
    ("recipe", "error"), [("int8_own_last", 0.01), ("int4_own_last", 0.2), ("int8", 0.01), ("bf16", 0.01)]
)
def test_weights_are_sent_in_the_requested_recipe(
    second: SecondRound, recipe: RecipeName, error: float
) -> None:
    dense = weights(second.silo, 2, LAYOUT)
    answer = request_weights(second.silo, 2, recipe)
    assert answer.status_code == 200
    decoded = decode_weights(answer, second.client_state, recipe)
    for name, values in dense.items():
        assert np.abs(decoded[name] - values).max() <= error * max(1.0, np.abs(values).max())
        assert not np.array_equal(decoded[name], values)
    assert int(answer.headers["content-length"]) < 0.6 * (RANK * RANK + RANK) * 4 + 1024
    assert answer.headers["vary"] == "Accept"


def test_a_signed_statement_names_the_stored_weights(second: SecondRound) -> None:
    silo = second.silo
    answer, body = second.raw()
    document = json.loads(urlsafe_b64decode(answer.headers["tessera-weights"]))
    assert (document["weights"], document["digest"]) == (second.named, digest_of(body))
    whose = (document["federation"], document["client"], document["round"])
    assert whose == (silo.federation_id, silo.client_id, 2)
    key = public_key(ServerKey(decoded(SIGNING_KEY)).public)
    assert is_signed("tessera-weights-v1", document, document["signature"], key)
    assert not is_signed("tessera-weights-v1", document | {"round": 3}, document["signature"], key)
    assert answer.headers["etag"] == f'"{digest_of(body)}"'


def test_coded_weights_are_constant_and_support_ranges(second: SecondRound) -> None:
    first, whole = second.raw()
    assert second.raw()[1] == whole
    tag = first.headers["etag"]
    answer, tail = second.raw(**{"Range": "bytes=100-", "If-Range": tag})
    assert (answer.status_code, whole[:100] + tail) == (206, whole)
    assert answer.headers["tessera-weights"] == first.headers["tessera-weights"]
    unchanged, empty = second.raw(**{"If-None-Match": tag})
    assert (unchanged.status_code, empty) == (304, b"")


@pytest.mark.parametrize("recipe", ["dense", "int4_served", "top10_int8_served", "gzip", ""])
def test_unavailable_recipes_are_answered_dense(second: SecondRound, recipe: str) -> None:
    answer = request_weights(second.silo, 2, recipe)
    assert answer.headers["etag"] == f'"{second.named}"'
    assert "tessera-weights" not in answer.headers


def test_weights_before_any_update_are_not_differences(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator, **PLAN)
    named = join(silo, 1)
    assert request_weights(silo, 1, "int8_own_last").headers["etag"] == f'"{named}"'
    assert (
        request_weights(silo, 1, "int8").headers["etag"] != f'"{named}"'
    )  # zeros need nothing to differ from


def test_traffic_counts_the_size_of_coded_weights(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **PLAN)
    for seed, silo in enumerate(silos):
        deliver(silo, 1, random_tensors(LAYOUT, seed))
    wait_for(coordinator, federation_id, 1, "published")
    join(silos[0], 2)
    size = int(request_weights(silos[0], 2, "int4_own_last").headers["content-length"])
    assert show(coordinator, federation_id, 2)["bytes"]["down"] == size


def test_weights_too_large_for_a_recipe_are_dense(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(limits={"max_norm": 1e30}))
    for silo, fill in zip(silos, (1e20, -1e20), strict=True):
        base = join(silo, 1)
        tensors = {"b0.q.P": np.full((2, 2), fill, np.float32), "b0.q.Q": np.full(2, fill, np.float32)}
        assert put(silo, 1, update_body(silo, 1, base, tensors)).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    named = join(silos[0], 2)
    assert request_weights(silos[0], 2, "int8_own_last").headers["etag"] == f'"{named}"'
