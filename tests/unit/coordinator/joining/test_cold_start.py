"""Cold start: newcomers begin with a mixture by their sketch, in the round of their join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scene.coordinator import PROFILE, Served, Silo, slug
from tests.scene.rounds import (
    deliver,
    fedmosaic_plan,
    join,
    running,
    show,
    signature_body,
    try_join,
    upload_headers,
    url,
    values,
    wait_for,
    weights,
)

EAST = np.array([1, 0, 0, 0], np.float32)
NORTH = np.array([0, 1, 0, 0], np.float32)
COLLECT_SECONDS = 1.5
"""Long enough for two clients to deliver, short enough to wait for one that never does."""


def short() -> dict[str, Any]:
    return {"rounds": {"total": 5, "min_clients": 2, "collect_seconds": COLLECT_SECONDS}}


def fedmosaic(**options: Any) -> dict[str, Any]:
    return fedmosaic_plan({"guard": "off", **options}, total=5)


def after_one_round(served: Served, **options: Any) -> tuple[str, list[Silo]]:
    """Two clients of different tasks have published a round: east has 1, north has 5."""
    federation_id, silos = running(served, **fedmosaic(**options))
    deliver(silos[0], 1, values(1.0), signature=EAST)
    deliver(silos[1], 1, values(5.0), signature=NORTH)
    wait_for(served, federation_id, 1, "published")
    return federation_id, silos


def first_weight(silo: Silo, number: int) -> float:
    return float(weights(silo, number)["b0.q.P"][0, 0])


@pytest.fixture(scope="module")
def first_round_federation(coordinator: Served) -> str:
    """A federation after its first round."""
    return after_one_round(coordinator)[0]


@pytest.mark.parametrize(
    ("name", "signature", "base_model", "value"),
    [
        ("like-one", NORTH * np.float32(0.7), PROFILE["base_model"], 5.0),
        ("unsigned", None, PROFILE["base_model"], 3.0),
        ("like-nobody", -EAST - NORTH, PROFILE["base_model"], 0.0),
        ("other-model", NORTH, "tiny-l-000000000000", 0.0),
    ],
)
def test_a_newcomer_is_weighed_at_join(
    coordinator: Served,
    first_round_federation: str,
    name: str,
    signature: NDArray[np.float32] | None,
    base_model: str,
    value: float,
) -> None:
    newcomer = coordinator.enrol(first_round_federation, name, base_model=base_model)
    join(newcomer, 2, signature)
    assert first_weight(newcomer, 2) == value


def test_a_revoked_client_has_no_relevance_for_newcomers(coordinator: Served) -> None:
    federation_id, silos = after_one_round(coordinator)
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    newcomer = coordinator.enrol(federation_id, "new")
    join(newcomer, 2)
    assert first_weight(newcomer, 2) == 5.0


def test_joining_again_ignores_another_sketch(coordinator: Served) -> None:
    federation_id, _ = after_one_round(coordinator)
    newcomer = coordinator.enrol(federation_id, "new")
    digest = join(newcomer, 2, NORTH)
    assert join(newcomer, 2, EAST) == digest
    assert join(newcomer, 2) == digest
    assert first_weight(newcomer, 2) == 5.0


def test_newcomers_without_an_update_are_weighed_again(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **(fedmosaic() | short()))
    for silo, fill, signature in zip(silos, (1.0, 5.0), (EAST, NORTH), strict=True):
        deliver(silo, 1, values(fill), signature=signature)
    wait_for(coordinator, federation_id, 1, "published")
    newcomer = coordinator.enrol(federation_id, "new")
    join(newcomer, 2, NORTH)
    assert first_weight(newcomer, 2) == 5.0
    for silo, fill, signature in zip(silos, (2.0, 7.0), (EAST, NORTH), strict=True):
        deliver(silo, 2, values(fill), signature=signature)
    shown = wait_for(coordinator, federation_id, 2, "published")
    assert shown["counts"] == {"joined": 3, "arrived": 2, "late": 0, "dropped": 0, "rejected": 0}
    join(newcomer, 3, EAST)
    assert first_weight(newcomer, 3) == 2.0


def test_sketches_of_earlier_joins_are_reused(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, clients=3, **(fedmosaic() | short()))
    join(silos[2], 1, NORTH)  # joins, and is never heard of in this round
    deliver(silos[0], 1, values(1.0), signature=EAST)
    deliver(silos[1], 1, values(5.0), signature=NORTH)
    shown = wait_for(coordinator, federation_id, 1, "published")
    assert shown["counts"] == {"joined": 3, "arrived": 2, "late": 0, "dropped": 0, "rejected": 0}
    join(silos[2], 2)  # without a signature it would get the mean
    assert first_weight(silos[2], 2) == 5.0


def test_established_clients_are_served_similar_clients(coordinator: Served) -> None:
    federation_id, silos = running(
        coordinator, clients=4, **(fedmosaic() | {"rounds": {"total": 2, "min_clients": 4}})
    )
    signatures = [EAST, NORTH, EAST, NORTH]
    for silo, fill, signature in zip(silos, (1.0, 5.0, 2.0, 6.0), signatures, strict=True):
        deliver(silo, 1, values(fill), signature=signature)
    wait_for(coordinator, federation_id, 1, "published")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert shown["clients"] == [silo.client_id for silo in silos]
    np.testing.assert_allclose(np.array(shown["relevance"])[0], [0.5, 0, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(np.array(shown["similarity"])[0], [1, 0, 1, 0], atol=1e-6)
    served = []
    for silo in silos:
        join(silo, 2)
        served.append(first_weight(silo, 2))
    np.testing.assert_allclose(served, [1.5, 5.5, 1.5, 5.5], atol=1e-5)


def test_a_newcomers_sketch_is_validated(coordinator: Served) -> None:
    federation_id, _ = after_one_round(coordinator)
    newcomer = coordinator.enrol(federation_id, "new")
    for signature, kind in ((EAST * 0, "signature-vector"), (EAST[:2], "signature-vector")):
        answer = try_join(newcomer, 2, signature)
        assert (answer.status_code, slug(answer)) == (422, kind)
    body = signature_body(newcomer, 1, EAST)  # of another round
    answer = newcomer.http.post(url(newcomer, 2, "/join"), content=body, headers=upload_headers(body))
    assert slug(answer) == "metadata"
    assert show(coordinator, federation_id, 2)["counts"]["joined"] == 0


def test_a_round_that_has_ended_refuses_joins(coordinator: Served) -> None:
    federation_id, silos = after_one_round(coordinator)
    newcomer = coordinator.enrol(federation_id, "new")
    assert slug(try_join(newcomer, 1)) == "round-closed"
    coordinator.admin.post(f"/v1/federations/{federation_id}/finish")
    assert slug(try_join(silos[0], 2)) == "round-closed"


def test_the_body_of_a_signature_is_counted_once(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator, **fedmosaic())
    before = coordinator.counted("tessera_bytes_up_total")
    size = len(signature_body(silo, 1, EAST))
    for _ in range(2):
        join(silo, 1, EAST)
    assert show(coordinator, federation_id, 1)["bytes"]["up"] == size
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{silo.client_id}").json()
    assert shown["bytes"]["up"] == size
    assert coordinator.counted("tessera_bytes_up_total") == before + size
