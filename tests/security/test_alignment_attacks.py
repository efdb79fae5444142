"""One client cannot spoil alignment for the others, and an operator can put right what it did."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.wire.digests import digest_of
from tests.coordinator.alignment.test_alignment import (
    ERRORS,
    MODULES,
    OTHER,
    PIVOT,
    aligned,
    body,
    deliver,
    refused,
    tensors,
)
from tests.coordinator.alignment.test_transfer_test import figures
from tests.coordinator.alignment.test_transfer_test import path as acceptance
from tests.coordinator.cli.test_operator import Operator
from tests.served import Served, Silo, enrolment
from tests.taking_part import join, put, try_join, update_body, url, values, wait_for, weights

JUNK = "junk-000000000000"
ANOTHER_SET = "sha256:" + "b" * 64
REPLACED = {"selected": ["b0.q", "b0.v"]}


def path(fid: str, base_model: str) -> str:
    return f"/v1/federations/{fid}/alignments/{base_model}"


def stored(served: Served, fid: str) -> dict[str, str]:
    """Return the digests of the packs that are stored, by base model."""
    listed = served.admin.get(f"/v1/federations/{fid}/alignments").json()["items"]
    return {pack["base_model"]: pack["digest"] for pack in listed}


def published(served: Served) -> tuple[str, list[Silo], dict[str, str]]:
    """Run a federation of two base models through its first round; the silos are the pivot's and another."""
    fid = aligned(served, rounds={"total": 3, "min_clients": 2, "collect_seconds": 600})
    silos = [served.enrol(fid, "pivotal"), served.enrol(fid, "other", base_model=OTHER)]
    for silo, base_model in zip(silos, (PIVOT, OTHER), strict=True):
        assert deliver(silo.http, fid, base_model, body(fid, base_model)).status_code == 201
    served.admin.post(f"/v1/federations/{fid}/start")
    packs = stored(served, fid)
    take_part(served, silos, 1, packs)
    return fid, silos, packs


def take_part(served: Served, silos: list[Silo], number: int, packs: dict[str, str]) -> None:
    """Have both silos deliver their round, which is published then: from 1 and from 5."""
    bases = [join(silo, number) for silo in silos]
    for silo, base, fill, model in zip(silos, bases, (1.0, 5.0), (PIVOT, OTHER), strict=True):
        update = update_body(silo, number, base, values(fill), pack=packs[model])
        assert put(silo, number, update).status_code == 201
    wait_for(served, silos[0].federation_id, number, "published")


