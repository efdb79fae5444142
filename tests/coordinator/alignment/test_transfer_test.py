"""Transfer tests of packs over HTTP: who may store one, which are refused, and the effect of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinator.alignment.test_alignment import OTHER, PIVOT, aligned, put_pack, refused
from tests.scene.coordinator import Served
from tests.scene.operator import Operator
from tests.scene.rounds import join, put, update_body, values, wait_for, weights

GOOD = {"loss": [0.1, 0.2, 0.1, 0.2, 0.1], "exact_match": [0.9, 0.8, 0.9, 0.8, 0.9]}
BAD = {"loss": [0.9, 0.8, 0.9, 0.8, 0.9], "exact_match": [0.1, 0.2, 0.1, 0.2, 0.1]}


def direction(source: str, target: str, *, zero: dict[str, Any] = BAD) -> dict[str, Any]:
    endings = {"right": GOOD, "zero": zero, "wrong_task": BAD, "random_frames": BAD}
    return {"source": source, "target": target, "learnt": GOOD, "endings": endings}


def figures(pack: str, verdict: str = "passed", **changes: Any) -> dict[str, Any]:
    back = direction(OTHER, PIVOT, zero=BAD if verdict == "passed" else GOOD)
    return {
        "pack": pack,
        "verdict": verdict,
        "directions": [direction(PIVOT, OTHER), back],
        "taught": 60,
        "steps": 50,
        "learning_rate": 0.003,
        "seed": 0,
    } | changes


def with_packs(served: Served) -> tuple[str, str]:
    """Make a federation with both packs; give its id and the digest of the other base model's pack."""
    federation_id = aligned(served)
    for base_model in (PIVOT, OTHER):
        stored = put_pack(served.admin, federation_id, base_model)
        assert stored.status_code == 201, stored.text
    return federation_id, str(stored.json()["digest"])


def path(federation_id: str, base_model: str = OTHER) -> str:
    return f"/v1/federations/{federation_id}/alignments/{base_model}/acceptance"


def assert_shares(served: Served, federation_id: str, of_pivot: str, of_other: str, *, across: bool) -> None:
    """Play a round of a client of the pivot and two of the other base model; see whether it mixes both."""
    pivots = served.enrol(federation_id, "pivot")
    others = [served.enrol(federation_id, name, base_model=OTHER) for name in ("a", "b")]
    served.start_federation(federation_id)
    bases = [join(silo, 1) for silo in (pivots, *others)]
    for silo, base, fill in zip((pivots, *others), bases, (1.0, 3.0, 5.0), strict=True):
        digest = of_pivot if silo is pivots else of_other
        assert put(silo, 1, update_body(silo, 1, base, values(fill), pack=digest)).status_code == 201
    wait_for(served, federation_id, 1, "published")
    # a newcomer shows what the rule does to those without an update, too
    newcomer = served.enrol(federation_id, "new", base_model=OTHER)
    by_client = {}
    for silo in (pivots, *others, newcomer):
        join(silo, 2)
        by_client[silo.client_id] = weights(silo, 2)["b0.q.P"]
    assert (by_client[pivots.client_id] == (3.0 if across else 1.0)).all()  # the mean of all, or its own
    assert (by_client[others[0].client_id] == (3.0 if across else 4.0)).all()
    assert (by_client[newcomer.client_id] == (3.0 if across else 4.0)).all()


def test_clients_store_tests_of_their_base_model(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"]
    assert [(line["base_model"], line["verdict"]) for line in shown] == [
        (OTHER, "untested"),
        (PIVOT, "untested"),
    ]
    silo = coordinator.enrol(federation_id, "a", base_model=OTHER)
    stored = silo.http.put(path(federation_id), json=figures(pack))
    assert stored.status_code == 201, stored.text
    assert silo.http.put(path(federation_id), json=figures(pack)).json() == stored.json()
    assert silo.http.put(path(federation_id), json=figures(pack)).status_code == 200
    listed = {
        p["base_model"]: p
        for p in silo.http.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    }
    assert listed[PIVOT]["acceptance"] is None
    assert "Its pack is not tested" in listed[PIVOT]["sharing"]
    acceptance = listed[OTHER]["acceptance"]
    assert (acceptance["verdict"], acceptance["tested_by"], acceptance["steps"]) == (
        "passed",
        silo.client_id,
        50,
    )
    assert (acceptance["learning_rate"], acceptance["seed"]) == (0.003, 0)
    assert acceptance["directions"][0]["endings"]["right"] == GOOD
    assert listed[OTHER] == stored.json()
    line = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]
    assert (line["base_model"], line["verdict"]) == (OTHER, "passed")


