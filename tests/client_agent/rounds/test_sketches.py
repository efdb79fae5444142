"""Gradient sketches without differential privacy over the rounds of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.rounds import sketch
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.sketch import compute_sketch
from client_agent.sketches.gradient import Sketch, sketch_of
from client_agent.storage.round_folder import SIGNATURE
from tests.client_agent.conftest import next_brief
from tests.client_agent.test_daemon import alone_plan, naps


def test_the_sketch_of_a_plan_is_computed_once(
    started: Callable[..., Participant], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Sketch] = []

    def counted(*inputs: Any) -> Sketch:
        computed.append(sketch_of(*inputs))
        return computed[-1]

    monkeypatch.setattr(sketch, "sketch_of", counted)
    who = started(**alone_plan(rounds={"total": 2, "min_clients": 1}))
    brief = next_brief(who)
    run(who, naps(500))
    (only,) = computed
    for number in (1, 2):
        kept = Sketch.from_bytes(who.workspace.rounds.open(number).read(SIGNATURE))
        np.testing.assert_allclose(kept.vector, only.vector, rtol=1e-6)

    other = brief.signature.model_copy(update={"seed": 1})
    compute_sketch(who.trainer, OpenedBrief.of(brief.model_copy(update={"signature": other})))
    assert len(computed) == 2
