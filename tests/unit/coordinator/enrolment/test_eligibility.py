"""Base models that a plan accepts, and the layout of a member's tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.coordinator import Served, slug


@pytest.mark.parametrize(
    ("adapter", "profile", "field"),
    [
        ({"blocks": 5}, {}, "profile.layers"),
        ({"layers": 5}, {}, "profile.layers"),
        ({"layers": [1, 4], "blocks": 1}, {}, "profile.layers"),
        (
            {"kind": "lora", "layers": 2, "roles": ["q"]},
            {"shapes": {"q": [2**21, 2**21]}},
            "profile.shapes",
        ),
        ({"kind": "lora"}, {}, "profile.shapes"),
        ({"kind": "lora", "roles": ["q", "up"]}, {"shapes": {"q": [96, 96]}}, "profile.shapes"),
        ({"same_architecture_rank": 1}, {}, "profile.shapes"),
        ({"same_architecture_rank": 8, "roles": ["q"]}, {"shapes": {"q": [2**21, 2**21]}}, "profile.shapes"),
        ({"same_architecture_rank": 1}, {"shapes": {"q": [1, 1]}, "layers": 8000}, "profile.shapes"),
        ({"roles": ["gate"]}, {"roles": ["q"]}, "profile.roles"),
        ({"roles": ["q", "gate"], "target_modules": ["b0.gate"]}, {"roles": ["q"]}, "profile.roles"),
        ({"kind": "lora", "roles": ["q"]}, {"shapes": {"q": [2**22, 2**22]}}, "profile.shapes"),
        ({"kind": "lora", "roles": ["q"]}, {"shapes": {"q": [1, 1]}, "layers": 10_000}, "profile.shapes"),
        (
            {"kind": "lora", "roles": ["q"]},
            {"layer_shapes": {"q": [[0, 9_999, 1, 1]]}, "layers": 10_000},
            "profile.shapes",
        ),
        ({"roles": ["q"]}, {"layers": 8, "layer_shapes": {"q": [[0, 0, 1, 1]]}}, "profile.roles"),
    ],
)
def test_models_that_cannot_carry_the_adapter_are_refused(
    coordinator: Served, adapter: dict[str, Any], profile: dict[str, Any], field: str
) -> None:
    token = coordinator.enrolment_token(coordinator.federation(adapter=adapter), "a")
    refused = coordinator.try_enrol(token, "a", **profile)
    assert (refused.status_code, slug(refused)) == (422, "validation")
    assert refused.json()["field"] == field


def test_a_refused_profile_keeps_its_token_valid(coordinator: Served) -> None:
    token = coordinator.enrolment_token(coordinator.federation(), "a")
    assert coordinator.try_enrol(token, "a", layers=2).status_code == 422
    assert coordinator.try_enrol(token, "a").status_code == 201


def test_lora_tensors_have_the_reported_shapes(coordinator: Served) -> None:
    federation_id = coordinator.federation(
        adapter={"kind": "lora", "rank": 4, "roles": ["q", "k"], "blocks": 1}
    )
    silo = coordinator.enrol(
        federation_id, "a", layers=1, shapes={"q": [96, 64], "k": [32, 64], "up": [1, 1]}
    )
    assert silo.http.get("/v1/me").json()["layout"] == {
        "l0.k.A": [4, 64],
        "l0.k.B": [32, 4],
        "l0.q.A": [4, 64],
        "l0.q.B": [96, 4],
    }


def test_a_layout_excludes_private_lora(coordinator: Served) -> None:
    adapter = {"rank": 3, "same_architecture_rank": 4, "private_rank": 5, "roles": ["q"], "blocks": 1}
    silo = coordinator.enrol(coordinator.federation(adapter=adapter), "a", layers=2, shapes={"q": [96, 64]})
    layout = silo.http.get("/v1/me").json()["layout"]
    assert list(layout) == sorted(layout)
    assert layout == {"b0.q.P": [3, 3], "b0.q.Q": [3]} | {
        name: shape
        for layer in (0, 1)
        for name, shape in ((f"l{layer}.q.A", [4, 64]), (f"l{layer}.q.B", [96, 4]))
    }


def test_target_modules_limit_p_and_q_not_lora(coordinator: Served) -> None:
    adapter = {"rank": 3, "roles": ["q", "v"], "blocks": 2, "target_modules": ["b1.v", "b0.q"]}
    shapes = {"q": [96, 64], "v": [32, 64]}
    federation_id = coordinator.federation(adapter={**adapter, "same_architecture_rank": 1})
    layout = (
        coordinator.enrol(federation_id, "a", layers=2, shapes=shapes).http.get("/v1/me").json()["layout"]
    )
    assert {name for name in layout if name.startswith("b")} == {"b0.q.P", "b0.q.Q", "b1.v.P", "b1.v.Q"}
    assert {name.rpartition(".")[0] for name in layout if name.startswith("l")} == {
        f"l{layer}.{role}" for layer in (0, 1) for role in ("q", "v")
    }


def test_an_aligned_layout_is_empty_before_the_pack(coordinator: Served) -> None:
    federation_id = coordinator.federation(alignment={"pivot": "tiny-s-3f0c9a1b2c3d"})
    assert coordinator.enrol(federation_id, "a").http.get("/v1/me").json()["layout"] == {}


def test_a_finished_federation_refuses_enrolments(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token = coordinator.enrolment_token(federation_id, "a")
    assert coordinator.admin.post(f"/v1/federations/{federation_id}/finish").status_code == 200
    refused = coordinator.try_enrol(token, "a")
    assert (refused.status_code, slug(refused)) == (409, "federation-state")