def test_a_base_model_that_is_made_up_sets_no_measure_for_the_others(coordinator: Served) -> None:
    fid = aligned(coordinator)
    attacker, honest = coordinator.enrol(fid, "evil", base_model=JUNK), coordinator.enrol(fid, "honest")
    coordinator.admin.post(f"/v1/federations/{fid}/start")
    junk = body(fid, JUNK, tensors(OTHER), alignment_set=ANOTHER_SET)
    assert refused(deliver(attacker.http, fid, JUNK, junk)) == (409, "pivot-pack-missing")
    assert deliver(honest.http, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    assert refused(deliver(attacker.http, fid, JUNK, junk)) == (422, "metadata")
    assert try_join(honest, 1).status_code == 200


def test_a_client_of_another_base_model_does_not_store_the_pivots_pack(coordinator: Served) -> None:
    fid = aligned(coordinator)
    attacker, honest = coordinator.enrol(fid, "evil", base_model=OTHER), coordinator.enrol(fid, "honest")
    assert refused(deliver(attacker.http, fid, PIVOT, body(fid, PIVOT))) == (403, "forbidden")
    assert deliver(honest.http, fid, PIVOT, body(fid, PIVOT)).status_code == 201


@pytest.mark.parametrize("name", ["b0.q.A", "b0.q.B"])
def test_a_pack_without_values_is_refused(coordinator: Served, name: str) -> None:
    fid = aligned(coordinator)
    honest = coordinator.enrol(fid, "honest")
    empty = tensors(PIVOT) | {name: np.zeros((2, 0) if name.endswith("A") else (0, 2), np.float32)}
    assert refused(deliver(honest.http, fid, PIVOT, body(fid, PIVOT, empty))) == (422, "tensor-schema")


def test_a_pack_that_unpacks_to_many_times_its_size_is_refused(coordinator: Served) -> None:
    fid = aligned(coordinator)
    honest = coordinator.enrol(fid, "honest")
    wide = tensors(PIVOT) | {"b0.q.A": np.zeros((2, 2**19), np.float32)}
    bomb = body(fid, PIVOT, wide, compress=True)
    assert len(bomb) < 2**12
    answer = deliver(honest.http, fid, PIVOT, bomb, **{"Content-Encoding": "zstd"})
    assert answer.status_code in (413, 422), answer.text
    assert stored(coordinator, fid) == {}
    noise = np.random.default_rng(1).normal(size=(2, 2**19)).astype(np.float32)
    real = body(fid, PIVOT, tensors(PIVOT) | {"b0.q.A": noise}, compress=True)
    assert deliver(honest.http, fid, PIVOT, real, **{"Content-Encoding": "zstd"}).status_code == 201


@pytest.mark.parametrize("state", ["open", "running", "paused", "finished"])
def test_an_operator_deletes_and_replaces_a_pack_in_every_state(coordinator: Served, state: str) -> None:
    fid = aligned(coordinator)
    client = coordinator.enrol(fid, "pivotal")
    assert deliver(client.http, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    steps = {"open": [], "running": ["start"], "paused": ["start", "pause"], "finished": ["start", "finish"]}
    for step in steps[state]:
        assert coordinator.admin.post(f"/v1/federations/{fid}/{step}").status_code == 200
    operator, auditor = coordinator.person("operator"), coordinator.person("auditor")
    replaced = deliver(operator, fid, PIVOT, body(fid, PIVOT, **REPLACED))
    assert replaced.status_code == 201, replaced.text
    assert stored(coordinator, fid) == {PIVOT: replaced.json()["digest"]}
    for caller in (client.http, auditor):
        assert refused(caller.delete(path(fid, PIVOT)))[0] in (401, 403)
    assert operator.delete(path(fid, PIVOT)).status_code == 204
    assert refused(operator.delete(path(fid, PIVOT))) == (404, "not-found")
    assert stored(coordinator, fid) == {}
    voided = coordinator.admin.get(f"/v1/federations/{fid}/alignments").json()["voided"]
    assert {pack["digest"] for pack in voided} == {digest_of(body(fid, PIVOT)), replaced.json()["digest"]}
    again = deliver(operator, fid, PIVOT, body(fid, PIVOT))
    assert again.status_code == 201, again.text
    voided = coordinator.admin.get(f"/v1/federations/{fid}/alignments").json()["voided"]
    assert [pack["digest"] for pack in voided] == [replaced.json()["digest"]]


def test_the_command_line_deletes_a_pack(coordinator: Served) -> None:
    fid = aligned(coordinator)
    assert deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    assert "is deleted" in Operator(coordinator)("alignment", "delete", fid, PIVOT)
    assert stored(coordinator, fid) == {}


def test_what_was_learnt_under_a_replaced_pack_no_longer_counts(coordinator: Served) -> None:
    fid, (pivotal, other), packs = published(coordinator)
    base = join(other, 2)
    errors = dict.fromkeys(MODULES, ERRORS | {"a": 0.2})
    replaced = deliver(coordinator.admin, fid, OTHER, body(fid, OTHER, errors=errors))
    assert replaced.status_code == 201
    assert stored(coordinator, fid)[PIVOT] == packs[PIVOT]
    round_2 = coordinator.admin.get(f"/v1/federations/{fid}/rounds/2").json()
    assert (round_2["state"], round_2["reason"]) == ("abandoned", "pack-ended")
    late = update_body(other, 2, base, values(7.0), pack=packs[OTHER])
    assert put(other, 2, late).status_code in (409, 422)
    join(other, 3)  # as a newcomer: the mean of those whose updates count
    assert (weights(other, 3)["b0.q.P"] == 1.0).all()
    join(pivotal, 3)
    assert (weights(pivotal, 3)["b0.q.P"] == 5.0).all()  # what round 1 made of both stays


def test_with_the_pivots_pack_all_that_were_made_on_it_end(coordinator: Served) -> None:
    fid, silos, _ = published(coordinator)
    replaced = deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT, alignment_set=ANOTHER_SET))
    assert replaced.status_code == 201
    assert [*stored(coordinator, fid)] == [PIVOT]
    assert refused(try_join(silos[1], 3)) == (409, "pack-missing")
    assert refused(deliver(silos[1].http, fid, OTHER, body(fid, OTHER))) == (422, "metadata")
    made_anew = body(fid, OTHER, alignment_set=ANOTHER_SET)
    assert deliver(silos[1].http, fid, OTHER, made_anew).status_code == 201
    take_part(coordinator, silos, 3, stored(coordinator, fid))
    join(silos[0], 4)
    assert (weights(silos[0], 4)["b0.q.P"] == 5.0).all()


