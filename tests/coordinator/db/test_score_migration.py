"""Migration 0018: scores before and after local steps become named numbers with counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select, update

from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.db.tables.federations import EventRow, FederationRow, ScoresRow
from coordinator.rounds.manifests import plan_bytes
from tests.served import Served
from tests.taking_part import join, running, show, url

BEFORE = {"loss": 1.5, "perplexity": 4.5, "exact_match": 0.25}
AFTER = {"loss": 0.75, "perplexity": 2.1, "exact_match": 0.5}
OLD = {"before": BEFORE, "after": AFTER, "examples": 96}
NEW = {
    "served": {name: {"value": value, "count": 96} for name, value in BEFORE.items()},
    "trained": {name: {"value": value, "count": 96} for name, value in AFTER.items()},
    "kept": "trained",
    "final": None,
}


def stored(database: Database) -> list[Any]:
    with database.read() as session:
        return list(session.scalars(select(ScoresRow.scores).order_by(ScoresRow.client_id)))


def plans(database: Database) -> dict[str, Any]:
    with database.read() as session:
        # Not the whole row: an earlier version of the table lacks later columns.
        rows = session.execute(select(FederationRow.id, FederationRow.plan))
        return {federation_id: plan for federation_id, plan in rows}


def test_scores_from_before_become_named_numbers_and_go_back(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url)
    federation_id, silos = running(served)
    for silo in silos:
        join(silo, 1)
        assert silo.http.put(url(silo, 1, "/scores"), json=NEW).status_code == 204
    migrate.downgrade(database, to="0017")
    assert stored(database) == [OLD] * 2
    event = {"round": 1, "scores": {"mean": AFTER, "worst": AFTER}}
    with database.write() as session:
        first = session.scalar(select(func.min(EventRow.number)).where(EventRow.kind == "round"))
        session.execute(update(EventRow).where(EventRow.number == first).values(data=event))
    migrate.upgrade(database)
    assert stored(database) == [NEW] * 2
    with database.read() as session:
        (shown,) = session.scalars(select(EventRow.data).where(EventRow.number == first))
    assert shown == {"round": 1, "scores": None}
    assert show(served, federation_id, 1)["scores"]["mean"]["loss"] == {"value": 0.75, "count": 2}
    answer = silos[0].http.put(url(silos[0], 1, "/scores"), json=NEW)
    assert answer.status_code == 204, "the same scores are no change"


def test_going_back_deletes_scores_that_had_no_place_before(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url)
    _, (silo, other) = running(served)
    loss = {"loss": {"value": 2.0, "count": 7}}
    exact = loss | {"exact_match": {"value": 0.5, "count": 7}}
    for one, trained in ((silo, loss), (other, exact)):
        join(one, 1)
        sent = {"served": exact, "trained": trained, "kept": "served"}
        assert one.http.put(url(one, 1, "/scores"), json=sent).status_code == 204
    migrate.downgrade(database, to="0017")
    metrics = {"loss": 2.0, "perplexity": math.exp(2.0), "exact_match": 0.5}
    assert stored(database) == [{"before": metrics, "after": metrics, "examples": 7}]
    migrate.upgrade(database)


def test_going_back_leaves_plans_that_an_earlier_version_reads(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url)
    pivot = {"pivot": "llama-0123456789ab", "pivot_pack_by_any_client": True}
    rated = served.federation(alignment=pivot, training={"learning_rate": 0.5, "steps": 3})
    searching = served.federation(training={"steps": 3, "schedule": "linear"})
    before = plans(database)
    migrate.downgrade(database, to="0017")
    earlier = plans(database)
    assert earlier[rated]["training"]["learning_rate"] == 0.5
    assert earlier[searching]["training"]["learning_rate"] == 0.01
    for federation_id, plan in earlier.items():
        new = before[federation_id]
        assert new.keys() - plan.keys() == {"scores"}
        assert new["training"].keys() - plan["training"].keys() == {"schedule_floor"}
        assert new["adapter"].keys() - plan["adapter"].keys() == {"bias"}
        assert plan["training"]["steps"] == 3
    assert before[rated]["alignment"].keys() - earlier[rated]["alignment"].keys() == {
        "pivot_pack_by_any_client"
    }
    migrate.upgrade(database)
    assert plans(database) == earlier, "the digests in signed manifests must stay those of the plans"
    silo = served.enrol(searching, "aster")
    assert silo.http.get(f"/v1/federations/{searching}/plan").content == plan_bytes(earlier[searching])
    migrate.downgrade(database, to="0017")
    assert plans(database) == earlier
    migrate.upgrade(database)
