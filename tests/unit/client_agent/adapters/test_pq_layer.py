"""The PQ-LoRA layer: silent at the start, able to learn, float32; its gate mixes two branches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.layers import PQCore, PQLinear
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, encode, pad_id
from schemas.maths.adapter import block_modules, pq_layout
from schemas.messages.federations import ALL_ROLES, AdapterPlan
from tests.scene.models import inject_random_pq

PLAN = AdapterPlan(rank=8, blocks=2)


def layer(*, gated: bool = False, dtype: torch.dtype = torch.float32) -> PQLinear:
    torch.manual_seed(0)
    inner = nn.Linear(12, 10).to(dtype).requires_grad_(False)
    core = PQCore(4, torch.device("cpu"), gated=gated, bias=True)
    return PQLinear(inner, torch.randn(4, 12), torch.randn(10, 4), 2.0, cores=[core])


def core_of(wrapped: PQLinear) -> PQCore:
    (core,) = wrapped.cores
    assert isinstance(core, PQCore)
    return core


def test_pq_starts_silent_with_nonzero_gradients(
    each_architecture: BaseModel,
) -> None:
    base = each_architecture
    texts = [encode(base.tokenizer, "rev abc=", "cba", max_length=64)]
    batch = collate(texts, pad=pad_id(base.tokenizer))
    bare, _ = answer_logits(base, batch)
    with inject_random_pq(base, PLAN) as adapter:
        logits, targets = answer_logits(base, batch)
        assert torch.equal(logits, bare)
        nnf.cross_entropy(logits, targets).backward()  # type: ignore[no-untyped-call]
        for name, parameter in adapter.named_parameters().items():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_pq_layer_follows_the_papers_formula() -> None:
    wrapped = layer()
    core = core_of(wrapped)
    x = torch.randn(3, 5, 12)
    with torch.no_grad():
        core.P.normal_()
        core.Q.normal_()
    expected = wrapped.base_layer(x) + (x @ wrapped.A.T @ core.P.T + core.Q) @ wrapped.scaled_B.T
    torch.testing.assert_close(wrapped(x), expected)


def test_gated_layer_is_weighted_sum_of_two_branches() -> None:
    wrapped = layer(gated=True)
    core = core_of(wrapped)
    x = torch.randn(7, 12)
    with torch.no_grad():
        for tensor in (core.P, core.Q, core.P_global, core.Q_global):
            tensor.normal_()

    def branch(p: Tensor, q: Tensor) -> Tensor:
        return (x @ wrapped.A.T @ p.T + q) @ wrapped.scaled_B.T

    b = 1 / (1 + torch.exp(-core.gate))
    assert b.item() == pytest.approx(0.2, abs=1e-4)
    expected = (
        wrapped.base_layer(x) + (1 - b) * branch(core.P, core.Q) + b * branch(core.P_global, core.Q_global)
    )
    torch.testing.assert_close(wrapped(x), expected)


def test_gate_receives_a_gradient() -> None:
    wrapped = layer(gated=True)
    core = core_of(wrapped)
    core.P_global.normal_()
    wrapped(torch.randn(7, 12)).square().sum().backward()
    assert core.gate.grad is not None
    assert core.gate.grad.abs() > 0


def test_adapter_is_float32_around_a_bfloat16_layer() -> None:
    wrapped = layer(dtype=torch.bfloat16)
    core = core_of(wrapped)
    x = torch.randn(3, 12).bfloat16()
    with torch.no_grad():
        core.P.normal_()
    dtypes: list[torch.dtype] = []
    core.P.register_hook(lambda gradient: dtypes.append(gradient.dtype))
    y = wrapped(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert dtypes == [torch.float32]
    exact = ((x.float() @ wrapped.A.T @ core.P.T) @ wrapped.scaled_B.T).to(torch.bfloat16)
    assert torch.equal(y, wrapped.base_layer(x) + exact)


def test_travelling_tensors_do_not_depend_on_model_width(tiny: Callable[..., BaseModel]) -> None:
    layouts = []
    for changes in (
        {"hidden_size": 32},
        {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6},
    ):
        base = tiny("qwen2", **changes)
        with inject_random_pq(base, PLAN) as adapter:
            layouts.append({name: values.shape for name, values in adapter.state().items()})
    assert layouts[0] == layouts[1] == pq_layout(block_modules(2, ALL_ROLES), 8)
