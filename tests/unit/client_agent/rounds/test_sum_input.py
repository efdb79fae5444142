"""Input of a client with experts to a secure sum: counts, weighted changes and responsibilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from client_agent.rounds.sum_input import RoundResult, SumInput
from schemas.maths.adapter import in_order
from schemas.maths.start import from_start
from schemas.messages.scores import LOSS, Score, Scores
from schemas.secure_sum.counts import count_segments
from schemas.secure_sum.encoding import CLIP_UNIT, dequantise, largest_encoded
from schemas.secure_sum.segments import segments_of
from tests.scene.plans import federation_plan
from tests.scene.tensors import zero_tensors

SHAPES = {"l0.q.A": (2, 6), "l0.q.B": (5, 2)}
LAYOUT = in_order(SHAPES | {f"x{k}.{name}": shape for k in (1, 2) for name, shape in SHAPES.items()})
GROUPS = ("x0", "x1", "x2", "reject")
PLAN = federation_plan(
    rounds={"min_clients": 5, "quorum": 5},
    privacy={"secure_sum": {"minimum": 5, "weigh_up_to": 100, "clip": 1.0}},
)
SERVED = zero_tensors(LAYOUT)
START = {name: from_start(name, SERVED.__getitem__, PLAN.training.seed, LAYOUT) for name in LAYOUT}


def change(*trained: str) -> dict[str, np.ndarray]:
    """Return a change of the shared expert, and of the experts with these prefixes."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in LAYOUT.items()}
    return {name: values * name.startswith(("l0", *trained)) for name, values in drawn.items()}


def encoded(trained: dict[str, np.ndarray], **changes: Any) -> dict[str, np.ndarray]:
    """Return a client's input by segment: counts as integers, the others decoded."""
    summed = PLAN.privacy.secure_sum
    assert summed is not None
    score = {LOSS: Score(value=1.0, count=4)}
    result = RoundResult(
        plan=PLAN,
        summed=summed,
        layout=LAYOUT,
        served=SERVED,
        trained={name: START[name] + values for name, values in trained.items()},
        scores=Scores(served=score, trained=score, kept="trained"),
        examples=50,
        base=f"sha256:{'0' * 64}",
        **{"groups": GROUPS, **changes},
    )
    content = result.encode(1)
    tensors = safetensors.numpy.load(content)
    values = {group: tensors[group] for group in changes.get("groups", GROUPS)}
    for segment in segments_of(PLAN, LAYOUT, GROUPS):
        if segment.name in tensors:
            decoded = dequantise(tensors[segment.name].astype(np.int64), segment.clip, summed.bits)
            values[segment.name] = decoded
    both = (*count_segments(changes.get("groups", GROUPS)), *segments_of(PLAN, LAYOUT, ("x1",)))
    if "groups" not in changes:
        assert len(SumInput.from_bytes(content, both).values) == sum(segment.values for segment in both)
    return values


def test_trained_expert_has_member_counts_and_weighted_change() -> None:
    trained = change("x1")
    values = encoded(trained)
    assert [int(values[group][0]) for group in GROUPS] == [largest_encoded(16), largest_encoded(16), 0, 0]
    rounding = 2 * CLIP_UNIT * (2**20) / largest_encoded(16)
    for name in ("A", "B"):
        expected = 0.5 * trained[f"x1.l0.q.{name}"].ravel()  # half of the examples for full weight
        np.testing.assert_allclose(values[f"x1.{name}"], expected, atol=rounding)
        assert not values[f"x2.{name}"].any()
        assert not values[f"new.{name}"].any()
    assert values["x1.weight"] == pytest.approx(0.5, abs=rounding)
    assert values["x1.responsibility"] == 1
    assert values["x2.weight"] == values["x2.responsibility"] == values["new.weight"] == 0


def test_expert_weight_of_a_member_is_its_responsibility() -> None:
    trained = change("x1", "x2")
    values = encoded(trained, responsibilities={2: 0.25})
    rounding = 2 / largest_encoded(16)
    assert [int(values[group][0]) for group in GROUPS] == [largest_encoded(16), 0, largest_encoded(16), 0]
    assert values["x2.weight"] == pytest.approx(0.125, abs=rounding)
    assert values["x2.responsibility"] == pytest.approx(0.25, abs=rounding)
    np.testing.assert_allclose(values["x2.B"], 0.125 * trained["x2.l0.q.B"].ravel(), atol=rounding)
    assert not values["x1.B"].any()  # it was not chosen in this round


def test_costs_of_a_member_are_summed_with_their_squares() -> None:
    values = encoded(change("x1"), differences={1: {2: -0.25}})
    assert values["x1.differences"] == pytest.approx([1, -0.25, 0.0625], abs=2 / largest_encoded(16))
    assert values["x1.differences"][0] == 1  # exactly, so that the number of members is known
    assert not values["x2.differences"].any()


def test_member_without_probe_set_adds_random_large_costs() -> None:
    drawn = [encoded(change("x1"))["x1.differences"] for _ in range(8)]
    costs = np.array([values[1] for values in drawn])
    assert costs.min() >= 0.5 - 1e-4
    assert costs.max() <= 1
    assert np.ptp(costs) > 0.05
    assert all(values[0] == 1 for values in drawn)


def test_costs_beyond_the_loss_itself_are_clipped() -> None:
    values = encoded(change("x1"), differences={1: {2: 7.0}})
    np.testing.assert_array_equal(values["x1.differences"], [1, 1, 1])


def test_rejecting_member_repeats_shared_change_as_new_expert() -> None:
    trained = change()
    values = encoded(trained, rejects=True)
    assert int(values["reject"][0]) == largest_encoded(16)
    np.testing.assert_allclose(values["new.B"], values["B"], atol=2 / largest_encoded(16))
    assert values["new.weight"] == pytest.approx(values["weight"], abs=2 / largest_encoded(16))


def test_sum_input_without_groups_has_no_expert_values() -> None:
    values = encoded(change("x1"), groups=())
    assert sorted(values) == ["A", "B", "scores", "weight"]
