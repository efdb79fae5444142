"""Scores: when they are accepted, and their summaries for people and clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.coordinator import Served
from tests.scene.rounds import join, one_round, plan, running, scored, send_scores, show, url

FINAL = {"loss": {"value": 0.25, "count": 96}}


def test_score_means_use_kept_weights_and_count_clients(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    for silo in silos:
        join(silo, 1)
    assert send_scores(silos[0], 1, scored({"loss": 1.0, "f1": 0.5}) | {"kept": "served"}) == (204, "")
    assert send_scores(silos[1], 1, scored({"loss": 2.0, "f1": 0.75}, count=3)) == (204, "")
    scores = show(coordinator, federation_id, 1)["scores"]
    assert scores["mean"] == {"loss": {"value": 5.5, "count": 2}, "f1": {"value": 0.75, "count": 1}}
    assert scores["worst"] == {"loss": {"value": 9.0, "count": 2}, "f1": {"value": 0.75, "count": 1}}


@pytest.mark.parametrize(
    "body",
    [
        scored({"perplexity": 2.0}),
        scored({"loss": 1.0, "f1": 1.5}),
        scored({"loss": -1.0}),
        scored({"loss": 1.0, "F1": 0.5}),
        scored({"loss": 1.0}, count=0),
        scored({"loss": 1.0} | {f"name_{i}": 0.5 for i in range(16)}),
        scored({"loss": 1.0}) | {"kept": "final"},
        scored({"loss": 1.0}) | {"before": {}},
        {"before": {"loss": 1.0}, "after": {"loss": 1.0}, "examples": 9},
    ],
    ids=["no loss", "over 1", "negative", "name", "count", "17 names", "kept", "unknown", "before 0018"],
)
def test_scores_of_another_form_are_refused(coordinator: Served, body: dict[str, Any]) -> None:
    federation_id, (silo, _) = running(coordinator)
    join(silo, 1)
    assert send_scores(silo, 1, body) == (422, "validation")
    assert show(coordinator, federation_id, 1)["scores"] is None


def test_a_score_summary_keeps_the_commonest_names(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    for index, silo in enumerate(silos):
        join(silo, 1)
        rare = {f"a{index}_{number}": 0.5 for number in range(14)}
        assert send_scores(silo, 1, scored({"loss": 1.0, "z_common": 0.5} | rare)) == (204, "")
    mean = show(coordinator, federation_id, 1)["scores"]["mean"]
    assert len(mean) == 16
    assert mean["loss"]["count"] == mean["z_common"]["count"] == 2


def test_final_scores_are_accepted_only_after_the_end(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 2}))
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    first, late = silos
    sent = scored({"loss": 1.0})
    assert send_scores(first, 1, sent | {"final": FINAL}) == (409, "round-closed"), "it is not finished"
    one_round(coordinator, federation_id, silos, 2, [1.0, 3.0])
    assert send_scores(first, 1, sent | {"final": FINAL}) == (409, "round-closed"), "it is not the last round"
    assert send_scores(late, 2, sent | {"final": FINAL}) == (204, ""), "all of its scores at once"
    assert send_scores(late, 2, sent) == (409, "round-closed")
    outsider = coordinator.enrol(coordinator.federation(), "outsider")
    path = url(first, 2, "/scores")
    assert outsider.http.put(path, json=sent | {"final": FINAL}).status_code == 404


def test_final_scores_do_not_change_earlier_scores(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    for silo in silos:
        join(silo, 1)
        assert send_scores(silo, 1, scored({"loss": 1.0})) == (204, "")
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    (silo, _), sent = silos, scored({"loss": 1.0})
    later_scores = scored({"loss": 0.5}) | {"final": FINAL}
    for changed in (later_scores, sent | {"kept": "served", "final": FINAL}):
        assert send_scores(silo, 1, changed) == (409, "round-closed")
    assert [send_scores(silo, 1, sent | {"final": FINAL}) for _ in range(2)] == [(204, "")] * 2
    again = sent | {"final": {"loss": {"value": 0.125, "count": 96}}}
    for changed in (again, sent):
        assert send_scores(silo, 1, changed) == (409, "round-closed")
    shown = show(coordinator, federation_id, 1)
    assert shown["scores"]["mean"]["loss"] == {"value": 0.625, "count": 2}
    assert shown["clients"][0]["scores"] == sent | {"final": FINAL, "final_kept": True, "mixing": None}
