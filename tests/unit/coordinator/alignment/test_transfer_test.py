"""Transfer tests of packs over HTTP: who may store one, which are refused, and the effect of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.alignment import (
    BAD_SCORES,
    GOOD_SCORES,
    LARGE,
    PIVOT,
    acceptance_figures,
    acceptance_path,
    aligned,
    assert_weights_are_shared,
    direction_scores,
    put_pack,
    refusal,
    with_packs,
)
from tests.scene.coordinator import Served
from tests.scene.operator import Operator


def test_clients_store_tests_of_their_base_model(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"]
    assert [(line["base_model"], line["verdict"]) for line in shown] == [
        (LARGE, "untested"),
        (PIVOT, "untested"),
    ]
    silo = coordinator.enrol(federation_id, "a", base_model=LARGE)
    stored = silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack))
    assert stored.status_code == 201, stored.text
    assert (
        silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack)).json() == stored.json()
    )
    assert silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack)).status_code == 200
    listed = {
        p["base_model"]: p
        for p in silo.http.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    }
    assert listed[PIVOT]["acceptance"] is None
    assert "Its pack is not tested" in listed[PIVOT]["sharing"]
    acceptance = listed[LARGE]["acceptance"]
    assert (acceptance["verdict"], acceptance["tested_by"], acceptance["steps"]) == (
        "passed",
        silo.client_id,
        50,
    )
    assert (acceptance["learning_rate"], acceptance["seed"]) == (0.003, 0)
    assert acceptance["directions"][0]["endings"]["right"] == GOOD_SCORES
    assert listed[LARGE] == stored.json()
    line = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]
    assert (line["base_model"], line["verdict"]) == (LARGE, "passed")


def test_clients_of_other_base_models_store_no_test(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    of_pivot = coordinator.enrol(federation_id, "a")
    assert refusal(of_pivot.http.put(acceptance_path(federation_id), json=acceptance_figures(pack))) == (
        403,
        "forbidden",
    )


def test_a_verdict_confirmed_by_an_operator_is_final(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    first, second = (coordinator.enrol(federation_id, name, base_model=LARGE) for name in ("a", "b"))
    assert first.http.put(acceptance_path(federation_id), json=acceptance_figures(pack)).status_code == 201
    assert first.http.put(acceptance_path(federation_id), json=acceptance_figures(pack)).status_code == 200
    assert (
        coordinator.admin.put(acceptance_path(federation_id), json=acceptance_figures(pack)).json()[
            "acceptance"
        ]["tested_by"]
        is None
    )
    answer = first.http.put(acceptance_path(federation_id), json=acceptance_figures(pack, "failed"))
    assert refusal(answer) == (409, "upload-conflict")
    again = second.http.put(acceptance_path(federation_id), json=acceptance_figures(pack))
    assert (again.status_code, again.json()["acceptance"]["tested_by"]) == (200, None)
    assert (
        coordinator.admin.put(
            acceptance_path(federation_id), json=acceptance_figures(pack, "failed")
        ).status_code
        == 201
    )


SIX = {name: [*values, values[-1]] for name, values in BAD_SCORES.items()}


def of_tasks(count: int, source: str, target: str) -> dict[str, Any]:
    """Return a direction with the figures of `count` pseudo-tasks."""
    good, bad = (
        {name: values[:count] for name, values in ending.items()} for ending in (GOOD_SCORES, BAD_SCORES)
    )
    endings = {"right": good, "zero": bad, "wrong_task": bad, "random_frames": bad}
    return {"source": source, "target": target, "learnt": good, "endings": endings}


HOSTILE: dict[str, dict[str, Any]] = {
    "a verdict that does not follow": {"verdict": "failed"},
    "one direction": {"directions": [direction_scores(PIVOT, LARGE)]},
    "one direction twice": {"directions": [direction_scores(PIVOT, LARGE)] * 2},
    "a third model": {
        "directions": [direction_scores(PIVOT, LARGE), direction_scores(LARGE, "tiny-q-aaaaaaaaaaaa")]
    },
    "a start left out": {
        "directions": [
            direction_scores(PIVOT, LARGE),
            {"source": LARGE, "target": PIVOT, "learnt": GOOD_SCORES, "endings": {"right": GOOD_SCORES}},
        ]
    },
    "fewer figures for one start": {
        "directions": [direction_scores(PIVOT, LARGE), direction_scores(LARGE, PIVOT, zero=SIX)]
    },
    "four pseudo-tasks": {"directions": [of_tasks(4, PIVOT, LARGE), of_tasks(4, LARGE, PIVOT)]},
    "no learning rate": {"learning_rate": None},
    "another pack": {"pack": "sha256:" + "7" * 64},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_inconsistent_figures_are_refused(coordinator: Served, case: str) -> None:
    federation_id, pack = with_packs(coordinator)
    answer = coordinator.admin.put(
        acceptance_path(federation_id), json=acceptance_figures(pack) | HOSTILE[case]
    )
    assert refusal(answer) == (422, "validation")
    assert (
        coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]["verdict"]
        == "untested"
    )


def test_a_test_needs_a_pack_and_alignment(coordinator: Served) -> None:
    digest = "sha256:" + "7" * 64
    federation_id = aligned(coordinator)
    assert refusal(
        coordinator.admin.put(acceptance_path(federation_id), json=acceptance_figures(digest))
    ) == (404, "not-found")
    federation_id = coordinator.federation()
    assert refusal(
        coordinator.admin.put(acceptance_path(federation_id), json=acceptance_figures(digest))
    ) == (
        409,
        "federation-state",
    )


def test_a_replaced_pack_is_untested(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    assert (
        coordinator.admin.put(acceptance_path(federation_id), json=acceptance_figures(pack)).status_code
        == 201
    )
    replaced = put_pack(coordinator.admin, federation_id, LARGE, selected=["b0.v"])
    assert (replaced.status_code, replaced.json()["acceptance"]) == (201, None)


@pytest.mark.parametrize("verdict", ["passed", "failed"])
def test_failed_packs_share_inside_their_base_model(coordinator: Served, verdict: str) -> None:
    federation_id, pack = with_packs(coordinator)
    of_pivot = put_pack(coordinator.admin, federation_id, PIVOT).json()["digest"]
    assert (
        coordinator.admin.put(
            acceptance_path(federation_id), json=acceptance_figures(pack, verdict)
        ).status_code
        == 201
    )
    across = verdict == "passed"
    assert_weights_are_shared(coordinator, federation_id, of_pivot, pack, across=across)
    line = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]
    assert ("identical base model only" in line["sharing"]) == (not across)


def test_alignment_commands_show_errors_figures_and_sharing(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    tessera = Operator(coordinator)
    listed = tessera("alignment", "list", federation_id)
    assert "untested" in listed
    assert "Shared by all base models that share: b0.q" in listed.splitlines()
    coordinator.admin.put(acceptance_path(federation_id), json=acceptance_figures(pack, "failed"))
    listed = tessera("alignment", "list", federation_id)
    assert "failed" in listed
    assert "Shared by all" not in listed
    assert "1 of 2" in listed
    shown = tessera("alignment", "show", federation_id, LARGE)
    figures_shown = ("0.860 ± 0.024", "0.720 ± 0.049", "6.2e-05")
    for part in ("b0.v", "0.9", "wrong task", *figures_shown, "identical base model only"):
        assert part in shown, part
    assert "identical base model only" in tessera("federation", "show", federation_id, "--plan")
    assert tessera.json("alignment", "show", federation_id, LARGE)["acceptance"]["verdict"] == "failed"
    assert "has no pack of tiny-x" in tessera("alignment", "show", federation_id, "tiny-x", fails=True)
