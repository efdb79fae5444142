"""Gradient sketches over the rounds of a plan: computed once, unless they are private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.errors import SketchUnusable
from client_agent.model.loading import BaseModel
from client_agent.rounds import sketch
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.sketch import compute_sketch
from client_agent.sketches.gradient import Sketch, sketch_of
from client_agent.storage.round_folder import SKETCH
from tests.scene.agents import DP, alone_plan, limited_sleep, next_brief

Started = Callable[..., Participant]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Sketch]:
    """Return the sketches that are computed during a test."""
    sketches: list[Sketch] = []

    def counted(*inputs: Any) -> Sketch:
        sketches.append(sketch_of(*inputs))
        return sketches[-1]

    monkeypatch.setattr(sketch, "sketch_of", counted)
    return sketches


def opened_with(participant: Participant, **signature: object) -> OpenedBrief:
    brief = next_brief(participant)
    changed = brief.signature.model_copy(update=signature)
    return OpenedBrief.of(brief.model_copy(update={"signature": changed}))


def test_sketch_of_a_plan_is_computed_once(started: Started, computed: list[Sketch]) -> None:
    participant = started(**alone_plan(rounds={"total": 2, "min_clients": 1}))
    run(participant, limited_sleep(500))
    (only,) = computed
    for number in (1, 2):
        sent = Sketch.from_bytes(participant.workspace.rounds.open(number).read(SKETCH))
        np.testing.assert_allclose(sent.vector, only.vector, rtol=1e-6)


def test_sketch_is_recomputed_for_another_plan_or_pivot(
    started: Started, computed: list[Sketch], monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., BaseModel]
) -> None:
    participant = started(**alone_plan())
    plain, seeded = opened_with(participant), opened_with(participant, seed=1)
    assert compute_sketch(participant.trainer, plain) is compute_sketch(participant.trainer, plain)
    assert compute_sketch(participant.trainer, seeded) is not compute_sketch(participant.trainer, plain)
    pivot = tiny(name="pivot", seed=7)
    monkeypatch.setattr(participant.trainer.silo, "_pivot", pivot)
    compute_sketch(participant.trainer, opened_with(participant, model=pivot.slug))
    assert len(computed) == 3


def test_failed_sketch_is_computed_again(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    participant = started(**alone_plan())
    opened = opened_with(participant)
    with monkeypatch.context() as patched:
        patched.setattr(sketch, "sketch_of", lambda *_: (_ for _ in ()).throw(SketchUnusable("zero")))
        with pytest.raises(SketchUnusable):
            compute_sketch(participant.trainer, opened)
    assert np.linalg.norm(compute_sketch(participant.trainer, opened).vector) > 0


def test_private_sketches_are_never_cached(started: Started, computed: list[Sketch]) -> None:
    participant = started(**alone_plan(signature={"dp": DP}, rounds={"total": 2, "min_clients": 1}))
    run(participant, limited_sleep(500))
    assert not computed
    assert not participant.trainer.sketches
