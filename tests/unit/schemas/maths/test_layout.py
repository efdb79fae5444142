"""Layers at the ends of blocks, and names of an adapter's tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.maths.adapter import block_modules, lora_layout, module_of, pq_layout, size
from schemas.maths.blocks import block_ends
from schemas.maths.layout import block_roles, client_layout, shape_in
from schemas.messages.enrolment import Profile
from schemas.messages.federations import ALL_ROLES, AdapterPlan
from tests.scene.plans import federation_plan


@pytest.mark.parametrize(
    ("layers", "ends"),
    [
        (16, (3, 7, 11, 15)),
        (24, (5, 11, 17, 23)),
        (28, (6, 13, 20, 27)),
        (32, (7, 15, 23, 31)),
        (36, (8, 17, 26, 35)),
        (4, (0, 1, 2, 3)),
    ],
)
def test_block_ends_match_the_table(layers: int, ends: tuple[int, ...]) -> None:
    assert block_ends(layers, 4) == ends


@given(st.integers(1, 200), st.integers(1, 16))
def test_block_ends_are_distinct_with_the_last_layer(layers: int, blocks: int) -> None:
    if layers < blocks:
        with pytest.raises(ValueError, match="cannot be cut"):
            block_ends(layers, blocks)
        return
    ends = block_ends(layers, blocks)
    assert len(set(ends)) == blocks
    assert list(ends) == sorted(ends)
    assert ends[-1] == layers - 1


def test_a_pq_payload_has_the_published_size() -> None:
    assert size(pq_layout(block_modules(4, ALL_ROLES), 16)) == 7_616
    assert size(pq_layout(block_modules(4, ALL_ROLES), 128)) == 462_336


def test_a_lora_payload_has_the_published_size() -> None:
    llama_3b = {"q": (3072, 3072), "v": (1024, 3072)}
    assert size(lora_layout(28, llama_3b, 8)) == 2_293_760


def test_a_layout_has_the_order_of_safetensors() -> None:
    layout = pq_layout(["b10.q", "b2.v", "b0.down"], 2)
    assert list(layout) == sorted(layout)
    assert {module_of(name) for name in layout} == {"b10.q", "b2.v", "b0.down"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_modules": []},
        {"target_modules": ["b4.q"]},
        {"target_modules": ["b0.q", "b0.q"]},
        {"target_modules": ["q"]},
        {"target_modules": ["b0.q"], "roles": ["v"]},
        {"target_modules": ["b0.q"], "kind": "lora"},
    ],
)
def test_target_modules_outside_the_plan_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="target_modules"):
        AdapterPlan.model_validate({"blocks": 4} | wrong)


def test_modules_are_common_to_plan_and_model() -> None:
    plan = AdapterPlan(blocks=2, roles=("v", "gate", "q"), target_modules=("b1.gate", "b1.q", "b0.v"))
    assert plan.modules() == ("b0.v", "b1.gate", "b1.q")
    assert plan.modules(["b0.v", "b1.q"]) == ("b0.v", "b1.q")
    assert AdapterPlan(blocks=2, roles=("v", "q")).modules(["b0.q", "b1.q", "b1.up"]) == ("b0.q", "b1.q")


def test_bias_is_true_by_default_except_with_lora() -> None:
    assert AdapterPlan.model_validate({"rank": 8}).bias
    assert not AdapterPlan.model_validate({"kind": "lora"}).bias
    assert AdapterPlan(kind="lora", bias=False) == AdapterPlan(kind="lora")
    with pytest.raises(ValidationError, match=r"bias\n.*must be false with kind lora"):
        AdapterPlan(kind="lora", bias=True)


def test_a_pq_layout_without_bias_has_p_only() -> None:
    assert pq_layout(["b0.v", "b0.down"], 2, bias=False) == {"b0.down.P": (2, 2), "b0.v.P": (2, 2)}


def test_a_minimal_plan_has_the_documented_defaults() -> None:
    plan = federation_plan("fedmosaic")
    assert (plan.adapter.kind, plan.adapter.rank, plan.adapter.scale, plan.adapter.blocks) == (
        "pq",
        32,
        2.0,
        4,
    )
    assert plan.adapter.roles == ALL_ROLES
    assert (plan.rounds.total, plan.rounds.min_clients, plan.rounds.quorum) == (10, 2, 2)
    assert (plan.rounds.collect_seconds, plan.rounds.max_staleness, plan.rounds.staleness_decay) == (
        3600,
        3,
        0.5,
    )
    assert (plan.training.steps, plan.training.batch_size, plan.training.max_length) == (20, 8, 512)
    assert (plan.training.learning_rate, plan.training.schedule) == ("auto", "constant")
    assert (plan.signature.kind, plan.signature.dim, plan.signature.probe_examples) == ("gradient", 256, 32)
    assert (plan.signature.ema, plan.signature.seed, plan.alignment) == (0.5, 0, None)
    assert (plan.limits.max_update_bytes, plan.limits.max_norm, plan.limits.clip_norm) == (
        64 * 2**20,
        1e4,
        None,
    )


MIXED: dict[str, object] = {
    **{"architecture": "a", "base_model": "a-8x4-000000000000", "hidden_size": 8, "layers": 4},
    **{"agent_version": "1", "protocol_version": 1, "roles": ("q", "up"), "shapes": {"q": (8, 8)}},
}


def test_layers_have_tensors_of_their_own_shapes() -> None:
    profile = Profile.model_validate(MIXED | {"layer_shapes": {"up": ((0, 0, 48, 8), (3, 3, 24, 8))}})
    plan = AdapterPlan(kind="lora", rank=2, roles=("up", "q"), blocks=2)
    layout = client_layout(plan, profile, None)
    assert [name for name in layout if "up.B" in name] == ["l0.up.B", "l3.up.B"]
    assert (layout["l0.up.B"], layout["l3.up.B"], layout["l3.up.A"]) == ((48, 2), (24, 2), (2, 8))
    assert len(layout) == 2 * (4 + 2)
    assert [shape_in(layer, "up", profile) for layer in range(4)] == [(48, 8), None, None, (24, 8)]
    blocks = AdapterPlan(rank=2, roles=("up", "q"), blocks=2)  # they end in layers 1 and 3
    assert block_roles(blocks, profile) == ("b0.q", "b1.up", "b1.q")


@pytest.mark.parametrize(
    "runs",
    [
        {"q": ((0, 0, 8, 8),)},  # in shapes too
        {"up": ()},
        {"up": ((2, 1, 8, 8),)},
        {"up": ((0, 1, 8, 8), (1, 2, 8, 8))},
        {"up": ((3, 4, 8, 8),)},
        {"down": ((0, 0, 8, 8),)},  # not one of roles
        {"up": ((0, 0, 8, 8),) * 501},
    ],
)
def test_invalid_runs_of_layers_are_refused(runs: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="layer_shapes"):
        Profile.model_validate(MIXED | {"layer_shapes": runs})
