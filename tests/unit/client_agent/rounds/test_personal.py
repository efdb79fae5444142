"""Ditto in the agent: the update, the personal adapter, and resumption after a kill."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.errors import Stopped
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.participant import Participant
from client_agent.rounds.training_result import Arrays, TrainingResult
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_folder import PARTIAL, PARTIAL_COMMON, TRAINED, UPDATE
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.silo import Silo
from schemas.maths.adapter import SIGNATURE
from schemas.wire.envelope import unpack
from schemas.wire.header import DENSE, Slot
from tests.scene.agents import alone_plan, limited_sleep
from tests.scene.coordinator import Served
from tests.unit.client_agent.rounds.personal_rounds import LORA, PLAN, assert_equal, distance, rounds


def personal(trained: TrainingResult) -> Arrays:
    return {name.removeprefix("private."): values for name, values in trained.private.items()}


def test_ditto_without_pull_trains_personal_adapter_as_alone(small_silo: Silo) -> None:
    drawn = np.random.default_rng(5)
    alone = rounds(small_silo, None)
    served = {n: drawn.normal(0, 0.1, v.shape).astype(np.float32) for n, v in alone[0].adapter.items()}
    ditto, fedavg = (
        rounds(small_silo, "ditto", served=served, pull=0.0),
        rounds(small_silo, "fedavg", served=served),
    )
    for personal_state, apart, common in zip(ditto, alone, fedavg, strict=True):
        assert_equal(personal(personal_state), apart.adapter)
        assert_equal(personal_state.adapter, common.adapter)
        assert personal_state.scores.trained == apart.scores.trained
        assert personal_state.validation == apart.validation
    assert ditto[1].scores.served == ditto[0].scores.trained  # not what it is served


def test_strong_pull_brings_personal_adapter_to_served_weights(small_silo: Silo) -> None:
    drawn = np.random.default_rng(5)
    started = rounds(small_silo, "ditto", number=1)[0].start
    served = {n: (v + drawn.normal(0, 0.02, v.shape)).astype(np.float32) for n, v in started.items()}
    falling = PLAN.model_copy(update={"schedule": "linear"})
    distances = [
        distance(
            personal(rounds(small_silo, "ditto", plan=falling, number=4, served=served, pull=pull)[-1]),
            served,
        )
        for pull in (0.0, 100.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.15 * distances[0]


@pytest.mark.parametrize("steps", [2, 6], ids=["common", "own"])
def test_killed_round_resumes_to_the_same_file(small_silo: Silo, tmp_path: Path, steps: int) -> None:
    def checkpoint() -> TrainingCheckpoint:
        return TrainingCheckpoint(tmp_path / PARTIAL, 3600.0)

    (whole,) = rounds(small_silo, "ditto", number=1)
    calls, resumed = count(), count()
    with pytest.raises(Stopped):
        rounds(small_silo, "ditto", number=1, checkpoint=checkpoint(), stop=lambda: next(calls) >= steps)
    assert (tmp_path / PARTIAL_COMMON).is_file()
    assert (tmp_path / PARTIAL).is_file() == (steps > PLAN.steps)
    (again,) = rounds(small_silo, "ditto", number=1, checkpoint=checkpoint(), stop=lambda: next(resumed) < 0)
    assert again.to_bytes() == whole.to_bytes()
    assert next(resumed) == 2 * PLAN.steps - steps


def test_personal_adapter_stays_local_and_is_kept(
    served: Served, participant: Callable[..., Participant]
) -> None:
    plan = alone_plan(
        strategy={"name": "ditto", "options": {"pull": 1.0}},
        adapter=LORA.model_dump(mode="json"),
        wire={"recipe": "dense", "weights_recipe": "dense"},
    )
    federation_id = served.federation(**plan)
    member = participant(federation_id)
    served.start_federation(federation_id)
    run(member, limited_sleep(500))
    folder = member.workspace.rounds.open(2)
    trained = TrainingResult.from_bytes(folder.read(TRAINED))
    slots = {name: Slot(values.shape, DENSE) for name, values in trained.adapter.items()}
    sent_signature = {SIGNATURE: Slot((None,), DENSE)}
    with unpack(
        folder.read(UPDATE), encoding="zstd", expected=slots | sent_signature, max_bytes=2**30
    ) as body:
        for name, values in trained.adapter.items():
            np.testing.assert_array_equal(body.read_float32(name), values)
    assert distance(personal(trained), trained.adapter) > 0.01
    final = read_final_scores(member.workspace.home)
    assert final is not None
    assert final.scores == trained.scores.trained
    with adapter_of_round(member.trainer.silo, member.workspace.home, None, "kept") as placed:
        assert_equal(placed.adapter.private_state(), trained.private)
