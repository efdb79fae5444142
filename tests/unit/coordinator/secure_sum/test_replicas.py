"""Two coordinators on one PostgreSQL: each message is stored once, and each phase closes once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.scene.coordinator import Served, Silo
from tests.scene.sum_members import UNMASK, SumClient, summing

MEMBERS = 6
PHASES_OF_A_SESSION = 7  # it opens, five phases close, it ends


@pytest.mark.slow
def test_concurrent_messages_are_stored_once_by_two_replicas(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    url = fresh_postgres()
    replicas = [serve(url, tick_seconds=0.02, retry_seconds=0.1, polls_per_second=20) for _ in range(2)]
    scene = summing(replicas[0], MEMBERS)
    scene.begin()
    with ThreadPoolExecutor(2 * MEMBERS) as pool:
        for step in range(UNMASK + 1):
            for client in scene.clients:
                client.message(step)
            lines = [_line(client, replica) for client in scene.clients for replica in replicas]
            sent = list(pool.map(lambda line, step=step: line.put(step), lines))
            assert sorted(answer.status_code for answer in sent) == [200] * MEMBERS + [201] * MEMBERS
    assert np.array_equal(scene.total(), scene.expected())
    ((phases,),) = scene.rows(f"SELECT sum_phase FROM federations WHERE id = '{scene.federation_id}'")
    assert phases == PHASES_OF_A_SESSION
    ((sessions,),) = scene.rows("SELECT count(*) FROM sum_sessions WHERE {ours}")
    assert sessions == 1


@pytest.mark.slow
def test_two_replicas_open_one_session_after_a_deadline(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    url = fresh_postgres()
    replicas = [serve(url, tick_seconds=0.02, retry_seconds=0.1, polls_per_second=20) for _ in range(2)]
    scene = summing(replicas[0], 5, phase_seconds=3)
    scene.begin()
    scene.step(0, stop=[0, 1])
    view = scene.wait_for(lambda view: len(view["secure_sum"]["sessions"]) == 2)
    assert [session["members"] for session in view["secure_sum"]["sessions"]] == [5, 3]
    scene.clients = scene.clients[2:]
    scene.begin()
    for step in range(UNMASK + 1):
        scene.step(step)
    assert np.array_equal(scene.total(), scene.expected())


def _line(client: SumClient, replica: Served) -> SumClient:
    """Connect the same client, with the same messages, to another replica."""
    silo = client.silo
    return replace(client, silo=Silo(silo.client_id, silo.federation_id, silo.key, replica.signing(silo.key)))
