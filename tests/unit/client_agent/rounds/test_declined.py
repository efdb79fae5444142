"""A client that is served weights worse than its own trains on from its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.adapters.base import State
from client_agent.adapters.inject import inject
from client_agent.errors import Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.strategy import load_strategy
from client_agent.rounds.train import zeros_like
from client_agent.rounds.training_result import TrainingResult
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from tests.scene.local_training import train_one_round

ADAPTER = AdapterPlan(kind="lora", rank=4, roles=["v", "down"])
PLAN = TrainingPlan(steps=4, batch_size=4, max_length=64, learning_rate=0.01)
SCORES = ScoresPlan(examples=8, new_tokens=0)


def silo_of(base: BaseModel, *, answer: Callable[[int], str], validation: int = 16) -> Silo:
    rows = tuple(Example(f"rev {i}=", answer(i)) for i in range(100, 124 + validation))
    return Silo(base, SiloData(rows[:8], rows[24:], rows[8:24]), None)


def trained_from(
    silo: Silo,
    start: State | None = None,
    earlier: TrainingResult | None = None,
    *,
    declines: bool = False,
    **changes: Any,
) -> TrainingResult:
    """Train a round from a state, by default from zeros."""
    with inject(silo.base, ADAPTER, {}, gated=False, seed=0) as adapter:
        start = start or zeros_like(adapter)
        facts = {"scores": SCORES, "start": start, "earlier": earlier, "declines": declines, **changes}
        return train_one_round(silo, adapter, ADAPTER, PLAN, **facts)


def is_equal(state: State, other: State) -> bool:
    return all(np.array_equal(state[name], other[name]) for name in other)


@pytest.fixture
def own(tiny: Callable[..., BaseModel]) -> Silo:
    return silo_of(tiny(), answer=lambda number: str(number)[::-1])


@pytest.fixture
def stranger(own: Silo) -> State:
    """What a silo learns whose answers are others."""
    return trained_from(silo_of(own.base, answer=lambda _: "zzzz")).adapter


def test_client_declines_a_worse_state(own: Silo, stranger: State) -> None:
    before = trained_from(own)
    declined = trained_from(own, stranger, before, declines=True)
    assert declined.scores.began == "trained"
    assert is_equal(declined.adapter, trained_from(own, before.adapter, before).adapter)
    # Scored and stored is what was served, so that the effect of mixing is seen.
    assert is_equal(declined.start, stranger)
    assert declined.scores.mixing is not None
    assert declined.scores.mixing.value > 0
    read = TrainingResult.from_bytes(declined.to_bytes())
    assert (read.scores, read.validation_digest) == (declined.scores, before.validation_digest)


def test_stopped_client_declines_again_and_resumes(
    own: Silo, stranger: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = trained_from(own)
    expected = trained_from(own, stranger, before, declines=True)
    checkpoint = TrainingCheckpoint(tmp_path / "partial.safetensors", 0.0)
    stops = iter([False, False, True])
    with pytest.raises(Stopped):
        trained_from(
            own, stranger, before, declines=True, checkpoint=checkpoint, stop=lambda: next(stops, True)
        )
    caplog.set_level("INFO")
    resumed = trained_from(own, stranger, before, declines=True, checkpoint=checkpoint)
    assert "resuming after step 2 of 4" in caplog.text
    assert resumed.to_bytes() == expected.to_bytes()


def test_client_continues_from_an_equal_state(own: Silo) -> None:
    before = trained_from(own)
    assert trained_from(own, before.adapter, before, declines=True).scores.began == "served"


def test_client_declines_nothing_unasked(own: Silo, stranger: State) -> None:
    before = trained_from(own)
    continued = trained_from(own, stranger, before)
    assert continued.scores.began == "served"
    assert "began" not in continued.scores.model_dump()


def test_client_without_comparable_losses_declines_nothing(own: Silo, stranger: State) -> None:
    before = trained_from(own)
    few = replace(own, data=replace(own.data, validation=own.data.validation[:15]))
    assert trained_from(few, stranger, before, declines=True).scores.began == "served"
    others = tuple(Example(f"rev {number}=", "0") for number in range(16))
    changed = replace(own, data=replace(own.data, validation=others))
    assert trained_from(changed, stranger, before, declines=True).scores.began == "served"


@pytest.mark.parametrize(
    ("name", "options", "declines"),
    [
        ("fedmosaic", {}, True),
        ("fedmosaic", {"start_from": "served"}, False),
        ("fedmosaic", {"mix": "gate"}, False),
        ("fedavg", {}, False),
    ],
)
def test_only_relevance_declines_by_default(name: str, options: dict[str, str], declines: bool) -> None:
    assert load_strategy(name, options).declines is declines
