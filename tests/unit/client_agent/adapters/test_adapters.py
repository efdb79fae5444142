"""P and Q, and LoRA: adapted modules, frames, gates and learning rates."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from client_agent.adapters.frames import frame_of, random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.adapters.layers import PQLinear
from client_agent.errors import LayoutMismatch
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import lora_layout
from schemas.messages.federations import AdapterPlan
from tests.scene.models import answer_logits_of, inject_random_pq
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(rank=8, blocks=2)


def test_last_layer_of_each_block_is_wrapped(tiny: Callable[..., BaseModel]) -> None:
    for layers, ends in ((4, [1, 3]), (5, [1, 4]), (7, [2, 6])):
        base = tiny(num_hidden_layers=layers)
        with inject_random_pq(base, PLAN):
            wrapped = {
                int(path.split(".")[2])
                for path, module in base.model.named_modules()
                if isinstance(module, PQLinear)
            }
        assert sorted(wrapped) == ends


def test_tensor_names_do_not_depend_on_depth(tiny: Callable[..., BaseModel]) -> None:
    names = []
    for layers in (4, 7):
        base = tiny(num_hidden_layers=layers)
        with inject_random_pq(base, PLAN) as adapter:
            names.append(list(adapter.layout))
    assert names[0] == names[1]
    assert "b1.down.P" in names[0]


def test_target_modules_alone_have_p_and_q(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    plan = PLAN.model_copy(update={"target_modules": ("b1.down", "b0.q"), "same_architecture_rank": 2})
    frames = random_frames(base, plan, 0)
    assert list(frames) == ["b0.q", "b1.down"]
    everything = random_frames(base, PLAN, 0)
    assert np.array_equal(frames["b0.q"].A, everything["b0.q"].A)
    with inject_pq(base, plan, everything, gated=False) as adapter:
        assert {name.rpartition(".")[0] for name in adapter.layout if name.endswith(".P")} == set(frames)
        assert "l0.k.A" in adapter.layout  # the LoRA beside them is in every layer


def test_only_framed_modules_are_wrapped(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    frames = random_frames(base, PLAN, 0)
    with inject_pq(base, PLAN, {n: frames[n] for n in ("b0.v", "b1.down")}, gated=False) as adapter:
        assert list(adapter.layout) == ["b0.v.P", "b0.v.Q", "b1.down.P", "b1.down.Q"]
        assert sum(isinstance(module, PQLinear) for module in base.model.modules()) == 2


def test_roles_outside_the_plan_stay_unwrapped(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    plan = AdapterPlan(rank=8, blocks=2, roles=("q",))
    with inject_pq(base, plan, random_frames(base, PLAN, 0), gated=False) as adapter:
        assert list(adapter.layout) == ["b0.q.P", "b0.q.Q", "b1.q.P", "b1.q.Q"]


def test_missing_or_foreign_frames_are_refused(tiny: Callable[..., BaseModel]) -> None:
    base, wider = tiny(), tiny(hidden_size=64)
    for frames in (random_frames(wider, PLAN, 0), random_frames(base, AdapterPlan(rank=4), 0), {}):
        with pytest.raises(LayoutMismatch, match="alignment pack"):
            inject_pq(base, PLAN, frames, gated=False)
    assert not any(isinstance(module, PQLinear) for module in base.model.modules())


def test_model_with_fewer_layers_than_blocks_is_refused(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    deep = AdapterPlan(rank=8, blocks=5)
    with pytest.raises(LayoutMismatch, match="4 layers cannot be cut into 5 blocks"):
        inject_random_pq(base, deep)


def test_gates_are_private_and_merged_state_equals_mixture(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    frames = random_frames(base, PLAN, 0)
    with inject_pq(base, PLAN, frames, gated=True) as adapter:
        local, served = (
            random_tensors(adapter.layout),
            {n: -v for n, v in random_tensors(adapter.layout).items()},
        )
        adapter.load(local)
        adapter.load_global(served)
        assert not any("gate" in name.split(".")[-1] for name in adapter.state())
        gates = {name: np.float32(0.5 * i - 3) for i, name in enumerate(adapter.private_state())}
        assert len(gates) == len(frames)
        adapter.load_private({name: np.array(value) for name, value in gates.items()})
        merged, mixed = adapter.merged_state(), answer_logits_of(base)
        b = 1 / (1 + np.exp(-gates["b1.v.gate"]))
        np.testing.assert_allclose(merged["b1.v.P"], (1 - 2 * b) * local["b1.v.P"], rtol=1e-4, atol=1e-5)
    with inject_pq(base, PLAN, frames, gated=False) as adapter:
        adapter.load(merged)
        torch.testing.assert_close(answer_logits_of(base), mixed)


def test_frames_have_their_own_learning_rates(
    tiny: Callable[..., BaseModel],
) -> None:
    base = tiny()
    frames = random_frames(base, PLAN, 0)
    frames["b0.q"] = frame_of(frames["b0.q"].A * 4, frames["b0.q"].B)
    with inject_pq(base, PLAN, frames, gated=True) as adapter:
        named = {id(parameter): name for name, parameter in adapter.named_parameters().items()}
        rates = {
            named[id(parameter)]: (group["lr"], group.get("weight_decay"))
            for group in adapter.parameter_groups(0.01)
            for parameter in group["params"]
        }
    assert rates.keys() == set(named.values())
    assert rates["b0.q.P"][0] == rates["b0.q.gate"][0] == pytest.approx(0.01 * frames["b0.q"].rate)
    assert rates["b0.k.P"] == (0.01, None)
    assert rates["b0.k.gate"] == (0.01, 0.0)


def test_lora_adapts_all_layers_with_contract_names(each_architecture: BaseModel) -> None:
    base = each_architecture
    plan = AdapterPlan(kind="lora", rank=4, scale=3.0, roles=("q", "v", "down"))
    before = answer_logits_of(base)
    with inject_lora(base, plan) as adapter:
        shapes = {role: base.shapes[role] for role in plan.roles}
        assert adapter.layout == lora_layout(base.layers, shapes, 4)
        assert torch.equal(answer_logits_of(base), before)
        state = adapter.state()
        assert all(not values.any() for name, values in state.items() if name.endswith(".B"))
        state["l0.q.B"] = np.ones_like(state["l0.q.B"])
        adapter.load(state)
        x = torch.randn(2, base.hidden_size)
        layer = base.parts.linear(base.model, 0, "q")
        a, b = torch.from_numpy(state["l0.q.A"]), torch.from_numpy(state["l0.q.B"])
        expected = layer.base_layer(x)
        expected[:, base.parts.row_numbers(0, "q")] += 3.0 * x @ a.T @ b.T
        torch.testing.assert_close(layer(x), expected)


def test_lora_start_follows_from_the_seed(tiny: Callable[..., BaseModel]) -> None:
    states = []
    for seed in (0, 0, 1):
        with inject_lora(tiny(), PLAN, seed=seed) as adapter:
            states.append(adapter.state()["l2.up.A"])
    np.testing.assert_array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


@pytest.mark.slow
def test_repeated_rounds_leave_no_tensors_or_hooks(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def one_round() -> None:
        with inject_random_pq(base, PLAN, gated=True) as adapter:
            adapter.load(random_tensors(adapter.layout))
            answer_logits_of(base)

    one_round()
    before = tensors()
    for _ in range(20):
        one_round()
    assert tensors() == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in base.model.modules())


def test_random_frames_follow_from_seed_with_rate_one(tiny: Callable[..., BaseModel]) -> None:
    frames, again, different = (random_frames(tiny(), PLAN, seed) for seed in (3, 3, 4))
    for name, frame in frames.items():
        np.testing.assert_array_equal(frame.A, again[name].A)
        np.testing.assert_array_equal(frame.B, again[name].B)
        assert not np.array_equal(frame.A, different[name].A)
        assert frame.rate == 1
        assert frame_of(frame.A, frame.B).rate == pytest.approx(1, abs=1e-6)
    assert not np.array_equal(frames["b0.q"].A, frames["b1.q"].A)
    assert np.sign(frames["b0.q"].A[0, :8]).tolist() == GOLDEN_SIGNS  # the same on every machine


GOLDEN_SIGNS = [1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0]
