"""Restored coordinators whose backup lacks a silo's join of the current round."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from client_agent.daemon import run
from client_agent.errors import ManifestRefused
from client_agent.rounds.participant import Participant
from client_agent.storage.round_folder import CLOSED
from tests.scene.agents import limited_sleep
from tests.scene.coordinator import Served, coordinator_fixture
from tests.unit.client_agent.identity.test_backup_recovery import BackedUpFederation

served = coordinator_fixture("sqlite", tick_seconds=0.05, retry_seconds=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["/rounds/2/weights", "/rounds/2/update"])
def test_forgotten_join_is_refused_until_restore_is_accepted(
    served: Served,
    participant: Callable[..., Participant],
    serve: Callable[..., Served],
    tmp_path: Path,
    at: str,
) -> None:
    """Nobody else delivers here: if this silo left the round out, it would stay open for ever."""

    class RestoredMeanwhile(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith(at) and not restored_already:
                restored_already.append(True)
                scene.exchange()
            return super().handle_request(request)

    restored_already: list[bool] = []
    with ExitStack() as opened:
        scene = BackedUpFederation(served, participant, serve, tmp_path, opened)
        scene.start(RestoredMeanwhile())
        scene.run_round()
        scene.back_up()
        for _ in range(2):
            with pytest.raises(ManifestRefused, match=r"round 2(.|\n)*accept-restored"):
                run(scene.participant, limited_sleep(500))
        assert not scene.participant.workspace.rounds.open(2).has(CLOSED)
        scene.accept()
        run(scene.participant, limited_sleep(500))
        assert [r["counts"]["arrived"] for r in scene.served.rounds(scene.federation_id)] == [1] * 4
