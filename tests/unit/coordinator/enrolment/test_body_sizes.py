"""Sizes of a plan's bodies, computed before a body is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.db.ids import new_id
from coordinator.enrolment.body_sizes import header_bytes
from coordinator.enrolment.eligibility import check_eligible
from coordinator.errors import Invalid
from coordinator.strategies import opening
from coordinator.weights.base_delta import increment_head
from schemas.maths.adapter import SIGNATURE, Layout, delta_layout, in_order, size
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import ALL_ROLES, FederationPlan
from schemas.messages.updates import AdapterStateManifest, Manifest, UpdateManifest, WeightsManifest
from schemas.strategies.registry import strategy_names
from schemas.wire.envelope import head
from tests.scene.coordinator import PROFILE

DIGEST = f"sha256:{0:064}"
LARGEST = 2**40
NAMES = [name for name in strategy_names() if name != "ca_pfl"]
DEEP = {"layers": 126, "shapes": {role: [16384, 16384] for role in ALL_ROLES}}


def open_strategy(strategy: str, **plan: Any) -> opening.OpenedPlan:
    fields = {"adapter": {"kind": "lora", "rank": 1}, "limits": {"max_update_bytes": LARGEST}} | plan
    plan_fields = {"name": "a", "strategy": {"name": strategy}, **fields}
    return opening.open_plan(FederationPlan.model_validate(plan_fields))


def heads_of_a_round(plan: opening.OpenedPlan, layout: Layout) -> list[bytes]:
    """Write the heads of an update, weights, a state and the largest base delta, with real ids."""
    ids = {"federation": new_id("fed"), "client": new_id("cli"), "recipe": {}, "round": 1000}
    weights = WeightsManifest(**ids, pack=DIGEST)
    update = UpdateManifest(
        **ids,
        base=DIGEST,
        pack=DIGEST,
        examples=100_000,
        signature_reliability=1 / 3,
        signature_epsilon=1 / 3,
    )
    bodies: list[tuple[Layout, Manifest]] = [
        (layout | {SIGNATURE: (plan.plan.signature.dim,)}, update),
        (layout, weights),
        (layout, AdapterStateManifest(**ids, pack=DIGEST)),
    ]
    heads = [head(tensors, manifest) for tensors, manifest in bodies]
    if plan.options.base_delta:
        heads.append(increment_head(in_order(layout | delta_layout(layout)), weights, fold_from=999))
    return heads


@pytest.mark.parametrize("strategy", NAMES)
@settings(deadline=None, max_examples=10)
@given(st.integers(30, 126), st.integers(1, 2**16), st.integers(1, 2**16), st.integers(1, 64))
def test_headers_are_counted_to_within_two_percent(
    strategy: str, layers: int, d_in: int, d_out: int, rank: int
) -> None:
    plan = open_strategy(strategy, adapter={"kind": "lora", "rank": rank})
    profile = Profile.model_validate(
        PROFILE | {"layers": layers, "shapes": dict.fromkeys(ALL_ROLES, (d_out, d_in))}
    )
    layout = client_layout(
        plan.plan.adapter, profile, None, travels=plan.options.travels, beside=plan.options.beside
    )
    written = max(map(len, heads_of_a_round(plan, layout)))
    counted = header_bytes(plan.plan, layout, base_delta=plan.options.base_delta)
    assert written <= counted <= 1.02 * written


@pytest.mark.parametrize("strategy", NAMES)
def test_a_model_of_126_layers_is_eligible(strategy: str) -> None:
    check_eligible(open_strategy(strategy), "open", Profile.model_validate(PROFILE | DEEP), has_key=True)


@pytest.mark.parametrize(
    ("strategy", "layers", "fact"),
    [
        ("fedavg", 1000, "14000 tensors need a header of"),
        ("fedavg", 10_000, "140000 tensors need a header of"),
        ("fedex_lora", 500, "a strategy without a base delta"),
    ],
)
def test_a_model_with_too_many_layers_is_refused(strategy: str, layers: int, fact: str) -> None:
    profile = Profile.model_validate(PROFILE | DEEP | {"layers": layers})
    with pytest.raises(Invalid, match=r"a plan with fewer adapter\.roles") as refused:
        check_eligible(open_strategy(strategy), "open", profile, has_key=True)
    assert fact in refused.value.detail


def test_tensors_that_do_not_travel_are_not_counted() -> None:
    profile = Profile.model_validate(PROFILE | DEEP | {"layers": 950})
    check_eligible(open_strategy("ffa_lora"), "open", profile, has_key=True)
    with pytest.raises(Invalid):
        check_eligible(open_strategy("fedavg"), "open", profile, has_key=True)


def test_an_oversized_update_is_refused_with_its_size() -> None:
    profile = Profile.model_validate(PROFILE | DEEP)
    plan = open_strategy("fedavg", limits={})
    values = size(client_layout(plan.plan.adapter, profile, None))
    with pytest.raises(
        Invalid, match=r"lower adapter\.rank.* or a larger limits\.max_update_bytes"
    ) as refused:
        check_eligible(plan, "open", profile, has_key=True)
    assert int(refused.value.detail.split()[6]) > 4 * values


def test_models_with_oversized_alignment_packs_are_refused() -> None:
    alignment = {"alignment": {"pivot": "tiny-s-3f0c9a1b2c3d"}}
    profile = Profile.model_validate(PROFILE | DEEP)
    check_eligible(open_strategy("fedavg", adapter={"rank": 32}, **alignment), "open", profile, has_key=True)
    with pytest.raises(Invalid, match="alignment pack"):
        check_eligible(
            open_strategy("fedavg", adapter={"rank": 128}, **alignment), "open", profile, has_key=True
        )
