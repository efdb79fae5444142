"""Scores of generated answers, and the reuse of the score of a start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.adapters.inject import inject
from client_agent.agent_entries import START_SCORES
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.examine import Examiner
from client_agent.rounds.standalone import train_alone
from client_agent.storage.final_scores import StartScoreStore
from client_agent.storage.rate_store import RateStore
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from tests.scene.plans import federation_plan

ADAPTER = AdapterPlan(kind="lora", rank=4, roles=["v", "down"])
SCORES = ScoresPlan(examples=4, new_tokens=4)
PLAN = federation_plan(
    rounds={"total": 2},
    training=TrainingPlan(steps=1, batch_size=4, max_length=64, learning_rate=0.01),
    adapter=ADAPTER,
    scores=SCORES,
)


@pytest.fixture
def silo(tiny: Callable[..., BaseModel], tmp_path: Path) -> Silo:
    rows = tuple(Example(f"rev {i}=", f"{i}"[::-1], metrics=("exact_match",)) for i in range(100, 112))
    data = SiloData(rows[:8], (), rows[8:])
    return Silo(tiny(), data, None, generated_scores="ends", start_scores=StartScoreStore(tmp_path))


def test_answers_are_generated_for_first_and_last_state(silo: Silo, tmp_path: Path) -> None:
    first, second = train_alone(silo, PLAN, None, lambda: False, RateStore(tmp_path), tmp_path)
    generated = ["exact_match" in scores for scores in (first.scores.served, first.scores.trained)]
    assert generated == [True, False]
    assert ["exact_match" in s for s in (second.scores.served, second.scores.trained)] == [False, True]
    everywhere = replace(silo, generated_scores="rounds", start_scores=None)
    for trained in train_alone(everywhere, PLAN, None, lambda: False, RateStore(tmp_path), tmp_path):
        assert "exact_match" in trained.scores.served.keys() & trained.scores.trained.keys()


def test_start_is_scored_once_until_inputs_change(
    silo: Silo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with inject(silo.base, ADAPTER, {}, gated=False, seed=0) as adapter:
        once = Examiner(silo, SCORES, 64).examine_served(adapter, None)
        stored = (tmp_path / START_SCORES).read_bytes()
        assert Examiner(silo, SCORES, 64).examine_served(adapter, None) == once
        assert caplog.text.count("start state scored in an earlier run") == 1
        assert "0 validation examples are too few to choose" in caplog.text
        assert Examiner(silo, SCORES, 32).examine_served(adapter, None).fingerprint != once.fingerprint
        assert (tmp_path / START_SCORES).read_bytes() != stored
        (tmp_path / START_SCORES).write_bytes(b"{")
        assert Examiner(silo, SCORES, 64).examine_served(adapter, None) == once
        assert "is damaged and ignored" in caplog.text
        assert (tmp_path / START_SCORES).read_bytes() == stored
