"""LoRA beside P and Q: combined output, shared and private ranks, and learning rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from client_agent.adapters.base import require_bare
from client_agent.adapters.frames import frame_of, random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import block_modules, lora_layout, pq_layout
from schemas.messages.federations import ALL_ROLES, AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import answer_logits_of, inject_random_pq
from tests.scene.tensors import random_tensors, zero_tensors

BOTH = AdapterPlan(rank=8, blocks=2, scale=1.5, same_architecture_rank=3, private_rank=2)
SHARED = BOTH.model_copy(update={"private_rank": 0})
PRIVATE = BOTH.model_copy(update={"same_architecture_rank": 0})
each_plan = pytest.mark.parametrize("plan", [BOTH, SHARED, PRIVATE], ids=["both", "shared", "private"])


@each_plan
def test_state_has_shared_ranks_and_no_private_ones(each_architecture: BaseModel, plan: AdapterPlan) -> None:
    base = each_architecture
    roles = [role for role in ALL_ROLES if role in base.shapes]
    with inject_random_pq(base, plan) as adapter:
        layout = pq_layout(block_modules(2, roles), 8)
        if plan.same_architecture_rank:
            layout |= lora_layout(base.layers, base.shapes, 3)
        assert adapter.layout == layout
        private = lora_layout(base.layers, base.shapes, 2) if plan.private_rank else {}
        assert {name: values.shape for name, values in adapter.private_state().items()} == {
            f"private.{name}": shape for name, shape in private.items()
        }


def test_output_is_sum_of_shared_private_and_pq(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    frames = random_frames(base, BOTH, 0)
    with inject_random_pq(base, BOTH) as adapter:
        state, private = (
            random_tensors(adapter.state(), scale=0.2),
            random_tensors(adapter.private_state(), 1, 0.2),
        )
        adapter.load(state)
        adapter.load_private(private)
        layer = base.parts.linear(base.model, 3, "down")
        x = torch.randn(2, base.shapes["down"][1])
        with torch.no_grad():
            output = layer(x)
    added = np.zeros(tuple(output.shape), np.float32)
    for a, b in (
        (state["l3.down.A"], state["l3.down.B"]),
        (private["private.l3.down.A"], private["private.l3.down.B"]),
        (frames["b1.down"].A, frames["b1.down"].B @ state["b1.down.P"]),
    ):
        added += x.numpy() @ a.T @ b.T
    added += frames["b1.down"].B @ state["b1.down.Q"]
    with torch.no_grad():
        expected = base.parts.linear(base.model, 3, "down")(x) + 1.5 * torch.from_numpy(added)
    torch.testing.assert_close(output, expected)


def test_zero_shared_ranks_start_with_drawn_a(
    tiny: Callable[..., BaseModel],
) -> None:
    """A newcomer of a base model that nobody else has gets P, Q from others and zeros for its LoRA."""
    with inject_random_pq(tiny(), BOTH) as adapter:
        start = adapter.state()
        private = random_tensors(adapter.private_state(), scale=0.2)
        adapter.load_private(private)
        adapter.load(zero_tensors(adapter.layout))
        for name, values in adapter.state().items():
            np.testing.assert_array_equal(values, start[name])
            assert values.any() == name.endswith(".A")
        for name, values in adapter.private_state().items():
            np.testing.assert_array_equal(values, private[name])


def test_shared_ranks_start_equal_with_any_private_rank(tiny: Callable[..., BaseModel]) -> None:
    starts = []
    for plan in (BOTH, SHARED):
        with inject_random_pq(tiny(), plan) as adapter:
            starts.append(adapter.state()["l2.up.A"])
    np.testing.assert_array_equal(*starts)


def test_lora_trains_at_a_third_of_plans_rate(
    tiny: Callable[..., BaseModel],
) -> None:
    base = tiny()
    frames = random_frames(base, BOTH, 0)
    frames["b0.q"] = frame_of(frames["b0.q"].A * 4, frames["b0.q"].B)
    with inject_pq(base, BOTH, frames, gated=False) as adapter:
        named = {id(parameter): name for name, parameter in adapter.named_parameters().items()}
        rates = {
            named[id(p)]: group["lr"] for group in adapter.parameter_groups(0.03) for p in group["params"]
        }
    assert rates.keys() == set(named.values())
    assert rates["b0.q.P"] == pytest.approx(0.03 * frames["b0.q"].rate)
    assert rates["b1.q.Q"] == pytest.approx(0.03)
    assert rates["lora.l0.q.A"] == rates["lora.l3.down.B"] == pytest.approx(0.01)
    lora = AdapterPlan(kind="lora", rank=4)
    with inject_lora(base, lora) as adapter:
        assert [group["lr"] for group in adapter.parameter_groups(0.03)] == [0.03]


def test_all_tensors_train_without_selected_modules(
    each_architecture: BaseModel, examples: list[Example]
) -> None:
    base = each_architecture
    frames = random_frames(base, BOTH, 0)
    for selected in (["b0.v", "b1.down"], []):
        chosen = {name: frames[name] for name in selected}
        with inject_pq(base, BOTH, chosen, gated=False) as adapter:
            assert {n for n in adapter.layout if n.startswith("b")} == {
                f"{m}.{t}" for m in selected for t in "PQ"
            }
            plan = TrainingPlan(steps=12, batch_size=4, max_length=64)
            losses = train_examples(base, adapter, examples[:4], plan).losses
            assert losses[-1] < losses[0] - 0.3
            for name, values in {**adapter.state(), **adapter.private_state()}.items():
                assert values.any(), name


def test_gates_work_with_private_but_not_shared_ranks(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    with inject_random_pq(base, PRIVATE, gated=True) as adapter:
        served = random_tensors(adapter.state(), 1, 0.2)
        adapter.load(random_tensors(adapter.state(), scale=0.2))
        adapter.load_global(served)
        private = adapter.private_state()
        assert {"b0.q.gate", "private.l0.q.A"} <= private.keys()
        private["b0.q.gate"] = np.array(30.0, np.float32)
        adapter.load_private(private)
        np.testing.assert_allclose(adapter.merged_state()["b0.q.P"], served["b0.q.P"], atol=1e-6)
        assert adapter.private_state()["b0.q.gate"] == 30.0
    with inject_random_pq(base, BOTH, gated=True) as adapter, pytest.raises(AdapterInPlace, match="mix gate"):
        adapter.load_global(adapter.state())


def test_model_is_bare_after_unfit_frames(tiny: Callable[..., BaseModel]) -> None:
    base, wider = tiny(), tiny(hidden_size=64)
    before = answer_logits_of(base)
    with pytest.raises(LayoutMismatch, match="alignment pack"):
        inject_pq(base, BOTH, random_frames(wider, BOTH, 0), gated=False)
    require_bare(base)
    assert torch.equal(answer_logits_of(base), before)


def test_adapter_as_one_lora_has_summed_rank(each_architecture: BaseModel) -> None:
    base = each_architecture
    with inject_random_pq(base, BOTH) as adapter:
        adapter.load(random_tensors(adapter.state(), scale=0.2))
        adapter.load_private(random_tensors(adapter.private_state(), 1, 0.2))
        factors = adapter.as_lora()
    for layer in range(base.layers):
        for role in base.shapes:
            lora = factors[base.parts.path(layer, role)]
            served = sum(base.parts.path(layer, peer) == base.parts.path(layer, role) for peer in base.shapes)
            wrapped = layer in (1, 3)
            assert lora.A.shape[0] == lora.B.shape[1] == served * (5 + 8 * wrapped)
            assert (lora.bias is not None) == wrapped
