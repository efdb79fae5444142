"""`tessera round list`, `round show` and `client list` in a terminal of 80 columns."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import Served
from tests.scene.operator import Operator
from tests.scene.rounds import join, one_round, plan, running, scored, url


@pytest.fixture
def federation_id(coordinator: Served) -> str:
    """A finished round of two clients with five scores, one of them final."""
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    scores = {"loss": 0.5, "perplexity": 1.649, "option_accuracy": 0.75, "f1": 0.625, "rouge_l": 0.375}
    final = {"loss": {"value": 0.25, "count": 96}}
    for silo in silos:
        join(silo, 1)
        assert silo.http.put(url(silo, 1, "/scores"), json=scored(scores)).status_code == 204
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    sent = scored(scores, final=final)
    assert silos[0].http.put(url(silos[0], 1, "/scores"), json=sent).status_code == 204
    return federation_id


def test_rounds_are_listed_by_their_mean_loss(coordinator: Served, federation_id: str) -> None:
    lines = Operator(coordinator, columns=80)("round", "list", federation_id).splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = [line.split() for line in lines if line.split()[:1] == ["round"]]
    (row,) = [line.split() for line in lines if "published" in line.split()]
    assert head[:2] + head[3:6] == ["round", "state", "loss", "worst", "perplexity"]
    assert row[:2] + row[-len(head) + 3 :][:2] == ["1", "published", "0.375", "0.500"]


def test_a_round_shows_the_losses_of_each_client(coordinator: Served, federation_id: str) -> None:
    lines = Operator(coordinator, columns=80)("round", "show", federation_id, "1").splitlines()
    assert max(len(line) for line in lines if not line.startswith("- ")) <= 80
    assert lines[0].startswith("round 1: published, opened ")
    assert "deadline" not in lines[0]
    (head,) = [line.split() for line in lines if line.split()[:2] == ["client", "state"]]
    assert [name for name in head if name in ("served", "trained", "kept", "final", "perplexity")] == [
        "served",
        "trained",
        "kept",
        "final",
        "perplexity",
    ]
    rows = [line.split() for line in lines if "arrived" in line.split()]
    at = head.index("served")
    shown = sorted(row[-len(head) :][at:][:3] for row in rows)
    assert shown == [["9.000", "0.500", "final"], ["9.000", "0.500", "trained"]]


def test_an_open_round_says_that_members_are_missing(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    shown = " ".join(Operator(coordinator, columns=80)("round", "show", federation_id).split())
    assert "1 of 2 required clients is a member; enrol another client" in shown


def test_client_lists_fit_long_names_and_whole_ids(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    names = ["clinic-of-the-university-hospital-of-north-harbour", "aster"]
    silos = [coordinator.enrol(federation_id, name) for name in names]
    lines = Operator(coordinator, columns=80)("client", "list", federation_id).splitlines()
    assert max(map(len, lines)) <= 80
    for silo in silos:
        assert any({silo.client_id, "enrolled"} <= set(line.split()) for line in lines)