def test_clients_of_other_base_models_store_no_test(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    of_pivot = coordinator.enrol(federation_id, "a")
    assert refused(of_pivot.http.put(path(federation_id), json=figures(pack))) == (403, "forbidden")


def test_a_verdict_confirmed_by_an_operator_is_final(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    first, second = (coordinator.enrol(federation_id, name, base_model=OTHER) for name in ("a", "b"))
    assert first.http.put(path(federation_id), json=figures(pack)).status_code == 201
    assert first.http.put(path(federation_id), json=figures(pack)).status_code == 200
    assert (
        coordinator.admin.put(path(federation_id), json=figures(pack)).json()["acceptance"]["tested_by"]
        is None
    )
    answer = first.http.put(path(federation_id), json=figures(pack, "failed"))
    assert refused(answer) == (409, "upload-conflict")
    again = second.http.put(path(federation_id), json=figures(pack))
    assert (again.status_code, again.json()["acceptance"]["tested_by"]) == (200, None)
    assert coordinator.admin.put(path(federation_id), json=figures(pack, "failed")).status_code == 201


SIX = {name: [*values, values[-1]] for name, values in BAD.items()}


def of_tasks(count: int, source: str, target: str) -> dict[str, Any]:
    """Return a direction with the figures of `count` pseudo-tasks."""
    good, bad = ({name: values[:count] for name, values in ending.items()} for ending in (GOOD, BAD))
    endings = {"right": good, "zero": bad, "wrong_task": bad, "random_frames": bad}
    return {"source": source, "target": target, "learnt": good, "endings": endings}


HOSTILE: dict[str, dict[str, Any]] = {
    "a verdict that does not follow": {"verdict": "failed"},
    "one direction": {"directions": [direction(PIVOT, OTHER)]},
    "one direction twice": {"directions": [direction(PIVOT, OTHER)] * 2},
    "a third model": {"directions": [direction(PIVOT, OTHER), direction(OTHER, "tiny-q-aaaaaaaaaaaa")]},
    "a start left out": {
        "directions": [
            direction(PIVOT, OTHER),
            {"source": OTHER, "target": PIVOT, "learnt": GOOD, "endings": {"right": GOOD}},
        ]
    },
    "fewer figures for one start": {
        "directions": [direction(PIVOT, OTHER), direction(OTHER, PIVOT, zero=SIX)]
    },
    "four pseudo-tasks": {"directions": [of_tasks(4, PIVOT, OTHER), of_tasks(4, OTHER, PIVOT)]},
    "no learning rate": {"learning_rate": None},
    "another pack": {"pack": "sha256:" + "7" * 64},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_inconsistent_figures_are_refused(coordinator: Served, case: str) -> None:
    federation_id, pack = with_packs(coordinator)
    answer = coordinator.admin.put(path(federation_id), json=figures(pack) | HOSTILE[case])
    assert refused(answer) == (422, "validation")
    assert (
        coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]["verdict"]
        == "untested"
    )


def test_a_test_needs_a_pack_and_alignment(coordinator: Served) -> None:
    digest = "sha256:" + "7" * 64
    federation_id = aligned(coordinator)
    assert refused(coordinator.admin.put(path(federation_id), json=figures(digest))) == (404, "not-found")
    federation_id = coordinator.federation()
    assert refused(coordinator.admin.put(path(federation_id), json=figures(digest))) == (
        409,
        "federation-state",
    )


def test_a_replaced_pack_is_untested(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    assert coordinator.admin.put(path(federation_id), json=figures(pack)).status_code == 201
    replaced = put_pack(coordinator.admin, federation_id, OTHER, selected=["b0.v"])
    assert (replaced.status_code, replaced.json()["acceptance"]) == (201, None)


@pytest.mark.parametrize("verdict", ["passed", "failed"])
def test_failed_packs_share_inside_their_base_model(coordinator: Served, verdict: str) -> None:
    federation_id, pack = with_packs(coordinator)
    of_pivot = put_pack(coordinator.admin, federation_id, PIVOT).json()["digest"]
    assert coordinator.admin.put(path(federation_id), json=figures(pack, verdict)).status_code == 201
    across = verdict == "passed"
    assert_shares(coordinator, federation_id, of_pivot, pack, across=across)
    line = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]
    assert ("identical base model only" in line["sharing"]) == (not across)


def test_alignment_commands_show_errors_figures_and_sharing(coordinator: Served) -> None:
    federation_id, pack = with_packs(coordinator)
    tessera = Operator(coordinator)
    listed = tessera("alignment", "list", federation_id)
    assert "untested" in listed
    assert "Shared by all base models that share: b0.q" in listed.splitlines()
    coordinator.admin.put(path(federation_id), json=figures(pack, "failed"))
    listed = tessera("alignment", "list", federation_id)
    assert "failed" in listed
    assert "Shared by all" not in listed
    assert "1 of 2" in listed
    shown = tessera("alignment", "show", federation_id, OTHER)
    figures_shown = ("0.860 ± 0.024", "0.720 ± 0.049", "6.2e-05")
    for part in ("b0.v", "0.9", "wrong task", *figures_shown, "identical base model only"):
        assert part in shown, part
    assert "identical base model only" in tessera("federation", "show", federation_id, "--plan")
    assert tessera.json("alignment", "show", federation_id, OTHER)["acceptance"]["verdict"] == "failed"
    assert "has no pack of tiny-x" in tessera("alignment", "show", federation_id, "tiny-x", fails=True)
