"""Updates in the plan's recipe, from a real agent: references, stored files, and recovery from crashes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from client_agent.rounds.encode_update import pack_update
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import (
    BRIEF,
    CLOSED,
    RECEIPT,
    RESIDUAL,
    SCORES_SENT,
    SENT,
    SKETCH,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
)
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import RoundRow
from schemas.wire.digests import digest_of
from tests.scene.agent_rounds import (
    LORA,
    PQ,
    SERVED,
    LoneSilo,
    killed_at_write,
    layout_of,
    reference_of,
    stored_receipt,
    stored_tensors,
    trained_tensors,
    update_difference,
)
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served
from tests.scene.rounds import join, layout_for, put, update_body, wait_for
from tests.scene.tensors import assert_same_bytes, zero_tensors


@pytest.mark.parametrize("adapter", [PQ, LORA], ids=["pq", "lora"])
def test_default_update_is_difference_to_last_update(
    served: Served, participant: Enrolled, adapter: dict[str, Any]
) -> None:
    scene = LoneSilo(served, participant, adapter=adapter)
    last: RoundFolder | None = None
    for _ in range(3):
        folder = scene.run_rounds()
        layout = layout_of(folder)
        assert reference_of(folder) == (
            stored_receipt(last).digest if last else digest_of(folder.read(WEIGHTS))
        )
        assert_same_bytes(scene.stored(layout), stored_tensors(folder, SENT))
        trained = trained_tensors(folder)
        span = max(np.abs(values).max() for values in update_difference(folder).values())
        for name, values in stored_tensors(folder, SENT).items():  # a step of four bits off at most
            assert np.abs(values - trained[name]).max() <= span / 7 * 1.01
        last = folder


@pytest.mark.parametrize("recipe", ["dense", "f16", "bf16", "int8"])
def test_recipe_without_reference_keeps_no_files(served: Served, participant: Enrolled, recipe: str) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": recipe, "weights_recipe": "dense"})
    folder = scene.run_rounds(2)
    stored, trained = scene.stored(layout_of(folder)), trained_tensors(folder)
    for name, values in trained.items():
        assert np.abs(stored[name] - values).max() <= np.abs(values).max() / 100
    assert not folder.has(SENT)
    assert not folder.has(RESIDUAL)
    if recipe == "dense":
        assert_same_bytes(stored, trained)


@pytest.mark.parametrize("wire", [{}, {"recipe": SERVED}], ids=["own_last", "served"])
def test_lost_round_files_are_rebuilt_to_the_byte(
    served: Served, participant: Enrolled, wire: dict[str, Any]
) -> None:
    scene = LoneSilo(served, participant, wire=wire)
    folder = scene.run_rounds(3)
    extra = RESIDUAL if wire else SENT
    body, beside, receipt = folder.read(UPDATE), folder.read(extra), folder.read(RECEIPT)
    for lost in ([UPDATE], [UPDATE, RECEIPT], [extra, UPDATE, RECEIPT], [RECEIPT]):
        scene.repeat(folder, *lost)
        assert (folder.read(UPDATE), folder.read(extra), folder.read(RECEIPT)) == (body, beside, receipt)


@pytest.mark.parametrize("wire", [{}, {"recipe": SERVED}], ids=["own_last", "served"])
def test_killed_agent_sends_one_update_to_the_byte(
    served: Served, participant: Enrolled, wire: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = LoneSilo(served, participant, wire=wire)
    scene.run_rounds()
    brief = scene.brief()
    extra = RESIDUAL if wire else SENT
    folder, bodies = scene.participant.workspace.rounds.open(brief.round), set[bytes]()
    names = (BRIEF, WEIGHTS, TRAINED, SKETCH, extra, UPDATE, RECEIPT, SCORES_SENT)
    for name, is_written in product(names, (False, True)):
        with killed_at_write(monkeypatch, name, is_written=is_written):
            take_part(scene.participant, brief)
        assert folder.has(name) == is_written
        if folder.has(UPDATE):
            bodies.add(folder.read(UPDATE))
    assert len(bodies) == 1
    beside = folder.read(extra)
    scene.repeat(folder, extra, UPDATE)
    assert {folder.read(UPDATE)} == bodies
    assert folder.read(extra) == beside


def test_silo_without_sent_values_sends_whole_update_once(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant)
    scene.run_rounds().forget(SENT)
    folder = scene.run_rounds()
    assert reference_of(folder) is None
    assert f"no {SENT}); sending a whole update" in caplog.text
    assert_same_bytes(scene.stored(layout_of(folder)), trained_tensors(folder))
    after = scene.run_rounds()
    assert reference_of(after) == stored_receipt(folder).digest
    assert_same_bytes(scene.stored(layout_of(after)), stored_tensors(after, SENT))


def test_update_without_reference_is_sent_whole_without_retraining(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant)
    scene.run_rounds().forget(RECEIPT)  # so this silo takes the weights for the coordinator's reference
    folder = scene.run_rounds()
    assert "this silo lacks the coordinator's reference; sending a whole update" in caplog.text
    assert (reference_of(folder), folder.has(CLOSED)) == (None, False)
    assert caplog.text.count("round 2: held-out loss") == 1
    assert_same_bytes(scene.stored(layout_of(folder)), trained_tensors(folder))
    assert reference_of(scene.run_rounds()) == stored_receipt(folder).digest


def test_update_after_abandoned_round_refers_to_last_counted(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, rounds={"total": 9, "min_clients": 2, "quorum": 2})
    peer = served.enrol(scene.federation_id, "other")
    zeros = zero_tensors(layout_for(peer))
    signature = np.eye(1, 256, dtype=np.float32)[0]
    base = join(peer, 1)
    named = stored_receipt(scene.run_rounds()).digest
    assert put(peer, 1, update_body(peer, 1, base, zeros, signature=signature)).status_code == 201
    wait_for(served, scene.federation_id, 1, "published")
    join(peer, 2)
    abandoned = scene.run_rounds()
    with served.database.write() as session:
        session.execute(update(RoundRow).where(RoundRow.number == 2).values(deadline=database_time(session)))
    wait_for(served, scene.federation_id, 2, "abandoned")
    join(peer, 3)
    folder = scene.run_rounds()
    assert reference_of(abandoned) == reference_of(folder) == named
    assert "the coordinator lacks the update's reference" in caplog.text
    assert_same_bytes(scene.stored(layout_of(folder)), stored_tensors(folder, SENT))


def test_update_after_clipped_one_is_sent_whole(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, limits={"clip_norm": 1e-3})
    assert stored_receipt(scene.run_rounds()).clipped
    assert reference_of(scene.run_rounds()) is None
    assert "it was clipped); sending a whole update" in caplog.text


def test_values_beyond_format_are_sent_whole(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant)
    folder = scene.run_rounds()
    trained = TrainingResult.read(folder.path / TRAINED)
    huge = {name: values + np.float32(1e6) for name, values in trained.adapter.items()}
    folder.write(TRAINED, replace(trained, adapter=huge).to_bytes())
    folder.write(UPDATE, pack_update(Work(scene.participant, OpenedBrief.read(folder), folder).update_inputs))
    assert reference_of(folder) is None
    assert_same_bytes(stored_tensors(folder, SENT), huge)
    assert "in int4); sending it whole" in caplog.text


def test_sent_values_of_another_digest_are_no_reference(served: Served, participant: Enrolled) -> None:
    scene = LoneSilo(served, participant)
    first = scene.run_rounds()
    receipt = json.loads(first.read(RECEIPT)) | {"digest": "sha256:" + "0" * 64}
    first.write(RECEIPT, json.dumps(receipt).encode())
    assert reference_of(scene.run_rounds()) is None
