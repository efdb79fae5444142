"""Scores of other members: means from which a client cannot compute a single score."""

from __future__ import annotations

from typing import Any

from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import join, one_round, plan, running, scored, send_scores, show, url
from tests.unit.coordinator.rounds.test_scores import FINAL

LOSSES = (1.0, 1.25, 2.5, 2.0004)


def member_mean(silo: Silo, number: int) -> Any:
    """Return the mean that a client reads; its view must not show a worst client."""
    summary = silo.http.get(url(silo, number)).json()["scores"]
    assert summary is None or summary["worst"] is None
    return summary and summary["mean"]


def start_single_round(coordinator: Served, clients: int) -> tuple[str, list[Silo]]:
    return running(coordinator, clients, **plan(rounds={"total": 1, "min_clients": clients}))


def test_the_final_mean_needs_all_final_scores(coordinator: Served) -> None:
    federation_id, silos = start_single_round(coordinator, 4)
    for silo in silos:
        join(silo, 1)
        assert send_scores(silo, 1, scored({"loss": 1.0})) == (204, "")
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0, 3.0, 4.0])
    kept_scores, final = ({"loss": {"value": value, "count": 4}} for value in (1.0, 0.25))
    for silo in silos:
        assert member_mean(silos[0], 1) == kept_scores, "one client's change of the mean would be its score"
        assert send_scores(silo, 1, scored({"loss": 1.0}) | {"final": FINAL}) == (204, "")
    assert member_mean(silos[0], 1) == final


def test_a_mean_needs_three_other_clients(coordinator: Served) -> None:
    federation_id, silos = start_single_round(coordinator, 3)
    for silo in silos:
        join(silo, 1)
        assert send_scores(silo, 1, scored({"loss": 1.0})) == (204, "")
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0, 3.0])
    assert show(coordinator, federation_id, 1)["scores"]["mean"]["loss"]["count"] == 3
    assert [member_mean(silo, 1) for silo in silos] == [None] * 3


def test_own_scores_do_not_count_towards_the_minimum(coordinator: Served) -> None:
    federation_id, silos = start_single_round(coordinator, 4)
    for silo, loss, names in zip(silos, LOSSES, ({"f1": 0.5}, {"f1": 0.5}, {"f1": 0.75}, {}), strict=True):
        join(silo, 1)
        assert send_scores(silo, 1, scored({"loss": loss, "perplexity": 2.0} | names)) == (204, "")
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0, 3.0, 4.0])
    assert set(show(coordinator, federation_id, 1)["scores"]["mean"]) == {"loss", "perplexity", "f1"}
    loss = {"loss": {"value": 1.688, "count": 4}}  # rounded, and without the mean of perplexities
    assert [member_mean(silo, 1) for silo in silos[:3]] == [loss] * 3
    assert member_mean(silos[3], 1) == loss | {"f1": {"value": 0.583, "count": 3}}


def test_scores_are_fixed_after_their_mean_is_shown(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 4, **plan(rounds={"total": 2, "min_clients": 4}))
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0, 3.0, 4.0])
    for silo in silos:
        assert member_mean(silos[0], 1) is None
        for loss in (1.0, 2.0):
            expected = (409, "round-closed") if (silo, loss) == (silos[3], 2.0) else (204, "")
            assert send_scores(silo, 1, scored({"loss": loss})) == expected
    shown = {"loss": {"value": 1.75, "count": 4}}
    assert member_mean(silos[0], 1) == shown
    assert send_scores(silos[1], 1, scored({"loss": 9.0})) == (409, "round-closed")
    assert send_scores(silos[1], 1, scored({"loss": 2.0})) == (204, ""), "the same scores are no change"
    assert member_mean(silos[0], 1) == shown
