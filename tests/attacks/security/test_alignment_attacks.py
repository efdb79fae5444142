"""Limits of a client's harm to alignment, and an operator's means to repair it."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.wire.digests import digest_of
from tests.scene.alignment import (
    ERRORS,
    LARGE,
    MODULES,
    PIVOT,
    acceptance_figures,
    aligned,
    deliver_pack,
    pack_body,
    pack_path,
    pack_tensors,
    put_pack,
    refusal,
)
from tests.scene.alignment import acceptance_path as acceptance
from tests.scene.coordinator import Served, Silo
from tests.scene.operator import Operator
from tests.scene.rounds import join, put, try_join, update_body, url, values, wait_for, weights
from tests.unit.coordinator.weights.test_published_differences import ask, plain

JUNK = "junk-000000000000"
ANOTHER_SET = "sha256:" + "b" * 64
REPLACED = {"selected": ["b0.q", "b0.v"]}


def stored(served: Served, federation_id: str) -> dict[str, str]:
    """Return the digests of the packs that are stored, by base model."""
    listed = served.admin.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    return {pack["base_model"]: pack["digest"] for pack in listed}


def published(served: Served) -> tuple[str, list[Silo], dict[str, str]]:
    """Run a federation of two base models through its first round; the silos are the pivot's and another."""
    federation_id = aligned(served, rounds={"total": 3, "min_clients": 2, "collect_seconds": 600})
    silos = [served.enrol(federation_id, "pivotal"), served.enrol(federation_id, "other", base_model=LARGE)]
    for silo, base_model in zip(silos, (PIVOT, LARGE), strict=True):
        assert put_pack(silo.http, federation_id, base_model).status_code == 201
    served.start_federation(federation_id)
    packs = stored(served, federation_id)
    take_part(served, silos, 1, packs)
    return federation_id, silos, packs


def take_part(served: Served, silos: list[Silo], number: int, packs: dict[str, str]) -> None:
    """Have both silos deliver their round, which is published then: from 1 and from 5."""
    bases = [join(silo, number) for silo in silos]
    for silo, base, fill, model in zip(silos, bases, (1.0, 5.0), (PIVOT, LARGE), strict=True):
        update = update_body(silo, number, base, values(fill), pack=packs[model])
        assert put(silo, number, update).status_code == 201
    wait_for(served, silos[0].federation_id, number, "published")


