"""Alignment packs fitted from two models' answers to the same texts, for any tokenizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from client_agent.adapters.inject import inject_pq
from client_agent.alignment import fit_packs, module_selection
from client_agent.alignment.anchor_responses import random_targets, run_batch, sites_of, with_targets
from client_agent.alignment.fit_packs import aligned_pack, pivot_pack, random_pack
from client_agent.alignment.least_squares import Moments, Residual
from client_agent.alignment.pack import Pack
from client_agent.errors import AdapterInPlace, AlignmentImpossible
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from tests.scene.models import inject_random_pq
from tests.unit.client_agent.alignment.anchors import anchors_for

ADAPTER = AdapterPlan(rank=4, blocks=2)


ANCHORS = anchors_for()


@pytest.fixture(autouse=True)
def few_pseudo_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_selection, "FITTING_TASKS", 8)
    monkeypatch.setattr(module_selection, "HELD_OUT_TASKS", 3)


def plan_for(pivot: BaseModel) -> AlignmentPlan:
    return AlignmentPlan(pivot=pivot.slug, anchors=96)


def pivots_pack(pivot: BaseModel) -> Pack:
    return pivot_pack(pivot, ANCHORS, ADAPTER, plan_for(pivot), "fed")


def aligned(base: BaseModel, pivot: BaseModel, pack: Pack) -> Pack:
    return aligned_pack(base, pivot, pack, ANCHORS, ADAPTER, plan_for(pivot), "fed")


def test_pivots_pack_is_orthonormal_and_carries_responses(tiny: Callable[..., BaseModel]) -> None:
    pivot = tiny()
    pack = pivots_pack(pivot)
    tokens = sum(len(a.prompt) + len(a.answer) for a in ANCHORS)
    assert pack.tensors["offsets"].shape == (tokens, 3)
    assert pack.tensors["offsets"].dtype == np.int32
    assert pack.tensors["offsets"][:2].tolist() == [[0, 0, 1], [0, 1, 2]]
    answers = sum(len(a.answer) for a in ANCHORS)
    for name, (d_out, d_in) in {"b0.q": (32, 32), "b1.k": (16, 32), "b1.down": (32, 48)}.items():
        a, b = pack.tensors[f"{name}.A"], pack.tensors[f"{name}.B"]
        assert (a.shape, b.shape, a.dtype) == ((4, d_in), (d_out, 4), np.float32)
        np.testing.assert_allclose(a @ a.T, np.eye(4), atol=1e-5)
        np.testing.assert_allclose(b.T @ b, np.eye(4), atol=1e-5)
        assert pack.tensors[f"{name}.z"].shape == (tokens, 4)
        assert pack.tensors[f"{name}.g"].shape == (answers, 4)
        assert pack.tensors[f"{name}.g"].dtype == np.float16
    assert len(pack.manifest.selected) == 14
    assert pack.manifest.base_model == pivot.slug


def test_packs_contain_target_modules_only(tiny: Callable[..., BaseModel]) -> None:
    pivot, base = tiny(), tiny("qwen2", hidden_size=48, num_hidden_layers=6)
    few = ADAPTER.model_copy(update={"target_modules": ("b1.o", "b0.v")})
    plan = plan_for(pivot)
    pack = pivot_pack(pivot, ANCHORS, few, plan, "fed")
    whole = pivots_pack(pivot)
    assert pack.manifest.selected == ["b0.v", "b1.o"]
    assert np.array_equal(pack.tensors["b1.o.B"], whole.tensors["b1.o.B"])
    different = aligned_pack(base, pivot, pack, ANCHORS, few, plan, "fed")
    assert different.manifest.errors.keys() == {"b0.v", "b1.o"}


@pytest.mark.slow
def test_same_inputs_give_the_same_bytes(tiny: Callable[..., BaseModel]) -> None:
    pivot, base = tiny(), tiny("qwen2", hidden_size=48, num_hidden_layers=6)
    packs = [pivots_pack(pivot) for _ in range(2)]
    assert packs[0].to_body() == packs[1].to_body()
    assert aligned(base, pivot, packs[0]).to_body() == aligned(base, pivot, packs[1]).to_body()


def test_pack_is_restored_from_its_body(tiny: Callable[..., BaseModel]) -> None:
    pack = pivots_pack(tiny())
    back = Pack.from_body(pack.to_body())
    assert back.manifest == pack.manifest
    assert back.tensors.keys() == pack.tensors.keys()
    assert all(np.array_equal(back.tensors[name], values) for name, values in pack.tensors.items())
    for name, frame in back.frames(tiny()).items():
        assert frame.rate == pytest.approx(1, abs=1e-5), name


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3", "gpt_neox", "gpt2"])
def test_model_aligned_to_itself_has_small_errors(architecture: str, tiny: Callable[..., BaseModel]) -> None:
    pivot = tiny(architecture)
    pack = pivots_pack(pivot)
    itself = aligned(pivot, pivot, pack)
    for name, error in itself.manifest.errors.items():
        assert error.a < 0.05, name
        assert error.b_token < 0.3, name
    assert len(itself.manifest.selected) == 2 * len(pivot.shapes)
    assert itself.manifest.alignment_set == pack.manifest.alignment_set


@pytest.mark.slow
def test_architectures_are_aligned_in_their_common_roles(
    tiny: Callable[..., BaseModel],
) -> None:
    gated, plain = tiny(), tiny("gpt_neox", hidden_size=48, intermediate_size=64)
    for pivot, base in ((gated, plain), (plain, gated)):
        pack = aligned(base, pivot, pivots_pack(pivot))
        assert {name.split(".")[1] for name in pack.manifest.errors} == {"q", "k", "v", "o", "up", "down"}
        for name in pack.manifest.errors:
            d_out, d_in = base.shapes[name.split(".")[1]]
            assert pack.tensors[f"{name}.A"].shape == (4, d_in)
            assert pack.tensors[f"{name}.B"].shape == (d_out, 4)


def test_random_models_share_few_modules(tiny: Callable[..., BaseModel]) -> None:
    pivot, base = tiny(), tiny("qwen3", hidden_size=48, num_hidden_layers=6, seed=1)
    pack = aligned(base, pivot, pivots_pack(pivot))
    assert set(pack.manifest.errors) == {site.name for site in sites_of(base, ADAPTER)}
    assert set(pack.manifest.selected) < set(pack.manifest.errors)
    assert set(pack.frames(base)) == set(pack.manifest.selected)
    for name in pack.manifest.errors:
        assert (pack.manifest.errors[name].b_task < 0.85) == (name in pack.manifest.selected)


def test_different_tokens_are_matched_by_character(tiny: Callable[..., BaseModel]) -> None:
    pivot, base = tiny(), tiny(pairs=True, seed=1)
    pack = aligned(base, pivot, pivots_pack(pivot))
    assert all(np.isfinite(values).all() for values in pack.tensors.values())
    assert all(error.a < 1 for error in pack.manifest.errors.values())


def test_pack_of_other_anchors_or_pivot_is_refused(tiny: Callable[..., BaseModel]) -> None:
    pivot, different = tiny(), tiny(seed=1)
    pack = pivots_pack(pivot)
    for anchors, model in ((anchors_for(95), pivot), (ANCHORS, different)):
        with pytest.raises(AlignmentImpossible, match="was not made from"):
            aligned_pack(different, model, pack, anchors, ADAPTER, plan_for(pivot), "fed")


def test_too_few_anchors_are_refused(tiny: Callable[..., BaseModel]) -> None:
    pivot = tiny()
    with pytest.raises(AlignmentImpossible, match="too few"):
        pivot_pack(pivot, anchors_for(20), ADAPTER, plan_for(pivot), "fed")


def test_alignment_requires_bare_models(tiny: Callable[..., BaseModel]) -> None:
    pivot = tiny()
    with (
        inject_random_pq(pivot, ADAPTER),
        pytest.raises(AdapterInPlace),
    ):
        pivots_pack(pivot)


def test_invalid_pack_body_is_refused(tiny: Callable[..., BaseModel]) -> None:
    with pytest.raises(AlignmentImpossible, match="unreadable"):
        Pack.from_body(b"nonsense")
    pack = pivots_pack(tiny())
    lacking = {name: values for name, values in pack.tensors.items() if name != "b0.q.A"}
    with pytest.raises(AlignmentImpossible, match=r"b0\.q"):
        Pack.from_body(dataclasses.replace(pack, tensors=lacking).to_body())


def test_random_pack_selects_all_modules_at_rate_one(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    pack = random_pack(base, ADAPTER, plan_for(base), "fed")
    assert len(pack.manifest.selected) == 14
    assert pack.to_body() == random_pack(base, ADAPTER, plan_for(base), "fed").to_body()
    for frame in Pack.from_body(pack.to_body()).frames(base).values():
        assert frame.rate == pytest.approx(1, abs=1e-6)
    with inject_pq(base, ADAPTER, pack.frames(base), gated=False) as adapter:
        assert len(adapter.layout) == 28


@pytest.mark.slow
def test_blocks_are_fitted_separately_under_short_memory(
    tiny: Callable[..., BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pivot, base = tiny(), tiny("qwen2", seed=1)
    whole = aligned(base, pivot, pivots_pack(pivot))
    monkeypatch.setattr(fit_packs, "_MOMENT_BYTES", 1)
    piecewise = aligned(base, pivot, pivots_pack(pivot))
    for name, values in whole.tensors.items():
        np.testing.assert_allclose(piecewise.tensors[name], values, rtol=1e-3, atol=1e-4)


def test_progress_is_reported_to_the_end(tiny: Callable[..., BaseModel]) -> None:
    pivot = tiny()
    reports: list[tuple[str, int, int]] = []
    pivot_pack(
        pivot, ANCHORS, ADAPTER, plan_for(pivot), "fed", progress=lambda *report: reports.append(report)
    )
    assert reports[-1] == ("pivot: responses", 96, 96)


def test_captured_gradients_equal_autograd_and_leave_no_hooks(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    sites = sites_of(base, ADAPTER)
    texts = with_targets(base, ANCHORS, dict(enumerate(random_targets(ANCHORS, 0)[:5])))
    result = run_batch(base, sites, texts)
    site = next(site for site in sites if site.name == "b0.v")
    weight = site.linear.get_parameter("weight").requires_grad_(True)
    logits, targets = answer_logits(base, result.batch)
    (expected,) = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), weight
    )
    weight.requires_grad_(False)
    gradient = torch.einsum("nto,nti->oi", result.g["b0.v"], result.h[site.source])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert not any(module._forward_hooks for module in base.model.modules())
    assert not any(p.requires_grad or p.grad is not None for p in base.model.parameters())


def test_target_tokens_cover_the_answer_positions(tiny: Callable[..., BaseModel]) -> None:
    anchor = Anchor(id="a", prompt="ab=", answer="cdef")
    characters, pairs = tiny(), tiny(pairs=True)

    def words(base: BaseModel) -> list[str]:
        (text,) = with_targets(base, [anchor], {0: "wxyz"})
        return base.tokenizer.convert_ids_to_tokens([t for t in text.targets if t != NO_TARGET])

    assert words(characters) == ["w", "x", "y", "z"]
    assert words(pairs) == ["wx", "yz"]


def test_ridge_and_principal_directions_equal_closed_forms() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(200, 6, generator=generator), torch.randn(6, 3, generator=generator)
    moments, missed = Moments(), Residual()
    for part in x.split(33):
        moments.add(part, part @ w)
    torch.testing.assert_close(moments.ridge(1e-9), w.double(), rtol=1e-4, atol=1e-4)
    directions = moments.principal(2)
    _, _, v = torch.linalg.svd(x.double())
    torch.testing.assert_close((directions @ v.T).abs()[:, :2], torch.eye(2).double(), rtol=0, atol=1e-6)
    assert not moments.principal(8)[6:].any()
    missed.add(x.double() @ w.double() * 0.9, x @ w)
    assert missed.relative == pytest.approx(0.1, abs=1e-5)
