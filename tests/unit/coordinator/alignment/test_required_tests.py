"""Plans that require a passed test of alignment packs: sharing before and after the test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.alignment import (
    ANCHORS,
    LARGE,
    PIVOT,
    acceptance_figures,
    acceptance_path,
    aligned,
    assert_weights_are_shared,
    put_pack,
)
from tests.scene.coordinator import Served
from tests.scene.operator import Operator

REQUIRED = {"pivot": PIVOT, "anchors": len(ANCHORS["anchors"]), "require_passed": True}


def with_packs(served: Served, **plan: Any) -> tuple[str, str, str]:
    """Return a federation that requires tests, and the digests of the pivot's pack and of the other."""
    federation_id = aligned(served, alignment=REQUIRED, **plan)
    of_pivot, of_other = (
        put_pack(served.admin, federation_id, model).json()["digest"] for model in (PIVOT, LARGE)
    )
    return federation_id, of_pivot, of_other


def sharing(served: Served, federation_id: str) -> dict[str, tuple[str, str]]:
    packs = served.admin.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    shown = served.admin.get(f"/v1/federations/{federation_id}").json()["alignment"]
    verdicts = {pack["base_model"]: pack["verdict"] for pack in shown}
    assert [pack["sharing"] for pack in packs] == [pack["sharing"] for pack in shown]
    return {pack["base_model"]: (verdicts[pack["base_model"]], pack["sharing"]) for pack in packs}


@pytest.mark.parametrize("verdict", [None, "failed", "passed"])
def test_packs_are_shared_only_after_a_passed_test(coordinator: Served, verdict: str | None) -> None:
    federation_id, of_pivot, of_other = with_packs(coordinator)
    if verdict is not None:
        stored = coordinator.admin.put(
            acceptance_path(federation_id), json=acceptance_figures(of_other, verdict)
        )
        assert stored.status_code == 201
    assert_weights_are_shared(coordinator, federation_id, of_pivot, of_other, across=verdict == "passed")


def test_a_missing_test_is_named_with_its_remedy(coordinator: Served) -> None:
    federation_id, _, of_other = with_packs(coordinator)
    before = sharing(coordinator, federation_id)
    assert (before[PIVOT][0], before[LARGE][0]) == ("untested", "untested")
    assert "is the pivot's" in before[PIVOT][1]
    assert "the plan requires a passed test" in before[LARGE][1]
    assert "Run `tessera agent alignment-test`" in before[LARGE][1]
    tessera = Operator(coordinator)
    assert "Shared by all" not in tessera("alignment", "list", federation_id)
    assert "requires a passed test" in tessera("alignment", "show", federation_id, LARGE)
    assert "requires a passed test" in tessera("federation", "show", federation_id, "--plan")
    silo = coordinator.enrol(federation_id, "a", base_model=LARGE)
    stored = silo.http.put(acceptance_path(federation_id), json=acceptance_figures(of_other)).json()
    assert stored["acceptance"]["verdict"] == "passed"
    assert sharing(coordinator, federation_id)[LARGE][0] == "passed"
    assert "Shared by all base models that share: b0.q" in tessera("alignment", "list", federation_id)


def test_untested_packs_share_without_the_option(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    put_pack(coordinator.admin, federation_id, PIVOT)
    put_pack(coordinator.admin, federation_id, LARGE)
    assert all("shared across" in claim for _, claim in sharing(coordinator, federation_id).values())
    assert "Shared by all" in Operator(coordinator)("alignment", "list", federation_id)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]["alignment"]
    assert shown["require_passed"] is False


def test_random_frames_refuse_a_required_test(coordinator: Served) -> None:
    plan = {"name": "x", "strategy": {"name": "fedmosaic"}, "alignment": REQUIRED | {"frames": "random"}}
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert (refused.status_code, refused.json()["field"]) == (422, "alignment.require_passed")