def test_a_foreign_base_model_must_follow_the_pivot(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    attacker, honest = (
        coordinator.enrol(federation_id, "evil", base_model=JUNK),
        coordinator.enrol(federation_id, "honest"),
    )
    coordinator.start_federation(federation_id)
    junk = pack_body(federation_id, JUNK, pack_tensors(LARGE), alignment_set=ANOTHER_SET)
    assert refusal(deliver_pack(attacker.http, federation_id, JUNK, junk)) == (409, "pivot-pack-missing")
    assert put_pack(honest.http, federation_id, PIVOT).status_code == 201
    assert refusal(deliver_pack(attacker.http, federation_id, JUNK, junk)) == (422, "metadata")
    assert try_join(honest, 1).status_code == 200


@pytest.mark.parametrize("name", ["b0.q.A", "b0.q.B"])
def test_a_pack_without_values_is_refused(coordinator: Served, name: str) -> None:
    federation_id = aligned(coordinator)
    honest = coordinator.enrol(federation_id, "honest")
    empty = pack_tensors(PIVOT) | {name: np.zeros((2, 0) if name.endswith("A") else (0, 2), np.float32)}
    assert refusal(put_pack(honest.http, federation_id, PIVOT, empty)) == (422, "tensor-schema")


def test_a_compression_bomb_as_pack_is_refused(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    honest = coordinator.enrol(federation_id, "honest")
    wide = pack_tensors(PIVOT) | {"b0.q.A": np.zeros((2, 2**19), np.float32)}
    bomb = pack_body(federation_id, PIVOT, wide, compress=True)
    assert len(bomb) < 2**12
    answer = deliver_pack(honest.http, federation_id, PIVOT, bomb, **{"Content-Encoding": "zstd"})
    assert answer.status_code in (413, 422), answer.text
    assert stored(coordinator, federation_id) == {}
    noise = np.random.default_rng(1).normal(size=(2, 2**19)).astype(np.float32)
    real = pack_body(federation_id, PIVOT, pack_tensors(PIVOT) | {"b0.q.A": noise}, compress=True)
    assert (
        deliver_pack(honest.http, federation_id, PIVOT, real, **{"Content-Encoding": "zstd"}).status_code
        == 201
    )


@pytest.mark.parametrize("state", ["open", "running", "paused", "finished"])
def test_operators_replace_and_delete_packs_in_any_state(coordinator: Served, state: str) -> None:
    federation_id = aligned(coordinator)
    client = coordinator.enrol(federation_id, "pivotal")
    assert put_pack(client.http, federation_id, PIVOT).status_code == 201
    steps = {"open": [], "running": ["start"], "paused": ["start", "pause"], "finished": ["start", "finish"]}
    for step in steps[state]:
        assert coordinator.admin.post(f"/v1/federations/{federation_id}/{step}").status_code == 200
    operator = coordinator.person("operator")
    replaced = put_pack(operator, federation_id, PIVOT, **REPLACED)
    assert replaced.status_code == 201, replaced.text
    assert stored(coordinator, federation_id) == {PIVOT: replaced.json()["digest"]}
    assert operator.delete(pack_path(federation_id, PIVOT)).status_code == 204
    assert refusal(operator.delete(pack_path(federation_id, PIVOT))) == (404, "not-found")
    assert stored(coordinator, federation_id) == {}
    voided = coordinator.admin.get(f"/v1/federations/{federation_id}/alignments").json()["voided"]
    assert {pack["digest"] for pack in voided} == {
        digest_of(pack_body(federation_id, PIVOT)),
        replaced.json()["digest"],
    }
    again = put_pack(operator, federation_id, PIVOT)
    assert again.status_code == 201, again.text
    voided = coordinator.admin.get(f"/v1/federations/{federation_id}/alignments").json()["voided"]
    assert [pack["digest"] for pack in voided] == [replaced.json()["digest"]]


def test_the_command_line_deletes_a_pack(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    assert put_pack(coordinator.admin, federation_id, PIVOT).status_code == 201
    assert "is deleted" in Operator(coordinator)("alignment", "delete", federation_id, PIVOT, "--yes")
    assert stored(coordinator, federation_id) == {}


def test_updates_under_a_replaced_pack_no_longer_count(coordinator: Served) -> None:
    federation_id, (pivotal, second), packs = published(coordinator)
    base = join(second, 2)
    errors = dict.fromkeys(MODULES, ERRORS | {"a": 0.2})
    replaced = put_pack(coordinator.admin, federation_id, LARGE, errors=errors)
    assert replaced.status_code == 201
    assert stored(coordinator, federation_id)[PIVOT] == packs[PIVOT]
    round_2 = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/2").json()
    assert (round_2["state"], round_2["reason"]) == ("abandoned", "pack-ended")
    late = update_body(second, 2, base, values(7.0), pack=packs[LARGE])
    assert put(second, 2, late).status_code in (409, 422)
    join(second, 3)  # as a newcomer: the mean of those whose updates count
    assert (weights(second, 3)["b0.q.P"] == 1.0).all()
    join(pivotal, 3)
    assert (weights(pivotal, 3)["b0.q.P"] == 3.0).all()  # what round 1 made of both stays


def test_replacing_the_pivots_pack_ends_dependent_packs(coordinator: Served) -> None:
    federation_id, silos, _ = published(coordinator)
    replaced = put_pack(coordinator.admin, federation_id, PIVOT, alignment_set=ANOTHER_SET)
    assert replaced.status_code == 201
    assert [*stored(coordinator, federation_id)] == [PIVOT]
    assert refusal(try_join(silos[1], 3)) == (409, "pack-missing")
    assert refusal(deliver_pack(silos[1].http, federation_id, LARGE, pack_body(federation_id, LARGE))) == (
        422,
        "metadata",
    )
    made_anew = pack_body(federation_id, LARGE, alignment_set=ANOTHER_SET)
    assert deliver_pack(silos[1].http, federation_id, LARGE, made_anew).status_code == 201
    take_part(coordinator, silos, 3, stored(coordinator, federation_id))
    join(silos[0], 4)
    assert (weights(silos[0], 4)["b0.q.P"] == 3.0).all()


def test_zeros_after_a_voided_round_are_constant_bytes(coordinator: Served) -> None:
    federation_id = aligned(coordinator, rounds={"total": 3, "min_clients": 2, "collect_seconds": 600})
    silos = [coordinator.enrol(federation_id, name) for name in ("a", "b")]
    assert put_pack(silos[0].http, federation_id, PIVOT).status_code == 201
    coordinator.start_federation(federation_id)
    before = [join(silo, 1) for silo in silos]
    assert put_pack(coordinator.admin, federation_id, PIVOT, **REPLACED).status_code == 201
    after = [join(silo, 2) for silo in silos]
    for silo, earlier, named in zip(silos, before, after, strict=True):
        assert earlier != named
        answer, frame = ask(silo, 2, None)
        assert (answer.headers["content-encoding"], digest_of(plain(frame))) == ("zstd", named)
        assert ask(silo, 2, None)[1] == frame
        assert ask(silo, 2, earlier)[1] == frame, "zeros need no earlier weights"


def test_weights_of_an_unopened_round_are_recomputed(coordinator: Served) -> None:
    federation_id, silos, packs = published(coordinator)
    coordinator.admin.post(f"/v1/federations/{federation_id}/pause")
    take_part(coordinator, silos, 2, packs)
    errors = dict.fromkeys(MODULES, ERRORS | {"a": 0.2})
    assert put_pack(coordinator.admin, federation_id, LARGE, errors=errors).status_code == 201
    coordinator.start_federation(federation_id)
    join(silos[1], 3)
    assert (weights(silos[1], 3)["b0.q.P"] == 1.0).all()


def test_revoking_a_client_ends_its_packs(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    attacker, honest = (coordinator.enrol(federation_id, name) for name in ("evil", "honest"))
    assert put_pack(attacker.http, federation_id, PIVOT).status_code == 201
    coordinator.start_federation(federation_id)
    better = pack_body(federation_id, PIVOT, **REPLACED)
    assert refusal(deliver_pack(honest.http, federation_id, PIVOT, better)) == (409, "upload-conflict")
    revoked = coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{attacker.client_id}")
    assert revoked.status_code == 204
    assert stored(coordinator, federation_id) == {}
    assert deliver_pack(honest.http, federation_id, PIVOT, better).status_code == 201
    assert try_join(honest, 2).status_code == 200  # round 1 was abandoned


@pytest.mark.parametrize("vouched_by", ["--keep-packs", "an upload"])
def test_an_operator_keeps_packs_of_a_revoked_client(coordinator: Served, vouched_by: str) -> None:
    federation_id, (pivotal, _), packs = published(coordinator)
    options = []
    if vouched_by == "an upload":
        assert put_pack(coordinator.admin, federation_id, PIVOT).status_code == 200
    else:
        options = ["--keep-packs"]
    Operator(coordinator)("client", "revoke", federation_id, pivotal.client_id, "--yes", *options)
    assert stored(coordinator, federation_id) == packs


def test_an_enrolment_token_can_require_one_base_model(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    created = Operator(coordinator).json("enrolment", "create", federation_id, "silo", "--base-model", PIVOT)
    for base_model, status in ((JUNK, 422), (PIVOT, 201)):  # the token is not spent by the refusal
        answer = coordinator.try_enrol(created["token"], "silo", base_model=base_model)
        assert answer.status_code == status, answer.text
        if status == 422:
            assert answer.json()["field"] == "profile.base_model"
            assert PIVOT in answer.json()["detail"]


def test_one_failed_transfer_test_blocks_no_base_model(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    digests = [put_pack(coordinator.admin, federation_id, model).json()["digest"] for model in (PIVOT, LARGE)]
    pack = digests[1]
    first, second, third = (
        coordinator.enrol(federation_id, name, base_model=LARGE) for name in ("a", "b", "c")
    )

    def verdict() -> str:
        return str(
            coordinator.admin.get(f"/v1/federations/{federation_id}").json()["alignment"][0]["verdict"]
        )

    for _ in range(3):
        answer = first.http.put(acceptance(federation_id), json=acceptance_figures(pack, "failed", seed=1))
        assert answer.json()["verdicts"] == {"failed": 1}
        first.http.put(acceptance(federation_id), json=acceptance_figures(pack, "failed"))
    assert verdict() == "untested"
    second.http.put(acceptance(federation_id), json=acceptance_figures(pack))
    assert verdict() == "passed"
    answer = third.http.put(acceptance(federation_id), json=acceptance_figures(pack, "failed"))
    assert answer.json()["verdicts"] == {"failed": 2, "passed": 1}
    assert verdict() == "failed"
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{third.client_id}")
    assert verdict() == "passed"
    assert (
        coordinator.admin.put(acceptance(federation_id), json=acceptance_figures(pack, "failed")).status_code
        == 201
    )
    assert verdict() == "failed"
    assert refusal(first.http.put(acceptance(federation_id), json=acceptance_figures(pack))) == (
        409,
        "upload-conflict",
    )


def test_final_weights_outlive_a_pack_deleted_later(coordinator: Served) -> None:
    federation_id, (pivotal, _), _ = published(coordinator)
    coordinator.admin.post(f"/v1/federations/{federation_id}/finish")
    assert coordinator.admin.delete(pack_path(federation_id, PIVOT)).status_code == 204
    answer = pivotal.http.get(url(pivotal, 2, "/weights"))
    assert answer.status_code == 200, answer.text
