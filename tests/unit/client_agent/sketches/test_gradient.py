"""Sketches: the closed form equals the gradient, angles are kept, unusable sketches are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional as nnf

from client_agent.errors import AdapterInPlace, SketchUnusable
from client_agent.model.examples import Example, encode_all, probe_set
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText, collate, pad_id
from client_agent.sketches.gradient import (
    Sketch,
    count_sketch,
    ema,
    last_block_gradient,
    reliability_of,
    sketch_of,
)
from schemas.messages.federations import AdapterPlan, SignaturePlan
from schemas.messages.updates import Reliability
from tests.scene.models import inject_random_pq

PLAN = SignaturePlan(dim=64)


def texts_for(base: BaseModel, examples: Sequence[Example]) -> list[TokenizedText]:
    return encode_all(examples, base.tokenizer, 64)


def by_autograd(base: BaseModel, texts: Sequence[TokenizedText]) -> Tensor:
    """The gradient of the summed loss with respect to the last block's `down` weight: (d_out, d_in)."""
    weight = base.parts.linear(base.model, base.layers - 1, "down").get_parameter("weight")
    weight.requires_grad_(True)
    logits, targets = answer_logits(base, collate(texts, pad=pad_id(base.tokenizer)))
    (gradient,) = torch.autograd.grad(nnf.cross_entropy(logits, targets, reduction="sum"), weight)
    weight.requires_grad_(False)
    return gradient if tuple(gradient.shape) == base.shapes["down"] else gradient.T


