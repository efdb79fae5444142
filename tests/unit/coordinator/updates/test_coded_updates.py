"""Updates as differences with few bits: the coordinator stores exactly the client's state."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from schemas.messages.recipes import NAMED, Recipe, RecipeName
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import (
    LAYOUT,
    Tensors,
    coded_body,
    deliver,
    join,
    last_update,
    layout_for,
    plan,
    put,
    running,
    update_body,
    values,
    wait_for,
)
from tests.scene.tensors import assert_same_bytes, random_tensors
from tests.unit.coordinator.updates.lora import START, lora_silo

OWN_LAST = NAMED["int4_own_last"]
CODED: list[RecipeName] = [name for name, recipe in NAMED.items() if not recipe.is_dense]


def finish_round(served: Served, silos: list[Silo], number: int) -> None:
    """Deliver the second client's update, and wait for the round's end."""
    deliver(silos[1], number, values(0.5))
    wait_for(served, silos[1].federation_id, number, "published")


@pytest.mark.parametrize("name", CODED)
def test_coded_updates_decode_to_the_clients_state(coordinator: Served, name: RecipeName) -> None:
    recipe = NAMED[name]
    _, silos = running(coordinator, **plan(wire={"recipe": name}))
    base = join(silos[0], 1)
    against = None if recipe.reference == "none" else base
    body, expected = coded_body(silos[0], 1, base, random_tensors(LAYOUT, 1), recipe, against=against)
    answer = put(silos[0], 1, body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["bytes"] == len(body)
    assert_same_bytes(last_update(silos[0]), expected)


def test_own_last_updates_are_differences_to_the_last(coordinator: Served) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}))
    previous: Tensors | None = None
    against = join(silos[0], 1)
    base = against
    for number in (1, 2, 3):
        body, previous = coded_body(
            silos[0], number, base, random_tensors(LAYOUT, 7), OWN_LAST, against=against, held=previous
        )
        receipt = put(silos[0], number, body)
        assert receipt.status_code == 201, receipt.text
        assert_same_bytes(last_update(silos[0]), previous)
        finish_round(coordinator, silos, number)
        against = receipt.json()["digest"]
        if number < 3:
            base = join(silos[0], number + 1)
    # the loop is closed: what was lost in one round was in the next one's difference
    assert max(np.abs(previous[n] - v).max() for n, v in random_tensors(LAYOUT, 7).items()) < 0.02  # type: ignore[index]


def test_a_dense_update_can_be_the_next_reference(
    coordinator: Served,
) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}))
    first = deliver(silos[0], 1, random_tensors(LAYOUT, 1)).json()["digest"]
    finish_round(coordinator, silos, 1)
    base = join(silos[0], 2)
    body, expected = coded_body(
        silos[0], 2, base, random_tensors(LAYOUT, 2), OWN_LAST, against=first, held=random_tensors(LAYOUT, 1)
    )
    assert put(silos[0], 2, body).status_code == 201
    assert_same_bytes(last_update(silos[0]), expected)


def test_reference_mismatches_name_the_expected_digest(
    coordinator: Served,
) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}))
    first = deliver(silos[0], 1, random_tensors(LAYOUT, 1)).json()["digest"]
    finish_round(coordinator, silos, 1)
    base = join(silos[0], 2)
    for against in (base, None, "sha256:" + "0" * 64):
        body, _ = coded_body(silos[0], 2, base, random_tensors(LAYOUT, 2), OWN_LAST, against=against)
        refused = put(silos[0], 2, body)
        assert (refused.status_code, slug(refused)) == (412, "reference-mismatch")
        assert refused.json()["expected"] == first
    assert put(silos[0], 2, update_body(silos[0], 2, base, random_tensors(LAYOUT, 2))).status_code == 201


def test_an_abandoned_rounds_update_is_no_reference(coordinator: Served) -> None:
    rounds = {"collect_seconds": 0.6, "quorum": 2, "min_clients": 2}
    federation_id, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}, rounds=rounds))
    base = join(silos[0], 1)
    join(silos[1], 1)
    body, _ = coded_body(silos[0], 1, base, random_tensors(LAYOUT, 1), OWN_LAST, against=base)
    assert put(silos[0], 1, body).status_code == 201
    wait_for(coordinator, federation_id, 1, "abandoned")
    assert join(silos[0], 2) == base
    again, expected = coded_body(
        silos[0], 2, base, random_tensors(LAYOUT, 1), OWN_LAST, against=digest_of(body)
    )
    assert put(silos[0], 2, again).json()["expected"] == base
    again, expected = coded_body(silos[0], 2, base, random_tensors(LAYOUT, 1), OWN_LAST, against=base)
    assert put(silos[0], 2, again).status_code == 201
    assert_same_bytes(last_update(silos[0]), expected)


def test_served_differences_refer_to_the_present_rounds_weights(coordinator: Served) -> None:
    recipe = NAMED["int4_served"]
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_served"}))
    deliver(silos[0], 1, values(1.0))
    finish_round(coordinator, silos, 1)
    base = join(silos[0], 2)
    body, expected = coded_body(
        silos[0], 2, base, random_tensors(LAYOUT, 2), recipe, against=base, held=values(0.75)
    )
    assert put(silos[0], 2, body).status_code == 201
    assert_same_bytes(last_update(silos[0]), expected)


def test_zeros_served_to_lora_mean_its_start(coordinator: Served) -> None:
    silo = lora_silo(coordinator, "int4_own_last")
    base = join(silo, 1)
    rng = np.random.default_rng(0)
    after = {name: v + 0.01 * rng.normal(size=v.shape).astype(np.float32) for name, v in START.items()}
    body, expected = coded_body(silo, 1, base, after, OWN_LAST, against=base, held=START)
    assert put(silo, 1, body).status_code == 201
    assert_same_bytes(last_update(silo, layout_for(silo)), expected)


def test_a_clipped_state_is_the_next_reference(
    coordinator: Served,
) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}, limits={"clip_norm": 1.0}))
    base = join(silos[0], 1)
    body, expected = coded_body(silos[0], 1, base, values(100.0), OWN_LAST, against=base)
    receipt = put(silos[0], 1, body).json()
    assert receipt["clipped"] is True
    norm = np.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in expected.values()))
    clipped = {name: v * np.float32(1.0 / norm) for name, v in expected.items()}
    assert_same_bytes(last_update(silos[0]), clipped)
    finish_round(coordinator, silos, 1)
    base = join(silos[0], 2)
    body, expected = coded_body(
        silos[0], 2, base, values(0.1), OWN_LAST, against=receipt["digest"], held=clipped
    )
    assert put(silos[0], 2, body).status_code == 201
    assert_same_bytes(last_update(silos[0]), expected)


def test_coded_updates_are_idempotent_and_compressed_ones_too(coordinator: Served) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": "int4_own_last"}))
    base = join(silos[0], 1)
    body, expected = coded_body(
        silos[0], 1, base, random_tensors(LAYOUT, 1), OWN_LAST, against=base, compress=True
    )
    answers = [put(silos[0], 1, body, "zstd") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json() == answers[1].json()
    assert_same_bytes(last_update(silos[0]), expected)
    different, _ = coded_body(silos[0], 1, base, random_tensors(LAYOUT, 2), OWN_LAST, against=base)
    refused = put(silos[0], 1, different)
    assert (refused.status_code, slug(refused)) == (409, "upload-conflict")


@pytest.mark.parametrize(
    ("of_plan", "sent"),
    [
        ("dense", OWN_LAST),
        ("int4_own_last", NAMED["int8_own_last"]),
        ("int4_own_last", Recipe(reference="own_last", values="int4", block=128)),
        ("int4_own_last", NAMED["int4_served"]),
        ("dense", NAMED["dense"]),
        ("f16", NAMED["f16"]),
    ],
)
def test_streams_of_another_recipe_are_refused(coordinator: Served, of_plan: str, sent: Recipe) -> None:
    _, silos = running(coordinator, **plan(wire={"recipe": of_plan}))
    base = join(silos[0], 1)
    body, _ = coded_body(silos[0], 1, base, random_tensors(LAYOUT, 1), sent, against=base)
    refused = put(silos[0], 1, body)
    assert (refused.status_code, slug(refused)) == (422, "recipe")


def round_brief(silo: Silo) -> dict[str, Any]:
    answer: httpx.Response = silo.http.get(f"/v1/federations/{silo.federation_id}/rounds/current")
    return dict(answer.json())


def test_a_plan_shows_its_default_recipe_in_full(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    spelt = {"reference": "own_last", "density": 1.0, "values": "int4", "block": 64}
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]["wire"]
    both = {"recipe": spelt, "weights_recipe": "int8_own_last", "compression": "zstd", "max_bytes": None}
    assert shown == both == round_brief(silos[0])["wire"]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e-40])
def test_nonfinite_and_subnormal_coded_states_are_refused(coordinator: Served, value: float) -> None:
    recipe = Recipe(reference="served")
    _, silos = running(coordinator, **plan(wire={"recipe": recipe.model_dump()}))
    base = join(silos[0], 1)
    codes = np.frombuffer(np.full(6, value, "<f4").tobytes(), np.uint8)
    body, _ = coded_body(
        silos[0],
        1,
        base,
        random_tensors(LAYOUT, 1),
        recipe,
        against=base,
        change=lambda streams: streams.update(codes=codes),
    )
    refused = put(silos[0], 1, body)
    assert (refused.status_code, slug(refused)) == (422, "tensor-nonfinite")
    body, expected = coded_body(silos[0], 1, base, random_tensors(LAYOUT, 1), recipe, against=base)
    assert put(silos[0], 1, body).status_code == 201
    assert_same_bytes(last_update(silos[0]), expected)
