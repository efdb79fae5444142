"""Messages of the steps: stored once, and refused with the reason if wrong, late or foreign."""

from __future__ import annotations

import pytest

from schemas.identity.keys import encode
from schemas.messages.secure_sum import ConfirmStep, SharesStep
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import running, url
from tests.scene.sum_members import CONFIRM, KEYS, MASKED, SHARES, SumClient, SummedRound, summing


def at_step(served: Served, step: int, clients: int = 4) -> SummedRound:
    """Return a session whose open phase is `step`."""
    scene = summing(served, clients)
    scene.begin()
    for earlier in range(step):
        scene.step(earlier)
    return scene


@pytest.mark.parametrize("step", range(5))
def test_a_step_message_is_stored_once_and_fixed(coordinator: Served, step: int) -> None:
    scene = at_step(coordinator, step)
    client = scene.clients[0]
    first, again = client.put(step), client.put(step)
    assert (first.status_code, again.status_code) == (201, 200), first.text
    assert first.json() == again.json()
    assert first.json()["digest"] == digest_of(client.message(step))
    sent = client.message(step)
    changed_message = bytes(len(sent)) if step == MASKED else sent + b" "  # a space does not change JSON
    conflict = client.put(step, changed_message)
    assert (conflict.status_code, slug(conflict)) == (409, "upload-conflict")
    assert conflict.json()["accepted"] == first.json()["digest"]


def test_a_message_may_be_repeated_after_its_phase(coordinator: Served) -> None:
    scene = at_step(coordinator, CONFIRM)
    for step in (KEYS, SHARES, MASKED):
        assert scene.clients[1].put(step).status_code == 200


def test_phase_errors_name_the_current_session_and_step(coordinator: Served) -> None:
    scene = at_step(coordinator, SHARES)
    client = scene.clients[0]
    early = client.put(CONFIRM, ConfirmStep(signature="AAAA").model_dump_json().encode())
    elsewhere = client.put(KEYS, session=2)
    masked = client.put(MASKED, b"")
    gone = client.get(KEYS, session=2)
    for refused in (early, elsewhere, masked, gone):
        assert (refused.status_code, slug(refused)) == (409, "phase-mismatch")
        assert (refused.json()["session"], refused.json()["step"]) == (1, "shares")


@pytest.mark.slow
def test_a_late_masked_vector_is_not_stored(coordinator: Served) -> None:
    scene = summing(coordinator, 5, phase_seconds=3)
    scene.begin()
    scene.step(KEYS)
    scene.step(SHARES)
    slow = scene.clients[4]
    body = slow.message(MASKED)
    scene.step(MASKED, stop=[4])
    scene.clients[0].answer(MASKED)
    late = slow.put(MASKED, body)
    assert (late.status_code, slug(late)) == (409, "phase-mismatch")
    assert late.json()["step"] == "confirm"
    assert not scene.rows(f"SELECT id FROM payloads WHERE digest = '{digest_of(body)}'")
    answer = slow.get(MASKED)
    assert (answer.status_code, slug(answer)) == (409, "phase-mismatch")
    assert "missed a step" in answer.json()["detail"]


def test_a_confirmation_of_other_sets_is_refused(coordinator: Served) -> None:
    scene = at_step(coordinator, CONFIRM)
    client = scene.clients[0]
    refused = client.put(CONFIRM, ConfirmStep(signature=encode(bytes(64))).model_dump_json().encode())
    assert (refused.status_code, slug(refused)) == (422, "statement-invalid")
    assert client.put(CONFIRM).status_code == 201


def test_a_longer_vector_is_not_read(coordinator: Served) -> None:
    scene = at_step(coordinator, MASKED)
    client = scene.clients[0]
    refused = client.put(MASKED, client.message(MASKED) + b"\0")
    assert (refused.status_code, slug(refused)) == (413, "body-too-large")
    assert refused.json()["limit"] == len(client.message(MASKED))


def test_a_session_is_closed_to_other_clients(coordinator: Served) -> None:
    scene = at_step(coordinator, SHARES)
    outside = SumClient(coordinator.enrol(scene.federation_id, "outside"), 1, terms=scene.clients[0].terms)
    for answer in (outside.put(SHARES, scene.clients[0].message(SHARES)), outside.get(KEYS)):
        assert (answer.status_code, slug(answer)) == (404, "not-found")
    status = outside.status()
    assert status is not None
    assert (status.session, status.step, status.terms) == (1, "shares", None)


def test_members_read_only_their_own_ciphertexts(coordinator: Served) -> None:
    scene = at_step(coordinator, MASKED)
    sent = [SharesStep.model_validate_json(client.message(SHARES)) for client in scene.clients]
    for reader, client in enumerate(scene.clients):
        answer = client.get(SHARES).json()
        assert answer["members"] == [0, 1, 2, 3]
        for source, sealed in enumerate(answer["shares"]):
            if source == reader:
                assert sealed is None
            else:
                assert sealed == sent[source].shares[reader - (reader > source)]


def test_a_round_without_a_sum_has_no_sessions(coordinator: Served) -> None:
    _, silos = running(coordinator)
    refused = silos[0].http.get(url(silos[0], 1, "/secure-sum"))
    assert (refused.status_code, slug(refused)) == (409, "no-secure-sum")
    for answer in (
        silos[0].http.get(url(silos[0], 1, "/secure-sum/1/0")),
        silos[0].http.put(url(silos[0], 1, "/secure-sum/1/0"), json={}),
    ):
        assert answer.status_code in (409, 422)
    assert silos[0].http.get(url(silos[0], 2, "/secure-sum")).status_code == 404
    assert silos[0].http.get(url(silos[0], 1, "/secure-sum/1/4")).status_code == 404
