"""Rounds of a federation with a silo's custom trainer: an agent in this process, a served coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import RECEIPT, SKETCH, TRAINED, TRAINER, UPDATE, WEIGHTS
from client_agent.training.silo import Silo
from client_agent.training.trainer_task import TrainerFailed, TrainerTask
from client_agent.training.trainers import LocalTrainer, OpenedTrainer, TrainerOptions, TrainerUnusable
from schemas.maths.factors import State
from tests.scene.agents import Enrolled, alone_plan, limited_sleep
from tests.scene.coordinator import Served

ONE_ROUND = {"total": 1, "min_clients": 1}
LORA = {"kind": "lora", "rank": 2, "roles": ["v"]}


class FailingTrainer(LocalTrainer):
    """Breaks after the first step of the first call, and adds a constant in the second."""

    def __init__(self) -> None:
        self.calls = 0

    def train(self, task: TrainerTask) -> State:
        self.calls += 1
        task.report(1, 2.0, 10)
        if self.calls == 1:
            raise MemoryError("no room")
        task.report(2, 1.0, 10)
        return {name: values + np.float32(0.25) for name, values in task.adapter.state().items()}


@pytest.fixture
def failing_trainer(silo: Silo) -> Iterator[FailingTrainer]:
    trainer = FailingTrainer()
    silo.trainer = OpenedTrainer("breaking", TrainerOptions(), trainer)
    yield trainer
    silo.trainer = None


def test_round_of_failed_trainer_resumes_at_next_start(
    served: Served, started: Enrolled, failing_trainer: FailingTrainer
) -> None:
    participant = started(**alone_plan(adapter=LORA, rounds=ONE_ROUND, strategy={"name": "fedavg"}))
    with pytest.raises(TrainerFailed, match=r"round 1: trainer 'breaking' failed after 1 of 2 .*no room"):
        run(participant, limited_sleep(50))
    folder = participant.workspace.rounds.open(1)
    assert folder.has(WEIGHTS)
    assert not folder.has(TRAINED)
    assert served.rounds(participant.session.federation_id)[0]["counts"]["arrived"] == 0
    run(participant, limited_sleep(500))
    assert failing_trainer.calls == 2
    assert folder.has(RECEIPT)
    assert not (folder.path / TRAINER).exists()
    trained = TrainingResult.read(folder.path / TRAINED)
    assert all(np.allclose(values, trained.start[name] + 0.25) for name, values in trained.adapter.items())
    scores = served.rounds(participant.session.federation_id)[0]["clients"][0]["scores"]
    assert scores["trained"]["loss"]["value"] == trained.scores.trained["loss"].value


def test_unsuitable_trainer_is_refused_before_join(
    served: Served, started: Enrolled, failing_trainer: FailingTrainer
) -> None:
    plan: dict[str, Any] = alone_plan(adapter=LORA, rounds=ONE_ROUND, strategy={"name": "ditto"})
    participant = started(**plan)
    with pytest.raises(TrainerUnusable, match="trains two adapters, which trainer 'breaking' does not do"):
        run(participant, limited_sleep(50))
    assert failing_trainer.calls == 0
    assert not participant.workspace.rounds.open(1).has(WEIGHTS)
    assert served.rounds(participant.session.federation_id)[0]["counts"]["joined"] == 0


@pytest.mark.slow
def test_private_sketch_does_not_use_the_trainer(started: Enrolled, failing_trainer: FailingTrainer) -> None:
    failing_trainer.calls = 1
    dp = {"epsilon": 8, "releases": 1, "minimum_sample": 2}
    participant = started(**alone_plan(adapter=LORA, rounds=ONE_ROUND, signature={"dim": 4, "dp": dp}))
    run(participant, limited_sleep(500))
    folder = participant.workspace.rounds.open(1)
    assert folder.has(UPDATE)
    assert folder.has(SKETCH)
    (release,) = Ledger(participant.workspace.folder).read().releases
    assert 0 < release.epsilon <= 8