def test_weights_for_a_round_that_is_not_open_yet_are_made_anew(coordinator: Served) -> None:
    fid, silos, packs = published(coordinator)
    coordinator.admin.post(f"/v1/federations/{fid}/pause")
    take_part(coordinator, silos, 2, packs)
    errors = dict.fromkeys(MODULES, ERRORS | {"a": 0.2})
    assert deliver(coordinator.admin, fid, OTHER, body(fid, OTHER, errors=errors)).status_code == 201
    coordinator.admin.post(f"/v1/federations/{fid}/start")
    join(silos[1], 3)
    assert (weights(silos[1], 3)["b0.q.P"] == 1.0).all()


def test_revoking_a_client_ends_the_packs_that_it_stored(coordinator: Served) -> None:
    fid = aligned(coordinator)
    attacker, honest = (coordinator.enrol(fid, name) for name in ("evil", "honest"))
    assert deliver(attacker.http, fid, PIVOT, body(fid, PIVOT)).status_code == 201
    coordinator.admin.post(f"/v1/federations/{fid}/start")
    better = body(fid, PIVOT, **REPLACED)
    assert refused(deliver(honest.http, fid, PIVOT, better)) == (409, "upload-conflict")
    revoked = coordinator.admin.delete(f"/v1/federations/{fid}/clients/{attacker.client_id}")
    assert revoked.status_code == 204
    assert stored(coordinator, fid) == {}
    assert deliver(honest.http, fid, PIVOT, better).status_code == 201
    assert try_join(honest, 2).status_code == 200  # round 1 was abandoned


@pytest.mark.parametrize("vouched_by", ["--keep-packs", "an upload"])
def test_an_operator_can_vouch_for_the_packs_of_a_client_that_leaves(
    coordinator: Served, vouched_by: str
) -> None:
    fid, (pivotal, _), packs = published(coordinator)
    options = []
    if vouched_by == "an upload":
        assert deliver(coordinator.admin, fid, PIVOT, body(fid, PIVOT)).status_code == 200
    else:
        options = ["--keep-packs"]
    Operator(coordinator)("client", "revoke", fid, pivotal.client_id, *options)
    assert stored(coordinator, fid) == packs


def test_an_enrolment_token_may_be_for_one_base_model(coordinator: Served) -> None:
    fid = aligned(coordinator)
    made = Operator(coordinator).json("enrolment", "create", fid, "silo", "--base-model", PIVOT)
    anyone, key = coordinator.http(), Ed25519PrivateKey.generate()
    for base_model, status in ((JUNK, 422), (PIVOT, 201)):  # the token is not spent by the refusal
        request = enrolment(anyone, made["token"], "silo", key, base_model=base_model)
        answer = anyone.post("/v1/enrolments", json=request)
        assert answer.status_code == status, answer.text
        if status == 422:
            assert answer.json()["field"] == "profile.base_model"
            assert PIVOT in answer.json()["detail"]


def test_one_client_does_not_cut_its_base_model_off(coordinator: Served) -> None:
    fid = aligned(coordinator)
    digests = [
        deliver(coordinator.admin, fid, model, body(fid, model)).json()["digest"] for model in (PIVOT, OTHER)
    ]
    pack = digests[1]
    first, second, third = (coordinator.enrol(fid, name, base_model=OTHER) for name in ("a", "b", "c"))

    def verdict() -> str:
        return str(coordinator.admin.get(f"/v1/federations/{fid}").json()["alignment"][0]["verdict"])

    for _ in range(3):
        answer = first.http.put(acceptance(fid), json=figures(pack, "failed", seed=1))
        assert answer.json()["verdicts"] == {"failed": 1}
        first.http.put(acceptance(fid), json=figures(pack, "failed"))
    assert verdict() == "untested"
    second.http.put(acceptance(fid), json=figures(pack))
    assert verdict() == "passed"
    answer = third.http.put(acceptance(fid), json=figures(pack, "failed"))
    assert answer.json()["verdicts"] == {"failed": 2, "passed": 1}
    assert verdict() == "failed"
    coordinator.admin.delete(f"/v1/federations/{fid}/clients/{third.client_id}")
    assert verdict() == "passed"
    assert coordinator.admin.put(acceptance(fid), json=figures(pack, "failed")).status_code == 201
    assert verdict() == "failed"
    assert refused(first.http.put(acceptance(fid), json=figures(pack))) == (409, "upload-conflict")


def test_final_weights_outlive_a_pack_that_is_deleted_after_the_end(coordinator: Served) -> None:
    fid, (pivotal, _), _ = published(coordinator)
    coordinator.admin.post(f"/v1/federations/{fid}/finish")
    assert coordinator.admin.delete(path(fid, PIVOT)).status_code == 204
    answer = pivotal.http.get(url(pivotal, 2, "/weights"))
    assert answer.status_code == 200, answer.text
