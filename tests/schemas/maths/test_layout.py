"""Which layers end blocks, and what an adapter's tensors are called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.maths.adapter import block_modules, lora_layout, module_of, pq_layout, size
from schemas.maths.blocks import block_ends
from schemas.messages.federations import ALL_ROLES, AdapterPlan, FederationPlan


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
def test_block_ends_are_those_of_the_design(layers: int, ends: tuple[int, ...]) -> None:
    assert block_ends(layers, 4) == ends


@given(st.integers(1, 200), st.integers(1, 16))
def test_block_ends_are_distinct_and_the_last_layer_is_one(layers: int, blocks: int) -> None:
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


def test_a_layout_is_in_the_order_in_which_safetensors_writes() -> None:
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
def test_target_modules_are_some_of_the_plans_blocks_and_roles(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="target_modules"):
        AdapterPlan.model_validate({"blocks": 4} | wrong)


def test_modules_are_those_that_plan_and_model_have_in_one_order() -> None:
    plan = AdapterPlan(blocks=2, roles=("v", "gate", "q"), target_modules=("b1.gate", "b1.q", "b0.v"))
    assert plan.modules() == ("b0.v", "b1.gate", "b1.q")
    assert plan.modules(["b0.v", "b1.q"]) == ("b0.v", "b1.q")
    assert AdapterPlan(blocks=2, roles=("v", "q")).modules(["b0.q", "b1.q", "b1.up"]) == ("b0.q", "b1.q")


def test_a_plan_without_the_field_trained_q_and_lora_has_no_bias() -> None:
    assert AdapterPlan.model_validate({"rank": 8}).bias
    assert not AdapterPlan.model_validate({"kind": "lora"}).bias
    assert AdapterPlan(kind="lora", bias=False) == AdapterPlan(kind="lora")
    with pytest.raises(ValidationError, match=r"bias\n.*must be false with kind lora"):
        AdapterPlan(kind="lora", bias=True)


def test_without_bias_there_is_p_alone() -> None:
    assert pq_layout(["b0.v", "b0.down"], 2, bias=False) == {"b0.down.P": (2, 2), "b0.v.P": (2, 2)}


def test_a_plan_of_two_fields_has_the_defaults_of_the_contract() -> None:
    plan = FederationPlan.model_validate({"name": "n", "strategy": {"name": "fedmosaic"}})
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
