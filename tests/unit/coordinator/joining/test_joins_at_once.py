"""Joins and downloads at the same time share commits, and each gets its own answer."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow
from coordinator.observability.metrics import Metrics
from coordinator.rounds.participations import count_download
from tests.scene.coordinator import Served
from tests.scene.rounds import join, plan, running, try_join


@pytest.mark.slow
def test_joins_of_one_commit_get_their_own_answers(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 12, **plan(rounds={"min_clients": 12, "total": 1}))
    revoked = silos[5].client_id
    with ThreadPoolExecutor(12) as pool, coordinator.database.write() as session:  # all of them wait for it
        hold_federation(session, federation_id)
        session.execute(update(ClientRow).where(ClientRow.id == revoked).values(state="revoked"))
        answers = [pool.submit(try_join, silo, 1) for silo in silos]
        time.sleep(1.0)
    for silo, answer in zip(silos, answers, strict=True):
        response = answer.result(30)
        if silo.client_id == revoked:
            assert response.status_code == 401
        else:
            assert response.status_code == 200, response.text
            assert response.json()["weights"]["digest"] == join(silo, 1), "as the first answer"
    with coordinator.database.read() as session:
        joined = session.scalars(
            select(ParticipationRow.client_id)
            .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
            .where(RoundRow.federation_id == federation_id)
        ).all()
    assert sorted(joined) == [silo.client_id for silo in silos if silo.client_id != revoked]


def test_downloads_at_once_are_all_counted(coordinator: Served) -> None:
    _, (silo, other) = running(coordinator)
    database, metrics = coordinator.database, Metrics()
    join(silo, 1)
    with database.read() as session:
        round_id = session.scalars(
            select(ParticipationRow.round_id).where(ParticipationRow.client_id == silo.client_id)
        ).one()
    downloads = [(silo.client_id, round_id), (silo.client_id, None), (other.client_id, None)] * 4
    with ThreadPoolExecutor(12) as pool, database.write() as session:
        session.connection()  # on SQLite all of them wait for it
        for client_id, counted in downloads:
            pool.submit(count_download, database, metrics, client_id, 10, round_id=counted)
        time.sleep(0.2)
    with database.read() as session:
        of_round = session.scalar(
            select(ParticipationRow.bytes_down).where(ParticipationRow.client_id == silo.client_id)
        )
        totals = select(ClientRow.bytes_down).where(ClientRow.id.in_((silo.client_id, other.client_id)))
        assert sorted(session.scalars(totals)) == [40, 80]
    assert of_round == 40
