"""Information in a member's served weights about other members' adapters, over HTTP, and its claims."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from schemas.messages.updates import UpdateManifest
from schemas.peers import member_claims
from schemas.wire.envelope import pack, unpack
from schemas.wire.header import Slot
from tests.scene.coordinator import Served, Silo
from tests.scene.plans import federation_plan
from tests.scene.rounds import LAYOUT, deliver, join, plan, put, running, show, url, values, wait_for, weights
from tests.scene.tensors import random_tensors

MOSAIC = {"name": "fedmosaic"}
GUESS = np.array([1, 0.2, 0.1, 0.3], np.float32)
D_IN, D_OUT, RANK = 24, 16, 2


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("strategy", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("least", [1, 2])
def test_min_voices_hides_a_peers_adapter(coordinator: Served, strategy: str, least: int) -> None:
    private_plan = plan(strategy={"name": strategy}, privacy={"min_voices": least})
    federation_id, (curious, victim) = running(coordinator, **private_plan)
    private_values = random_tensors(LAYOUT, 1)
    secret = {
        name: 0.5 * private_values[name] + 0.7 * share for name, share in random_tensors(LAYOUT, 2).items()
    }  # they agree a little
    deliver(curious, 1, private_values)
    deliver(victim, 1, secret)
    wait_for(coordinator, federation_id, 1, "published")
    join(curious, 2)
    served = weights(curious, 2)
    claims = " ".join(coordinator.admin.get(f"/v1/federations/{federation_id}").json()["claims"])
    assert "confidential in transit and from other clients" not in claims
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    if least == 1:
        share, peer_share = shown["served"][0] if strategy == "fedmosaic" else (0.5, 0.5)
        for name in secret:
            np.testing.assert_allclose(
                (served[name] - share * private_values[name]) / peer_share, secret[name], atol=1e-5
            )
        assert "A mixture may be one other member's alone (privacy.min_voices 1)" in claims
    else:
        assert equal(served, private_values)
        assert shown["served"] == [[1.0, 0.0], [0.0, 1.0]]
        assert "few" in shown["held"][0][1]
        assert "only if it is made of 2 other members" in claims


def federation_with_spy(
    coordinator: Served, least: int
) -> tuple[str, list[Silo], list[dict[str, Any]], Silo]:
    small_plan = plan(
        strategy=MOSAIC,
        rounds={"total": 9, "min_clients": 3, "collect_seconds": 2.0},
        privacy={"min_voices": least},
    )
    federation_id, silos = running(coordinator, clients=3, **small_plan)
    sent = [random_tensors(LAYOUT, i) for i in range(3)]
    for silo, tensors, axis in zip(silos, sent, np.eye(4, dtype=np.float32), strict=False):
        deliver(silo, 1, tensors, signature=axis)
    wait_for(coordinator, federation_id, 1, "published")
    return federation_id, silos, sent, coordinator.enrol(federation_id, "spy")


@pytest.mark.parametrize("least", [1, 2, 3])
def test_min_voices_hides_adapters_from_a_guessed_sketch(coordinator: Served, least: int) -> None:
    federation_id, _, sent, spy = federation_with_spy(coordinator, least)
    join(spy, 2, GUESS)
    served = weights(spy, 2)
    assert equal(served, sent[0] if least == 1 else values(0.0))
    claims = " ".join(coordinator.admin.get(f"/v1/federations/{federation_id}").json()["claims"])
    assert ("newcomer that guesses a member's signature" in claims) is (least == 1)


@pytest.mark.slow
def test_a_silent_member_delays_at_most_two_rounds(coordinator: Served) -> None:
    federation_id, silos, sent, spy = federation_with_spy(coordinator, 1)
    waited = []
    for number in (2, 3, 4, 5):
        join(spy, number, GUESS)
        begin = time.monotonic()
        for silo, tensors in zip(silos, sent, strict=True):
            deliver(silo, number, tensors)
        wait_for(coordinator, federation_id, number, "published")
        waited.append(time.monotonic() - begin)
    assert min(waited[:2]) > 1.5
    assert max(waited[2:]) < 1.5
    for silo in (*silos, spy):
        join(silo, 6)
    deliver(spy, 6, random_tensors(LAYOUT, 9))  # nobody waits for it, and it delivers all the same
    for silo, tensors in zip(silos, sent, strict=True):
        deliver(silo, 6, tensors)
    assert wait_for(coordinator, federation_id, 6, "published")["counts"]["arrived"] == 4
    join(spy, 7)
    for silo, tensors in zip(silos, sent, strict=True):
        deliver(silo, 7, tensors)
    assert show(coordinator, federation_id, 7)["state"] == "collecting"  # it counts again, and is waited for


def test_members_that_only_join_start_no_deadline(coordinator: Served) -> None:
    rounds = {"total": 9, "min_clients": 2, "collect_seconds": 0.3}
    federation_id, silos = running(coordinator, **plan(rounds=rounds))
    for number in (1, 2):
        for silo in silos:
            join(silo, number)
        wait_for(coordinator, federation_id, number, "abandoned")
    for silo in silos:
        join(silo, 3)
    assert show(coordinator, federation_id, 3)["state"] == "open"
    for silo in silos:
        deliver(silo, 3, values(1.0))
    wait_for(coordinator, federation_id, 3, "published")


def lora(silo: Silo, number: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sent = {
        "l0.q.A": rng.standard_normal((RANK, D_IN)).astype(np.float32),
        "l0.q.B": rng.standard_normal((D_OUT, RANK)).astype(np.float32),
    }
    manifest = UpdateManifest(
        federation=silo.federation_id,
        recipe={},
        round=number,
        client=silo.client_id,
        base=join(silo, number),
        pack=None,
        examples=10,
    )
    answer = put(silo, number, pack(sent, manifest))
    assert answer.status_code == 201, answer.text
    return sent


def folded(silo: Silo, number: int) -> dict[str, Any]:
    join(silo, number)
    body = silo.http.get(url(silo, number, "/weights")).content
    slots = {
        "l0.q.A": Slot((RANK, D_IN), optional=True),
        "l0.q.B": Slot((D_OUT, RANK), optional=True),
        "l0.q.RA": Slot((None, D_IN), optional=True),
        "l0.q.RB": Slot((D_OUT, None), optional=True),
    }
    with unpack(body, encoding=None, expected=slots, max_bytes=2**20) as envelope:
        return {name: envelope.read_float32(name) for name in envelope.names}


@pytest.mark.parametrize("strategy", ["flora", "fedex_lora"])
@pytest.mark.parametrize("least", [1, 2, 3])
def test_a_fold_hides_factors_and_needs_min_voices(coordinator: Served, strategy: str, least: int) -> None:
    federation_id = coordinator.federation(
        strategy={"name": strategy},
        adapter={"kind": "lora", "rank": RANK, "blocks": 1, "roles": ["q"]},
        rounds={"total": 3, "min_clients": 3, "collect_seconds": 600},
        privacy={"min_voices": least},
    )
    profile: dict[str, Any] = {"layers": 1, "roles": ["q"], "shapes": {"q": [D_OUT, D_IN]}}
    silos = [coordinator.enrol(federation_id, f"l{i}", **profile) for i in range(3)]
    coordinator.start_federation(federation_id)
    sent = [lora(silo, 1, i) for i, silo in enumerate(silos)]
    wait_for(coordinator, federation_id, 1, "published")
    newcomer = coordinator.enrol(federation_id, "late", **profile)
    fold = folded(silos[0], 2)
    if least == 3:  # two others: too few
        assert equal(fold, sent[0])
        assert set(fold) == set(sent[0])
        assert folded(newcomer, 2) == {}
        return
    mean = sum(tensors["l0.q.B"].astype(float) @ tensors["l0.q.A"].astype(float) for tensors in sent) / 3
    acts = fold["l0.q.RB"].astype(float) @ fold["l0.q.RA"].astype(float)
    if strategy == "fedex_lora":
        acts = acts + fold["l0.q.B"].astype(float) @ fold["l0.q.A"].astype(float)
    np.testing.assert_allclose(acts, mean, atol=1e-5)
    middle = sum(tensors["l0.q.B"] for tensors in sent) / 3 if strategy == "fedex_lora" else 0.0
    assert fold["l0.q.RA"].shape[0] <= (4 if strategy == "fedex_lora" else 6)
    for tensors in sent:
        columns = np.asarray(tensors["l0.q.B"] - middle).T
        assert (
            max(_cosine(column, column_of_b) for column in columns for column_of_b in fold["l0.q.RB"].T)
            < 0.99
        )


def _cosine(left: Any, right: Any) -> float:
    return abs(float(left @ right / np.linalg.norm(left) / np.linalg.norm(right)))


def test_examples_are_capped_at_the_plans_maximum(coordinator: Served) -> None:
    rounds = {"total": 2, "min_clients": 3, "collect_seconds": 600}
    federation_id, silos = running(
        coordinator, clients=3, **plan(rounds=rounds, limits={"max_examples": 1000})
    )
    for i, silo in enumerate(silos):
        deliver(silo, 1, values(i + 1.0), examples=2**31 - 1 if i == 2 else 1000)
    shown = wait_for(coordinator, federation_id, 1, "published")
    join(silos[0], 2)
    np.testing.assert_allclose(weights(silos[0], 2)["b0.q.P"], 2.0, atol=1e-6)
    capped = {client["client_id"]: client["examples_capped"] for client in shown["clients"]}
    assert capped == {silo.client_id: i == 2 for i, silo in enumerate(silos)}


def test_max_examples_is_a_hundred_thousand_by_default() -> None:
    default_plan = federation_plan()
    assert (default_plan.limits.max_examples, default_plan.privacy.min_voices) == (100_000, 1)
    assert "With two members" in " ".join(member_claims(default_plan))
