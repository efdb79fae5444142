"""One battery of adapters for all architectures of the registry, on a tiny model of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import Adapter, LoraFactors
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.alignment.anchor_responses import random_targets, run_batch, sites_of, with_targets
from client_agent.model.architectures import linear_shape
from client_agent.model.examples import Example, encode_all
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, collate, pad_id
from client_agent.sketches.gradient import sketch_of
from schemas.maths.adapter import block_modules, lora_layout, pq_layout
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, Role, SignaturePlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(rank=8, blocks=2, scale=1.5)
FUSED = ("phi3", "gpt_neox", "gpt2")


def make_pq(base: BaseModel) -> Adapter:
    return inject_random_pq(base, PLAN)


def make_gated(base: BaseModel) -> Adapter:
    adapter = inject_random_pq(base, PLAN, gated=True)
    adapter.load_global(random_tensors(adapter.layout, 1, 0.3))
    return adapter


def make_lora(base: BaseModel) -> Adapter:
    return inject_lora(base, PLAN)


KINDS = pytest.mark.parametrize("make", [make_pq, make_gated, make_lora])


def batch_for(base: BaseModel, examples: list[Example]) -> Batch:
    return collate(encode_all(examples[:3], base.tokenizer, 64), pad=pad_id(base.tokenizer))


def logits_of(base: BaseModel, batch: Batch) -> Tensor:
    with torch.no_grad():
        return answer_logits(base, batch)[0]


def loss_of(base: BaseModel, batch: Batch) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(*answer_logits(base, batch)))


@contextmanager
def added_by_hand(model: nn.Module, factors: dict[str, LoraFactors]) -> Iterator[None]:
    """Add B A x + bias to the output of every module named."""

    def adding(lora: LoraFactors) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        a, b = torch.from_numpy(lora.A), torch.from_numpy(lora.B)
        bias = 0 if lora.bias is None else torch.from_numpy(lora.bias)
        return lambda _, arguments, output: output + arguments[0] @ a.T @ b.T + bias

    hooks = [model.get_submodule(path).register_forward_hook(adding(f)) for path, f in factors.items()]
    yield
    for hook in hooks:
        hook.remove()


def test_roles_of_a_layer_partition_its_outputs(each_architecture: BaseModel) -> None:
    base = each_architecture
    owned: dict[str, list[int]] = {}
    for role in base.shapes:
        rows = base.parts.row_numbers(0, role)
        assert base.shapes[role][0] == len(rows)
        owned.setdefault(base.parts.path(0, role), []).extend(rows.tolist())
    for path, rows in owned.items():
        assert sorted(rows) == list(range(linear_shape(base.model.get_submodule(path))[0])), path


@pytest.mark.parametrize("architecture", FUSED)
def test_fused_layer_rows_are_query_key_and_value(
    architecture: str,
    tiny: Callable[..., BaseModel],
    examples: list[Example],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tiny(architecture)
    base.model.set_attn_implementation("eager")
    module = sys.modules[type(base.model).__module__]
    attend, attended, fused = module.eager_attention_forward, [], []

    def record(layer: nn.Module, *heads: Tensor, **options: Any) -> Any:
        attended.append(heads[:3])
        return attend(layer, *heads, **options)

    monkeypatch.setattr(module, "eager_attention_forward", record)
    hook = base.parts.linear(base.model, 0, "q").register_forward_hook(lambda *call: fused.append(call[2]))
    logits_of(base, batch_for(base, examples))
    hook.remove()
    roles: tuple[Role, ...] = ("q", "k", "v")
    for role, heads in zip(roles, attended[0], strict=True):  # (n, heads, t, head_dim)
        role_outputs = fused[0][..., base.parts.row_numbers(0, role)].unflatten(-1, (-1, heads.shape[-1]))
        lengths = heads.transpose(1, 2).norm(dim=-1)  # positions are rotations: they keep a head's length
        torch.testing.assert_close(role_outputs.norm(dim=-1), lengths)
        assert role != "v" or torch.equal(role_outputs, heads.transpose(1, 2))


def test_phi3_gate_rows_go_through_the_activation(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny("phi3")
    activations: list[Tensor] = []
    mlp = base.model.get_submodule("model.layers.0.mlp")
    hooks = [
        mlp.get_submodule("gate_up_proj").register_forward_hook(lambda *call: activations.append(call[2])),
        mlp.get_submodule("activation_fn").register_forward_pre_hook(
            lambda *call: activations.append(call[1][0])
        ),
        mlp.get_submodule("down_proj").register_forward_pre_hook(
            lambda *call: activations.append(call[1][0])
        ),
    ]
    logits_of(base, batch_for(base, examples))
    for hook in hooks:
        hook.remove()
    fused, gate, product = activations
    assert torch.equal(fused[..., base.parts.row_numbers(0, "gate")], gate)
    up = fused[..., base.parts.row_numbers(0, "up")]
    torch.testing.assert_close(up * nn.functional.silu(gate), product)


def test_answer_logits_equal_the_models_logits(each_architecture: BaseModel, examples: list[Example]) -> None:
    base = each_architecture
    batch = batch_for(base, examples)
    with torch.no_grad():
        whole = base.model(input_ids=batch.ids, attention_mask=batch.attention).logits
    torch.testing.assert_close(logits_of(base, batch), whole[batch.targets != -100])


@KINDS
def test_adapter_starts_silent_learns_and_leaves_base_unchanged(
    each_architecture: BaseModel, examples: list[Example], make: Callable[[BaseModel], Adapter]
) -> None:
    base = each_architecture
    batch = batch_for(base, examples)
    bare = logits_of(base, batch)
    weights = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    modules = dict(base.model.named_modules())
    plan = TrainingPlan(steps=15, batch_size=3, learning_rate=0.03)
    with make(base) as adapter:
        if make is not make_gated:
            assert torch.equal(logits_of(base, batch), bare)
        before = loss_of(base, batch)
        train_examples(base, adapter, examples[:3], plan)
        assert loss_of(base, batch) < before - 0.3
    assert torch.equal(logits_of(base, batch), bare)
    after = base.model.state_dict()
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())
    assert all(module is modules[path] for path, module in base.model.named_modules())


@KINDS
def test_as_lora_computes_the_same_function(
    each_architecture: BaseModel, examples: list[Example], make: Callable[[BaseModel], Adapter]
) -> None:
    base = each_architecture
    batch = batch_for(base, examples)
    bare = logits_of(base, batch)
    with make(base) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        adapted, factors = logits_of(base, batch), adapter.as_lora()
    for path, lora in factors.items():
        d_out, d_in = linear_shape(base.model.get_submodule(path))
        assert (lora.A.shape[1], lora.B.shape[0]) == (d_in, d_out)
        assert lora.A.shape[0] == lora.B.shape[1]
        assert {lora.A.dtype, lora.B.dtype} == {np.dtype(np.float32)}
    scale = adapted.abs().max().item()
    with added_by_hand(base.model, factors):
        torch.testing.assert_close(logits_of(base, batch), adapted, rtol=1e-5, atol=1e-5 * scale)
    assert (adapted - bare).abs().max() > 1e-2


@pytest.mark.parametrize("architecture", FUSED)
@KINDS
def test_role_of_a_fused_layer_changes_its_outputs(
    architecture: str, tiny: Callable[..., BaseModel], make: Callable[[BaseModel], Adapter]
) -> None:
    base = tiny(architecture)
    x = torch.randn(5, base.hidden_size)
    bare = base.parts.linear(base.model, 1, "k")(x)
    with make(base) as adapter:
        adapter.load_private({n: np.float32(-50) * np.ones((), np.float32) for n in adapter.private_state()})
        noise = random_tensors(adapter.layout, scale=0.3)
        start = {name: values for name, values in adapter.state().items() if name.endswith(".A")}
        zeros = {name: np.zeros_like(values) for name, values in noise.items()}
        role_outputs = {name: values for name, values in noise.items() if name.split(".")[1] == "k"}
        adapter.load({**zeros, **start, **role_outputs})
        changed = base.parts.linear(base.model, 1, "k")(x) != bare
    rows = base.parts.row_numbers(0, "k")
    assert changed[:, rows].all()
    changed[:, rows] = False
    assert not changed.any()


def test_tensor_layout_equals_that_of_the_coordinator(
    each_architecture: BaseModel,
) -> None:
    base = each_architecture
    with make_pq(base) as adapter:
        assert adapter.layout == pq_layout(block_modules(2, base.shapes), 8)
        assert {name: values.shape for name, values in adapter.state().items()} == adapter.layout
    with make_lora(base) as adapter:
        assert adapter.layout == lora_layout(base.layers, base.shapes, 8)
        assert {name: values.shape for name, values in adapter.state().items()} == adapter.layout


@pytest.mark.parametrize("architecture", FUSED)
@pytest.mark.parametrize("kind", ["pq", "lora"])
def test_single_role_of_a_fused_layer_is_adaptable(
    architecture: str, kind: str, tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny(architecture)
    plan = AdapterPlan(rank=4, blocks=2, roles=("v",))
    frames = random_frames(base, plan, 0)
    training = TrainingPlan(steps=3, batch_size=4, learning_rate=0.02)
    batch = batch_for(base, examples)
    make = inject_lora(base, plan) if kind == "lora" else inject_pq(base, plan, frames, gated=False)
    with make as adapter:
        assert {name.split(".")[1] for name in adapter.layout} == {"v"}
        before = loss_of(base, batch)
        train_examples(base, adapter, examples[:3], training)
        assert loss_of(base, batch) < before - 0.01


def test_alignment_captures_gradient_and_input_of_each_role(each_architecture: BaseModel) -> None:
    base = each_architecture
    words = [f"{a}{b}" for a in "abcde" for b in "fghij"]
    anchors = [Anchor(id=w, prompt=f"say {w}=", answer=w) for w in words]
    sites = sites_of(base, PLAN)
    result = run_batch(
        base, sites, with_targets(base, anchors, dict(enumerate(random_targets(anchors, 0)[:5])))
    )
    for site in sites:
        weight = site.linear.get_parameter("weight").requires_grad_(True)
        logits, targets = answer_logits(base, result.batch)
        loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, weight)
        weight.requires_grad_(False)
        gradient = gradient.T if isinstance(site.linear, Conv1D) else gradient
        computed = torch.einsum("nto,nti->oi", result.g[site.name], result.h[site.source])
        assert computed.shape == (site.d_out, site.d_in)
        expected = gradient[site.rows]
        torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_sketch_is_finite_for_all_architectures(
    each_architecture: BaseModel, examples: list[Example]
) -> None:
    signature = sketch_of(each_architecture, examples, SignaturePlan(dim=64)).vector
    assert np.isfinite(signature).all()
    assert np.linalg.norm(signature) > 1e-3
