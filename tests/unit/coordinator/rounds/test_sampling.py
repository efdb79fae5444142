"""Sampled rounds: the draw, the answers of clients that are not drawn, and freed places."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import update

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ClientRow
from coordinator.federations import store as federations
from coordinator.rounds import sampling
from coordinator.rounds import store as rounds
from coordinator.rounds.sampling import WILLING, draw, is_drawn
from schemas.maths.sampling import in_order, places_of
from schemas.messages.federations import FederationPlan, RoundsPlan
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.plans import federation_plan
from tests.scene.rounds import current, deliver, plan, running, show, try_join, values, wait_for
from tests.unit.coordinator.rows import client_row, participation_row

NAMES = [f"client-{number}" for number in range(8)]


def run_sampled(served: Served, sample: float, clients: int = 4, **rounds: Any) -> tuple[str, list[Silo]]:
    limits = {"total": 5, "min_clients": 1, "quorum": 1, "sample": sample} | rounds
    return running(served, clients, **plan(rounds=limits))


def drawn_clients(silos: list[Silo]) -> list[Silo]:
    return [silo for silo in silos if current(silo).status_code == 200]


def names_of(served: Served, silos: list[Silo]) -> list[str]:
    listed = served.admin.get(f"/v1/federations/{silos[0].federation_id}/clients").json()["items"]
    names = {client["client_id"]: client["name"] for client in listed}
    return sorted(names[silo.client_id] for silo in silos)


def test_a_draw_depends_on_seed_round_and_clients() -> None:
    assert in_order(3, 1, NAMES) == in_order(3, 1, NAMES[::-1])
    assert in_order(3, 1, NAMES) != in_order(3, 2, NAMES)
    assert in_order(3, 1, NAMES) != in_order(4, 1, NAMES)
    without = [name for name in in_order(3, 1, NAMES) if name != NAMES[0]]
    assert in_order(3, 1, NAMES[1:]) == without


def test_clients_are_drawn_equally_often() -> None:
    first = Counter(name for number in range(2000) for name in in_order(0, number, NAMES)[:2])
    assert set(first) == set(NAMES)
    assert all(abs(count - 500) < 5 * (500 * 0.75) ** 0.5 for count in first.values())


@pytest.mark.parametrize(
    ("sample", "willing", "places"),
    [(None, 5, 5), (3, 9, 3), (3, 2, 3), (0.5, 9, 5), (0.1, 9, 2), (0.999, 4, 4)],
)
def test_places_round_up_to_at_least_min_clients(sample: float | None, willing: int, places: int) -> None:
    assert places_of(RoundsPlan(min_clients=2, sample=sample), willing) == places


@pytest.mark.parametrize("sample", [0, 0.0, -1, 1.5, True, 1, "2"])
def test_a_sample_is_a_share_or_enough_clients(sample: Any) -> None:
    with pytest.raises(ValidationError):
        RoundsPlan.model_validate({"min_clients": 2, "sample": sample})


def test_a_share_of_one_leaves_the_plan_unchanged() -> None:
    body = {"name": "x", "strategy": {"name": "fedavg"}}
    whole = FederationPlan.model_validate(body | {"rounds": {"sample": 1.0}})
    assert whole.model_dump_json() == FederationPlan.model_validate(body).model_dump_json()


def test_a_plan_with_a_pivot_refuses_sampling(coordinator: Served) -> None:
    refused = coordinator.admin.post(
        "/v1/federations",
        json={
            "name": "x",
            "strategy": {"name": "fedavg"},
            "rounds": {"sample": 0.5},
            "adapter": {"kind": "pq"},
            "alignment": {"pivot": "llama-1x1-000000000000"},
        },
    )
    assert refused.status_code == 422
    assert "pivot" in refused.json()["detail"]


def test_clients_that_are_not_drawn_wait(coordinator: Served) -> None:
    federation_id, silos = run_sampled(coordinator, 2)
    taking = drawn_clients(silos)
    assert len(taking) == 2
    assert drawn_clients(silos) == taking
    names = names_of(coordinator, taking)
    assert show(coordinator, federation_id, 1)["sample"] == {"places": 2, "drawn": names}
    for silo in silos:
        answer = current(silo)
        if silo not in taking:
            assert (answer.status_code, answer.headers["Tessera-Not-Drawn"]) == (204, "1")
            refused = try_join(silo, 1)
            assert (refused.status_code, slug(refused)) == (409, "not-drawn")
        drawn = silo.http.get(f"/v1/federations/{federation_id}/rounds/1").json()["sample"]["drawn"]
        assert drawn == (names_of(coordinator, [silo]) if silo in taking else [])
    for number, silo in enumerate(taking):
        if number == 0:
            try_join(taking[1], 1)
        deliver(silo, 1, values(1.0))
    wait_for(coordinator, federation_id, 1, "published")
    assert show(coordinator, federation_id, 1)["sample"] == {"places": None, "drawn": names}


def test_other_rounds_draw_other_clients(coordinator: Served) -> None:
    federation_id, silos = run_sampled(coordinator, 1, clients=3)
    names = names_of(coordinator, silos)
    taking = []
    for number in range(1, 5):
        (silo,) = drawn_clients(silos)
        taking += names_of(coordinator, [silo])
        deliver(silo, number, values(1.0))
        wait_for(coordinator, federation_id, number, "published")
    assert taking == [in_order(0, number, names)[0] for number in range(1, 5)]
    assert len(set(taking)) > 1


def test_revoked_and_absent_clients_free_their_places(coordinator: Served) -> None:
    federation_id, silos = run_sampled(coordinator, 1, clients=3)
    (first,) = drawn_clients(silos)
    assert coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{first.client_id}").is_success
    others_drawn = [silo for silo in silos if silo is not first]
    (second,) = drawn_clients(others_drawn)
    (third,) = [silo for silo in others_drawn if silo is not second]
    with coordinator.database.write() as session:
        long_ago = database_time(session) - WILLING - timedelta(seconds=60)
        session.execute(
            update(ClientRow).where(ClientRow.id == second.client_id).values(last_seen_at=long_ago)
        )
    assert current(third).status_code == 200
    assert try_join(third, 1).is_success
    assert current(second).status_code == 204, "its place is taken"
    assert show(coordinator, federation_id, 1)["sample"]["drawn"] == names_of(coordinator, [third])


@pytest.mark.parametrize("sample", [2, 5, 0.5])
@pytest.mark.parametrize("joined", [0, 1, 2, 4])
def test_is_drawn_agrees_with_the_whole_draw(
    database: Database, monkeypatch: pytest.MonkeyPatch, sample: float, joined: int
) -> None:
    sampled_plan = federation_plan(rounds={"min_clients": 1, "sample": sample})
    with database.write() as session:
        federation = federations.create(session, sampled_plan)
        now = database_time(session)
        row = rounds.open_round(session, federation.id, 1, now)
        # Every third client was never seen, or long ago; the last ones have joined.
        last_seen = [now, now - 2 * WILLING, now - WILLING / 2, None, now, now, None, now]
        session.add_all(
            client_row(federation.id, name, now, last_seen_at=at)
            for name, at in zip(NAMES, last_seen, strict=True)
        )
        session.flush()
        members = NAMES[8 - joined :]
        session.add_all(participation_row(row.id, name, "joined", now) for name in members)
        session.flush()
        of_round = session, federation.id, row.id, 1, sampled_plan, now
        answers = {name: (is_drawn(*of_round, name), name in draw(*of_round, name).drawn) for name in NAMES}
        assert all(short == whole for short, whole in answers.values()), answers
        if joined < sample or sample == 0.5:
            return
        monkeypatch.setattr(sampling, "draw", None)  # every place is taken: nobody's ticket is looked at
        assert [is_drawn(*of_round, name) for name in NAMES] == [
            name in NAMES[8 - joined :] for name in NAMES
        ]
