"""Residuals of lossy updates: sent in the next round if the lossy update was accepted."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.rounds.encode_update import pack_update
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.update_history import store_values
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import RECEIPT, RESIDUAL, UPDATE, WEIGHTS, RoundFolder
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import pack
from tests.scene.agent_rounds import (
    SERVED,
    LoneSilo,
    layout_of,
    stored_tensors,
    trained_tensors,
    update_difference,
)
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served
from tests.scene.rounds import join, wait_for


def test_residual_of_a_round_is_sent_in_next(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": SERVED})
    first, two = scene.run_rounds(), scene.run_rounds()
    trained, before, lost = (
        trained_tensors(two),
        stored_tensors(two, WEIGHTS),
        stored_tensors(first, RESIDUAL),
    )
    assert any(values.any() for values in lost.values())
    difference, still = update_difference(two), stored_tensors(two, RESIDUAL)
    for name, values in trained.items():
        target = values - before[name] + lost[name]
        assert (still[name] == target - difference[name]).all()
        assert np.count_nonzero(difference[name]) <= np.ceil(0.2 * values.size)
        assert (scene.stored(layout_of(two))[name] == before[name] + difference[name]).all()
    assert "round 2: residual of the last update is" in caplog.text


@pytest.mark.parametrize("lost", [RECEIPT, RESIDUAL])
def test_residual_of_older_or_unaccepted_update_is_dropped(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": SERVED})
    scene.run_rounds(2).forget(lost)
    three = scene.run_rounds()
    trained, before, still, difference = (
        trained_tensors(three),
        stored_tensors(three, WEIGHTS),
        stored_tensors(three, RESIDUAL),
        update_difference(three),
    )
    for name, values in trained.items():
        assert (still[name] == values - before[name] - difference[name]).all()
    older = 2 if lost == RECEIPT else 1
    assert f"round 3: residual of round {older} dropped" in caplog.text


def assert_residual_is_of_this_round(folder: RoundFolder) -> None:
    """Fail if the values that an update left include any of an earlier round."""
    before, left = stored_tensors(folder, WEIGHTS), stored_tensors(folder, RESIDUAL)
    sent = update_difference(folder)
    for name, values in trained_tensors(folder).items():
        np.testing.assert_array_equal(left[name], values - before[name] - sent[name])


def test_residual_under_another_alignment_pack_is_dropped(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": SERVED})
    first = scene.run_rounds()
    body, ended = first.read(UPDATE), "sha256:" + "0" * 64
    store_values(first, RESIDUAL, stored_tensors(first, RESIDUAL), scene.federation_id, body, ended)
    two = scene.run_rounds()
    assert_residual_is_of_this_round(two)
    assert "round 2: residual of round 1 dropped" in caplog.text


def test_initial_weights_drop_the_residual(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, wire={"recipe": SERVED})
    first, two = scene.run_rounds(), scene.run_rounds()
    opened_brief, layout = OpenedBrief.read(two), layout_of(two)
    assert opened_brief.strategy.served.is_initial(first.read(WEIGHTS), layout)
    assert not opened_brief.strategy.served.is_initial(two.read(WEIGHTS), layout)
    # As after the end of a pack, which abandons a round: another body with the same values.
    manifest = WeightsManifest(
        federation=scene.federation_id,
        recipe={},
        round=2,
        client=scene.participant.session.client_id,
        pack=None,
        initial=True,
    )
    two.write(WEIGHTS, pack(stored_tensors(two, WEIGHTS), manifest))
    two.write(UPDATE, pack_update(Work(scene.participant, opened_brief, two).update_inputs))
    assert_residual_is_of_this_round(two)
    assert "round 2: residual of round 1 dropped" in caplog.text


@pytest.mark.slow
def test_residual_of_abandoned_round_is_dropped(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = {"total": 9, "min_clients": 2, "collect_seconds": 3}
    scene = LoneSilo(served, participant, wire={"recipe": SERVED}, rounds=rounds)
    peer = served.enrol(scene.federation_id, "joins and delivers nothing")
    join(peer, 1)
    first = scene.run_rounds()
    assert first.has(RECEIPT)
    wait_for(served, scene.federation_id, 1, "abandoned")
    join(peer, 2)
    two = scene.run_rounds()
    assert two.base == first.base, "the same weights again"
    assert_residual_is_of_this_round(two)
    assert "round 2: residual of round 1 dropped" in caplog.text
