"""Updates with P and Q, shared by all clients, and LoRA, shared inside each base model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scene.alignment import LARGE, PIVOT, RANDOM_SET, pack_body
from tests.scene.alignment import deliver_pack as deliver_pack
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import join, layout_for, put, show, update_body, wait_for, weights
from tests.scene.tensors import filled_tensors

THIRD = "tiny-m-bbbbbbbbbbbb"
SHAPES = {"q": [5, 6]}  # of every base model: shapes alone must not decide
LORA = ("l0.q.A", "l0.q.B", "l1.q.A", "l1.q.B")


def create_federation(served: Served, strategy: dict[str, Any]) -> str:
    federation_id = served.federation(
        strategy=strategy,
        adapter={"rank": 2, "blocks": 1, "roles": ["q"], "same_architecture_rank": 3},
        rounds={"total": 3, "min_clients": 4, "collect_seconds": 600},
        signature={"dim": 4},
        alignment={"pivot": PIVOT, "frames": "random"},
    )
    frames = {"b0.q.A": np.ones((2, 6), np.float32), "b0.q.B": np.ones((5, 2), np.float32)}
    for model in (PIVOT, LARGE, THIRD):
        pack = pack_body(federation_id, model, frames, selected=["b0.q"], errors={}, alignment_set=RANDOM_SET)
        assert deliver_pack(served.admin, federation_id, model, pack).status_code == 201
    return federation_id


def enrol(served: Served, federation_id: str, name: str, model: str) -> Silo:
    return served.enrol(federation_id, name, base_model=model, layers=2, shapes=SHAPES)


def pack_digest(silo: Silo, model: str) -> str:
    answer = silo.http.get(f"/v1/federations/{silo.federation_id}/alignments/{model}")
    return answer.headers["etag"].strip('"')


def deliver(silo: Silo, model: str, number: int, shared: float, own: float, signature: list[float]) -> None:
    base = join(silo, number)
    tensors = {
        name: np.full(shape, own if name in LORA else shared, np.float32)
        for name, shape in layout_for(silo).items()
    }
    content = update_body(
        silo, number, base, tensors, signature=np.array(signature, np.float32), pack=pack_digest(silo, model)
    )
    answer = put(silo, number, content)
    assert answer.status_code == 201, answer.text


def served_values(silo: Silo, number: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the repeated values that are served of P and Q, and of LoRA."""
    read = weights(silo, number, layout_for(silo))
    assert {*read} == {"b0.q.P", "b0.q.Q", *LORA}
    lora = np.concatenate([read[name].ravel() for name in LORA])
    shared = np.concatenate([read[f"b0.q.{part}"].ravel() for part in "PQ"])
    return np.unique(shared), np.unique(lora)


ALIKE = [1.0, 0.0, 0.0, 0.0]


def test_lora_is_averaged_inside_each_base_model(coordinator: Served) -> None:
    federation_id = create_federation(coordinator, {"name": "fedavg"})
    models = [PIVOT, PIVOT, LARGE, LARGE]
    silos = [enrol(coordinator, federation_id, f"silo-{i}", model) for i, model in enumerate(models)]
    coordinator.start_federation(federation_id)
    for i, (silo, model) in enumerate(zip(silos, models, strict=True)):
        deliver(silo, model, 1, shared=float(i), own=10.0 * i, signature=ALIKE)
    wait_for(coordinator, federation_id, 1, "published")
    for i, silo in enumerate(silos):
        join(silo, 2)
        shared, lora = served_values(silo, 2)
        np.testing.assert_allclose(shared, [1.5], rtol=1e-6)
        np.testing.assert_allclose(lora, [5.0 if i < 2 else 25.0], rtol=1e-6)
    newcomers = {model: enrol(coordinator, federation_id, f"new-{model}", model) for model in (LARGE, THIRD)}
    for model, own_of_it in ((LARGE, 25.0), (THIRD, 0.0)):
        join(newcomers[model], 2, np.array(ALIKE, np.float32))
        shared, lora = served_values(newcomers[model], 2)
        np.testing.assert_allclose(shared, [1.5], rtol=1e-6)
        np.testing.assert_allclose(lora, [own_of_it], rtol=1e-6)


def test_lora_follows_relevance_inside_its_base_model(coordinator: Served) -> None:
    federation_id = create_federation(
        coordinator,
        {"name": "fedmosaic", "options": {"guard": "off", "sources": "all", "evidence": "sketches"}},
    )
    models = [PIVOT, PIVOT, PIVOT, LARGE]
    signatures = [ALIKE, ALIKE, [0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    silos = [enrol(coordinator, federation_id, f"silo-{i}", model) for i, model in enumerate(models)]
    coordinator.start_federation(federation_id)
    for i, (silo, model, signature) in enumerate(zip(silos, models, signatures, strict=True)):
        deliver(silo, model, 1, shared=float(i), own=10.0 * i, signature=signature)
    wait_for(coordinator, federation_id, 1, "published")
    views = []
    for silo in silos:
        join(silo, 2)
        views.append([float(values[0]) for values in served_values(silo, 2)])
    # The last two are alike but of different base models: P and Q are mixed, LoRA stays where it was.
    np.testing.assert_allclose(views, [[0.5, 5], [0.5, 5], [2.5, 20], [2.5, 30]], rtol=1e-6)
    relevance = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()[
        "relevance"
    ]
    np.testing.assert_allclose(np.sum(relevance, axis=1), 1.0)


def test_updates_with_missing_or_private_lora_are_refused(coordinator: Served) -> None:
    federation_id = create_federation(coordinator, {"name": "fedavg"})
    silo = enrol(coordinator, federation_id, "a", PIVOT)
    coordinator.start_federation(federation_id)
    base = join(silo, 1)
    whole = filled_tensors(layout_for(silo), 1.0)
    digest = pack_digest(silo, PIVOT)
    private = {"private.l0.q.A": np.ones((3, 6), np.float32)}
    for wrong in ({n: v for n, v in whole.items() if n != "l1.q.B"}, whole | private):
        answer = put(silo, 1, update_body(silo, 1, base, wrong, pack=digest))
        assert answer.status_code == 422, answer.text
    assert put(silo, 1, update_body(silo, 1, base, whole, pack=digest)).status_code == 201
    assert show(coordinator, federation_id, 1)["clients"][0]["norm"] == pytest.approx(np.sqrt(6 + 2 * 3 * 11))
