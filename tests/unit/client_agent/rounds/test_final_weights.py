"""Final weights of a federation: the model that a client keeps, and the scores that it sends for it."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.identity.backup_recovery import Offer, StoredManifest, accept
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.participant import Participant
from client_agent.rounds.served_weights import read_weights
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.final_scores import FinalScores
from client_agent.storage.round_folder import (
    CLOSED,
    FINAL_SCORES,
    FINAL_SCORES_SENT,
    FINAL_WEIGHTS,
    RECEIPT,
    TRAINED,
)
from schemas.messages.scores import Score
from tests.scene.agents import Enrolled, alone_plan, limited_sleep

RANKS = {"rank": 4, "roles": ["v", "down"]}


def finished(started: Enrolled, transport: httpx.BaseTransport | None = None, **changes: Any) -> Participant:
    """Take part in a federation to its end, alone."""
    participant = started(transport, **alone_plan(**changes))
    run(participant, limited_sleep(500))
    return participant


def last_trained(participant: Participant) -> TrainingResult:
    return TrainingResult.read(next(participant.workspace.rounds.newest_first()).path / TRAINED)


def final_weights(participant: Participant, trained: TrainingResult) -> dict[str, np.ndarray]:
    layout = {name: values.shape for name, values in trained.adapter.items()}
    return read_weights((participant.workspace.home / FINAL_WEIGHTS).read_bytes(), layout)


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"mix": "gate"}], ids=["plain", "gated"])
def test_final_weights_keep_private_ranks_of_last_steps(started: Enrolled, options: dict[str, Any]) -> None:
    participant = finished(
        started,
        adapter=RANKS | {"private_rank": 2},
        strategy={"name": "fedmosaic", "options": options},
    )
    trained = last_trained(participant)
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "kept") as placed:
        assert placed.adapter.private_state()["private.l0.v.B"].any()
        assert_same(placed.adapter.private_state(), trained.private)


def test_final_gated_model_keeps_local_branch(started: Enrolled) -> None:
    participant = finished(started, adapter=RANKS, strategy={"name": "fedmosaic", "options": {"mix": "gate"}})
    trained = last_trained(participant)
    final = final_weights(participant, trained)
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "kept") as placed:
        assert_same(placed.adapter.state(), trained.adapter)
        assert_same(placed.adapter.private_state(), trained.private)
        merged = placed.adapter.merged_state()
        placed.adapter.load(final)
        only_final = placed.adapter.merged_state()
    assert any(trained.private.values())
    # What a client alone is served is what it sent, in fewer bits: both branches are near, and not equal.
    assert any(not np.array_equal(merged[name], only_final[name]) for name in merged)
    for name, values in only_final.items():
        assert np.allclose(values, final[name], atol=1e-6)


def test_scores_of_other_final_weights_are_forgotten(started: Enrolled) -> None:
    participant = finished(started)
    home = participant.workspace.home
    scores = (home / FINAL_SCORES).read_bytes()
    stale = FinalScores(scores={"loss": Score(value=9.0, count=1)}, validation_loss=None)
    (home / FINAL_SCORES).write_bytes(stale.model_dump_json().encode())
    (home / FINAL_WEIGHTS).unlink()
    run(participant, limited_sleep(500))
    assert (home / FINAL_SCORES).read_bytes() == scores


def test_restored_coordinator_sets_final_weights_and_scores_aside(started: Enrolled) -> None:
    participant = finished(started)
    home, manifests = participant.workspace.home, participant.session.manifests
    document = manifests.last_accepted()
    assert document is not None
    last = StoredManifest(document, manifests.read(document))
    accept(Offer(last, None, None, []), manifests, {}, participant.session.api)
    for name in (FINAL_WEIGHTS, FINAL_SCORES, FINAL_SCORES_SENT):
        assert not (home / name).exists()
        assert (home / "earlier" / f"{name}-1").is_file()


def test_client_with_late_last_update_sends_final_scores(started: Enrolled) -> None:
    class Late(httpx.HTTPTransport):
        """A proxy that answers the last update as too late."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if request.method != "PUT" or not request.url.path.endswith("/rounds/2/update"):
                return answer
            problem = {"type": "urn:tessera:problem:round-closed", "title": "too late", "status": 409}
            return httpx.Response(409, json=problem, request=request)

    participant = finished(started, transport=Late())
    folder = participant.workspace.rounds.open(2)
    assert folder.has(CLOSED)
    assert not folder.has(RECEIPT)
    assert (participant.workspace.home / FINAL_SCORES_SENT).is_file()