def test_closed_form_gradient_equals_autograd(each_architecture: BaseModel, examples: list[Example]) -> None:
    base = each_architecture
    texts = texts_for(base, examples[:6])
    expected = by_autograd(base, texts)
    g, u, _ = last_block_gradient(base, collate(texts, pad=pad_id(base.tokenizer)))
    torch.testing.assert_close(g.T @ u, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_padding_does_not_change_the_gradient(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    texts = texts_for(base, examples[:3])
    sums = []
    for length in (None, 60):
        g, u, _ = last_block_gradient(base, collate(texts, pad=pad_id(base.tokenizer), length=length))
        sums.append(g.T @ u)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-6)


def test_sketch_of_any_batches_is_mean_clipped_gradient(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    examples = examples[:6]
    parts = []
    for text in texts_for(base, examples):
        gradient = by_autograd(base, [text]) / sum(text.answer)
        parts.append(gradient * min(1.0, PLAN.clip / gradient.norm().item()))
    expected = count_sketch(torch.stack(parts).mean(0).numpy(), PLAN.dim, PLAN.seed)
    for batch_size in (1, 4, 6):
        np.testing.assert_allclose(
            sketch_of(base, examples, PLAN, batch_size=batch_size).vector, expected, atol=1e-5
        )


def test_sketch_is_no_longer_than_the_clip(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    short = sketch_of(base, examples, PLAN.model_copy(update={"clip": 0.01})).vector
    assert 0 < np.linalg.norm(short) <= 0.01 * (1 + 1e-6)


def test_sketch_keeps_the_cosine() -> None:
    rng = np.random.default_rng(0)
    errors = []
    for pair in range(40):
        x, noise = rng.standard_normal((2, 60, 50)).astype(np.float32)
        y = x * 0.6 + noise * 0.8
        true = float((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))
        a, b = count_sketch(x, 256, pair), count_sketch(y, 256, pair)
        errors.append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) - true)
    assert np.sqrt(np.mean(np.square(errors))) < 1 / np.sqrt(256)
    assert abs(np.mean(errors)) < 0.03


def test_sketch_is_linear_and_portable() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(count_sketch(2 * matrix, 5, 7), 2 * count_sketch(matrix, 5, 7))
    assert count_sketch(matrix, 5, 7).tolist() == GOLDEN_SKETCH
    assert count_sketch(matrix, 5, 8).tolist() != GOLDEN_SKETCH


GOLDEN_SKETCH = [-8.0, 14.0, -21.0, 4.0, 9.0]


def test_large_matrix_is_sketched_in_pieces() -> None:
    matrix = np.zeros((1025, 1024), np.float32)
    matrix[-1, -1] = 3
    assert sorted(np.abs(count_sketch(matrix, 16, 0)).tolist())[-2:] == [0.0, 3.0]


def test_equal_tasks_have_closer_sketches_than_different_ones(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    words = [f"{a}{b}{c}" for a in "abcdef" for b in "ghijk" for c in "lmn"]
    plan = SignaturePlan(dim=256, probe_examples=40)

    def sketch_for(answer: Callable[[str], str], part: list[str]) -> np.ndarray:
        return sketch_of(base, [Example(f"t {w}=", answer(w)) for w in part], plan).vector

    first, second = sketch_for(lambda w: w[::-1], words[:40]), sketch_for(lambda w: w[::-1], words[40:80])
    different = sketch_for(lambda w: "7" * len(w), words[40:80])

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(first, second) > cosine(first, different) + 0.3


def test_gradient_sketch_needs_the_bare_model(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    plan = AdapterPlan(rank=8, blocks=2)
    with inject_random_pq(base, plan), pytest.raises(AdapterInPlace):
        sketch_of(base, examples, PLAN)


def test_sketch_leaves_no_hook(each_architecture: BaseModel, examples: list[Example]) -> None:
    base = each_architecture
    sketch_of(base, examples, PLAN)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in base.model.modules())


def test_probe_set_does_not_depend_on_example_order(examples: list[Example]) -> None:
    chosen = probe_set(examples, 5)
    assert probe_set([*reversed(examples), examples[0]], 5) == chosen
    assert len(set(chosen)) == 5


def test_useless_sketches_are_refused(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with pytest.raises(SketchUnusable, match="no example"):
        sketch_of(base, [], PLAN)
    with torch.no_grad():
        base.model.get_submodule("model.norm").get_parameter("weight").fill_(float("nan"))
    with pytest.raises(SketchUnusable, match="not finite"):
        sketch_of(base, examples, PLAN)
    with torch.no_grad():
        base.model.get_submodule("model.norm").get_parameter("weight").fill_(0)
    with pytest.raises(SketchUnusable, match="zero"):
        sketch_of(base, examples, PLAN)


def test_moving_average_weights_the_new_sketch() -> None:
    east, north = (Sketch(np.float32(vector), 0.5) for vector in ([1, 0], [0, 1]))
    np.testing.assert_allclose(ema(east, north, 0.25).vector, [0.75, 0.25])
    with pytest.raises(SketchUnusable):
        ema(east, Sketch(np.float32([0, 1, 2]), 0.5), 0.5)


def test_reliability_is_expected_cosine_of_two_samples() -> None:
    """Means of n noisy copies of one vector: their cosine is what one sample alone already foretells."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    for n in (8, 32):
        samples = truth + 3 * rng.normal(size=(400, n, 200))
        means = samples.mean(1)
        squares = (samples**2).sum(-1).mean(1)
        foretold = [reliability_of(s, float(m @ m), n) for s, m in zip(squares, means, strict=True)]
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[np.triu_indices(400, 1)]
        assert np.mean(foretold) == pytest.approx(cosines.mean(), abs=0.01)


def test_reliability_is_always_a_share_above_zero() -> None:
    """Of few and scattered gradients the estimate falls below 0, which no coordinator takes as a share."""
    scattered = reliability_of(mean_square=100.0, square_of_mean=1.0, count=8)
    assert 1 - (100.0 - 1.0) / 7 / 1.0 < 0 < scattered < 0.01
    assert TypeAdapter(Reliability).validate_python(scattered) == scattered
    # Rounding may make equal gradients' mean longer than they are.
    assert reliability_of(mean_square=1.0, square_of_mean=1.0 + 1e-6, count=8) == 1.0
    assert reliability_of(mean_square=4.0, square_of_mean=2.0, count=5) == pytest.approx(0.75)


def test_reliability_grows_with_the_number_of_examples(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    few, many, single = (
        sketch_of(base, examples, PLAN.model_copy(update={"probe_examples": n})).reliability
        for n in (4, len(examples), 1)
    )
    assert 0 < few < many < 1
    assert single == 1.0


def test_sketch_is_restored_from_its_bytes() -> None:
    sketch = Sketch(np.float32([1, 2]), 0.25)
    again = Sketch.from_bytes(sketch.to_bytes())
    assert again.reliability == 0.25
    assert again.vector.tolist() == [1, 2]
