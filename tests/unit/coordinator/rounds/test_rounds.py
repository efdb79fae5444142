"""Rounds begin, close, are abandoned and end, over HTTP on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import (
    current,
    deliver,
    join,
    one_round,
    plan,
    put,
    running,
    show,
    try_join,
    update_body,
    url,
    values,
    wait_for,
    weights,
)

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def post_action(served: Served, federation_id: str, action: str) -> Any:
    return served.admin.post(f"/v1/federations/{federation_id}/{action}")


def test_clients_have_no_round_before_the_start(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    silo = coordinator.enrol(federation_id, "a")
    answer = current(silo)
    assert answer.status_code == 204
    assert int(answer.headers["retry-after"]) >= 1
    assert slug(try_join(silo, 1)) == "not-found"


def test_a_brief_contains_strategy_training_deadline_and_weights(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator, **plan(training={"steps": 7}))
    answer = current(silo)
    assert answer.status_code == 200
    brief = answer.json()
    assert (brief["round"], brief["state"], brief["deadline"]) == (1, "open", None)
    assert brief["strategy"] == {"name": "fedavg", "options": {"aggregate": "mean"}}
    assert brief["training"]["steps"] == 7
    assert brief["signature"]["dim"] == 4
    assert brief["server_time"].endswith("Z")
    assert brief["weights"]["digest"] == join(silo, 1)
    served = silo.http.get(url(silo, 1, "/weights"))
    assert len(served.content) == brief["weights"]["bytes"]
    assert all((value == 0).all() for value in weights(silo, 1).values())


def test_a_round_collects_after_min_clients_have_joined(coordinator: Served) -> None:
    federation_id, (first, second) = running(coordinator)
    join(first, 1)
    assert show(coordinator, federation_id, 1)["state"] == "open"
    join(second, 1)
    shown = show(coordinator, federation_id, 1)
    assert shown["state"] == "collecting"
    assert shown["deadline"] is not None
    assert shown["counts"] == {"joined": 2, "arrived": 0, "late": 0, "dropped": 0, "rejected": 0}


def test_repeated_joins_return_the_same_answer(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    once = try_join(silos[0], 1)
    assert try_join(silos[0], 1).json() == once.json()
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0])
    again = try_join(silos[0], 1)
    assert (again.status_code, again.json()) == (200, once.json())
    assert show(coordinator, federation_id, 1)["counts"]["joined"] == 2


def test_the_last_update_closes_the_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    shown = one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    assert shown["counts"] == {"joined": 2, "arrived": 2, "late": 0, "dropped": 0, "rejected": 0}
    assert set(shown["seconds"]) == {"open", "collecting", "closing", "aggregating"}
    assert all(seconds >= 0 for seconds in shown["seconds"].values())
    assert shown["published_at"] is not None
    assert show(coordinator, federation_id, 2)["state"] == "open"
    brief = current(silos[0]).json()
    assert brief["round"] == 2
    assert brief["weights"]["digest"] == join(silos[0], 2)
    assert (weights(silos[0], 2)["b0.q.P"] == 2.0).all()


def test_a_client_has_no_round_after_its_update(coordinator: Served) -> None:
    _, (first, second) = running(coordinator)
    deliver(first, 1, values(1.0))
    assert current(first).status_code == 204
    assert current(second).status_code == 200


def test_a_quorum_is_enough_at_the_deadline(coordinator: Served) -> None:
    rounds = {"total": 2, "min_clients": 2, "quorum": 1, "collect_seconds": 0.4}
    federation_id, (first, second) = running(coordinator, **plan(rounds=rounds))
    deliver(first, 1, values(4.0))
    base = join(second, 1)
    shown = wait_for(coordinator, federation_id, 1, "published")
    assert shown["counts"]["arrived"] == 1
    late = put(second, 1, update_body(second, 1, base, values(1.0)))
    assert (late.status_code, slug(late)) == (409, "round-closed")
    shown = show(coordinator, federation_id, 1)
    assert shown["counts"]["late"] == 1
    assert [client["state"] for client in shown["clients"]] == ["arrived", "late"]
    join(first, 2)
    assert (weights(first, 2)["b0.q.Q"] == 4.0).all()


def test_a_round_below_its_quorum_is_repeated(
    coordinator: Served,
) -> None:
    federation_id, (first, second) = running(coordinator, **plan(rounds={"collect_seconds": 0.3, "total": 1}))
    receipt = deliver(first, 1, values(4.0)).json()
    base = join(second, 1)
    shown = wait_for(coordinator, federation_id, 1, "abandoned")
    assert shown["reason"] == "too-few-updates"
    assert shown["counts"] == {"joined": 2, "arrived": 0, "late": 0, "dropped": 0, "rejected": 1}
    rejected = shown["clients"][0]
    assert (rejected["state"], rejected["reject_reason"]) == ("rejected", "round-abandoned")
    assert rejected["staleness"] is None
    again = put(first, 1, update_body(first, 1, join(first, 1), values(4.0)))
    assert (again.status_code, again.json()) == (200, receipt)
    # abandoned rounds do not count: the one round of the plan is still to come, from the same weights
    assert current(second).json()["round"] == 2
    assert join(second, 2) == base
    assert join(first, 2) == base_digest(first)
    assert slug(coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance")) == "not-found"


def base_digest(silo: Silo) -> str:
    return str(try_join(silo, 1).json()["weights"]["digest"])


def test_a_revoked_clients_update_counts_in_its_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, clients=3, **plan(rounds={"min_clients": 3}))
    for silo in silos:
        join(silo, 1)
    deliver(silos[2], 1, values(6.0))
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[2].client_id}")
    shown = show(coordinator, federation_id, 1)
    assert ([client["state"] for client in shown["clients"]][2], shown["counts"]["arrived"]) == ("revoked", 1)
    for silo in silos[:2]:
        deliver(silo, 1, values(0.0))
    shown = wait_for(coordinator, federation_id, 1, "published")
    assert [client["state"] for client in shown["clients"]][2] == "revoked"
    assert shown["clients"][2]["received_at"] is not None
    assert shown["counts"] == {"joined": 3, "arrived": 3, "late": 0, "dropped": 0, "rejected": 0}
    join(silos[0], 2)
    np.testing.assert_allclose(weights(silos[0], 2)["b0.q.P"], 2.0)
    # in the round after, it serves nobody any more
    for silo in (silos[0], silos[1], coordinator.enrol(federation_id, "late")):
        deliver(silo, 2, values(0.0))
    wait_for(coordinator, federation_id, 2, "published")
    join(silos[0], 3)
    assert (weights(silos[0], 3)["b0.q.P"] == 0.0).all()


def test_final_weights_stay_readable_after_the_last_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    stranger = coordinator.enrol(federation_id, "never-came")
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "finished"
    finished = current(silos[0]).json()
    assert (finished["state"], finished["round"]) == ("finished", 2)
    served = silos[0].http.get(url(silos[0], 2, "/weights"))
    assert served.headers["etag"] == f'"{finished["weights"]["digest"]}"'
    assert len(served.content) == finished["weights"]["bytes"]
    assert (weights(silos[0], 2)["b0.q.P"] == 2.0).all()
    assert current(stranger).json() == {"state": "finished", "round": 2, "weights": None, "manifest": None}
    assert slug(stranger.http.get(url(stranger, 2, "/weights"))) == "not-found"
    assert slug(post_action(coordinator, federation_id, "start")) == "federation-state"


def test_a_paused_federation_opens_no_new_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    assert post_action(coordinator, federation_id, "pause").json()["state"] == "paused"
    assert post_action(coordinator, federation_id, "pause").status_code == 200
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    assert current(silos[0]).status_code == 204
    assert coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/2").status_code == 404
    assert post_action(coordinator, federation_id, "start").json()["round"] == {"number": 2, "state": "open"}
    assert post_action(coordinator, federation_id, "start").json()["round"] == {"number": 2, "state": "open"}


def test_the_last_round_ends_a_paused_federation_too(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    post_action(coordinator, federation_id, "pause")
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "finished"
    assert current(silos[0]).json()["state"] == "finished"


def test_finishing_abandons_the_current_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    deliver(silos[0], 2, values(9.0))
    assert post_action(coordinator, federation_id, "finish").json()["state"] == "finished"
    assert post_action(coordinator, federation_id, "finish").status_code == 200
    shown = show(coordinator, federation_id, 2)
    assert (shown["state"], shown["reason"], shown["counts"]["rejected"]) == ("abandoned", "finished", 1)
    finished = current(silos[1]).json()
    assert finished["round"] == 2
    assert (weights(silos[1], 2)["b0.q.P"] == 2.0).all()
    assert slug(post_action(coordinator, federation_id, "pause")) == "federation-state"


def test_an_unstarted_federation_can_be_finished(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    assert slug(post_action(coordinator, federation_id, "pause")) == "federation-state"
    assert post_action(coordinator, federation_id, "finish").json()["state"] == "finished"


def test_concurrent_last_updates_publish_a_round_once(coordinator: Served, rows: Rows) -> None:
    federation_id, silos = running(coordinator, clients=6, **plan(rounds={"min_clients": 6, "total": 2}))
    bodies = [(silo, update_body(silo, 1, join(silo, 1), values(i))) for i, silo in enumerate(silos)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda sent: put(sent[0], 1, sent[1]), bodies))
    assert [answer.status_code for answer in answers] == [201] * 6
    wait_for(coordinator, federation_id, 1, "published")
    join(silos[0], 2)
    np.testing.assert_allclose(weights(silos[0], 2)["b0.q.P"], 2.5)
    rounds = rows(
        coordinator.database_url, f"SELECT number FROM rounds WHERE federation_id = '{federation_id}'"
    )
    assert sorted(rounds) == [(1,), (2,)]
