"""Views of rounds for people and for clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.scene.coordinator import Served, slug
from tests.scene.rounds import (
    deliver,
    join,
    one_round,
    plan,
    put,
    running,
    scored,
    show,
    update_body,
    url,
    values,
    wait_for,
    weights,
)

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def test_rounds_are_listed_newest_first_in_pages(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    for number in (1, 2):
        one_round(coordinator, federation_id, silos, number, [1.0, 3.0])
    first = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds?limit=2").json()
    assert [item["round"] for item in first["items"]] == [3, 2]
    assert "clients" not in first["items"][0]
    older = coordinator.admin.get(
        f"/v1/federations/{federation_id}/rounds?limit=2&after={first['next']}"
    ).json()
    assert ([item["round"] for item in older["items"]], older["next"]) == ([1], None)
    assert slug(coordinator.admin.get(f"/v1/federations/{federation_id}/rounds?after=x")) == "validation"


def test_a_client_sees_only_its_own_row(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    shown = silos[1].http.get(f"/v1/federations/{federation_id}/rounds/1").json()
    assert [client["client_id"] for client in shown["clients"]] == [silos[1].client_id]
    row = silos[1].http.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert row["rows"] == [silos[1].client_id]
    assert row["relevance"] == [[0.5, 0.5]]
    assert row["similarity"] is None
    assert row["entropy"] == [round(np.log(2), 2)]


def scores(loss: float, exact: float) -> dict[str, Any]:
    return scored({"loss": loss, "perplexity": float(np.exp(loss)), "exact_match": exact})


def test_the_last_scores_of_a_client_win(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    path = f"/v1/federations/{federation_id}/rounds/1/scores"
    refused = silos[0].http.put(path, json=scores(1.0, 0.5))
    assert (refused.status_code, slug(refused)) == (409, "not-joined")
    assert one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])["scores"] is None
    assert silos[0].http.put(path, json=scores(5.0, 0.1)).status_code == 204
    assert silos[0].http.put(path, json=scores(1.0, 0.5)).status_code == 204
    assert silos[1].http.put(path, json=scores(2.0, 0.7)).status_code == 204
    shown = show(coordinator, federation_id, 1)
    assert shown["scores"]["mean"]["loss"] == {"value": pytest.approx(1.5), "count": 2}
    assert shown["scores"]["worst"]["loss"]["value"] == 2.0
    assert shown["scores"]["worst"]["perplexity"]["value"] == pytest.approx(np.exp(2.0))
    assert shown["scores"]["worst"]["exact_match"]["value"] == 0.5
    assert shown["clients"][0]["scores"] == scores(1.0, 0.5) | {"final_kept": True, "mixing": None}
    assert slug(silos[0].http.put(path, json=scores(1.0, 1.5))) == "validation"


def test_the_mean_of_huge_scores_is_a_number(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    huge = {"loss": 1.7e308, "perplexity": 1.7e308, "exact_match": 0.0}
    mean = {name: {"value": value, "count": 2} for name, value in huge.items()}
    for silo in silos:
        join(silo, 1)
        assert silo.http.put(url(silo, 1, "/scores"), json=scored(huge)).status_code == 204
    assert show(coordinator, federation_id, 1)["scores"]["mean"] == mean


def test_uploaded_and_downloaded_bytes_are_counted(coordinator: Served) -> None:
    federation_id, (first, second) = running(coordinator)
    base = join(first, 1)
    down = len(first.http.get(url(first, 1, "/weights")).content)
    body = update_body(first, 1, base, values(1.0))
    assert put(first, 1, body).status_code == 201
    assert put(first, 1, body).status_code == 200  # the same bytes are counted once
    shown = show(coordinator, federation_id, 1)
    assert shown["bytes"] == {"up": len(body), "down": down}
    client = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{first.client_id}").json()
    assert (client["bytes"], client["rounds"]) == ({"up": len(body), "down": down}, 1)
    assert second.client_id != first.client_id


def test_an_absent_clients_update_fades_and_shows_staleness(coordinator: Served) -> None:
    rounds = {"total": 9, "staleness_decay": 0.5, "max_staleness": 1}
    federation_id, silos = running(coordinator, clients=3, **plan(rounds=rounds | {"min_clients": 2}))
    join(silos[2], 1)
    for silo, fill in zip(silos, (0.0, 0.0, 6.0), strict=True):
        deliver(silo, 1, values(fill))
    wait_for(coordinator, federation_id, 1, "published")
    shares = []
    for number in (2, 3):
        for silo in silos[:2]:
            deliver(silo, number, values(0.0))
        wait_for(coordinator, federation_id, number, "published")
        join(silos[0], number + 1)
        shares.append(float(weights(silos[0], number + 1)["b0.q.P"][0, 0]))
    np.testing.assert_allclose(shares, [6 * 0.5 / 2.5, 0.0], atol=1e-6)
    join(silos[2], 4)
    assert show(coordinator, federation_id, 4)["clients"][-1]["staleness"] == 3
    # it is served all the same
    np.testing.assert_allclose(weights(silos[2], 4)["b0.q.P"], 0.0)


def test_events_follow_a_round_from_start_to_end(coordinator: Served, rows: Rows) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    time.sleep(0.05)
    kinds = rows(
        coordinator.database_url,
        f"SELECT data FROM events WHERE federation_id = '{federation_id}' AND kind = 'round' ORDER BY number",
    )
    states = [(json.loads(d) if isinstance(d, str) else d)["state"] for (d,) in kinds]
    assert states[0] == "open"
    assert states[-1] == "published"
    steps = [state for i, state in enumerate(states) if i == 0 or state != states[i - 1]]
    assert steps == ["open", "collecting", "closing", "aggregating", "published"]
