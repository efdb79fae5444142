"""Each message of a step: stored once, refused with the reason if it is wrong, late, or somebody else's."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.identity.keys import decode, encode
from schemas.messages.secure_sum import ConfirmStep, SharesStep, UnmaskStep
from schemas.secure_sum.statements import sign_keys
from schemas.secure_sum.terms import terms_hash
from schemas.wire.digests import digest_of
from tests.coordinator.secure_sum.members import (
    CONFIRM,
    KEYS,
    MASKED,
    SHARES,
    UNMASK,
    Scene,
    SumClient,
    summing,
)
from tests.served import Served, slug
from tests.taking_part import running, url


def at_step(served: Served, step: int, clients: int = 4) -> Scene:
    """Return a session whose open phase is `step`."""
    scene = summing(served, clients)
    scene.begin()
    for earlier in range(step):
        scene.step(earlier)
    return scene


def test_another_step_or_session_is_told_which_one_goes_on(coordinator: Served) -> None:
    scene = at_step(coordinator, SHARES)
    client = scene.clients[0]
    early = client.put(CONFIRM, ConfirmStep(signature="AAAA").model_dump_json().encode())
    elsewhere = client.put(KEYS, session=2)
    masked = client.put(MASKED, b"")
    gone = client.get(KEYS, session=2)
    for refused in (early, elsewhere, masked, gone):
        assert (refused.status_code, slug(refused)) == (409, "phase-mismatch")
        assert (refused.json()["session"], refused.json()["step"]) == (1, "shares")


def test_a_masked_vector_that_comes_late_is_never_stored(coordinator: Served) -> None:
    scene = summing(coordinator, 5)
    scene.begin()
    scene.step(KEYS)
    scene.step(SHARES)
    slow = scene.clients[4]
    body = slow.message(MASKED)
    scene.step(MASKED, stop=[4])
    scene.pass_deadline()
    scene.clients[0].answer(MASKED)
    late = slow.put(MASKED, body)
    assert (late.status_code, slug(late)) == (409, "phase-mismatch")
    assert late.json()["step"] == "confirm"
    assert not scene.rows(f"SELECT id FROM payloads WHERE digest = '{digest_of(body)}'")
    answer = slow.get(MASKED)
    assert (answer.status_code, slug(answer)) == (409, "phase-mismatch")
    assert "missed a step" in answer.json()["detail"]


def _other_identity(scene: Scene) -> bytes:
    terms, stranger = scene.clients[0].terms, Ed25519PrivateKey.generate()
    assert terms is not None
    keys = json.loads(scene.clients[0].message(KEYS))
    return _keys(terms_hash(terms), keys["c"], keys["s"], stranger)


def _weak(scene: Scene) -> bytes:
    terms = scene.clients[0].terms
    assert terms is not None
    keys = json.loads(scene.clients[0].message(KEYS))
    return _keys(terms_hash(terms), encode(bytes(32)), keys["s"], scene.clients[0].silo.key)


def _reused(scene: Scene) -> bytes:
    terms = scene.clients[0].terms
    assert terms is not None
    assert scene.clients[1].put(KEYS).status_code == 201
    keys = json.loads(scene.clients[1].message(KEYS))
    return _keys(terms_hash(terms), keys["c"], keys["s"], scene.clients[0].silo.key)


def _keys(terms: str, c: str, s: str, identity: Ed25519PrivateKey) -> bytes:
    return sign_keys(terms, decode(c), decode(s), b"nonce", identity).model_dump_json().encode()


def _short_list(scene: Scene) -> bytes:
    step = SharesStep.model_validate_json(scene.clients[0].message(SHARES))
    return step.model_copy(update={"shares": step.shares[:-1]}).model_dump_json().encode()


def _short_vector(scene: Scene) -> bytes:
    return scene.clients[0].message(MASKED)[:-1]


def _other_sets(_: Scene) -> bytes:
    return ConfirmStep(signature=encode(bytes(64))).model_dump_json().encode()


def _both_shares(scene: Scene) -> bytes:
    step = UnmaskStep.model_validate_json(scene.clients[0].message(UNMASK))
    both = step.shares[0].model_copy(update={"of": "s"})
    return step.model_copy(update={"shares": [both, *step.shares]}).model_dump_json().encode()


WRONG: dict[int, dict[Callable[[Scene], bytes], str]] = {
    KEYS: {
        _other_identity: "weak-public-key",
        _weak: "weak-public-key",
        _reused: "weak-public-key",
    },
    SHARES: {_short_list: "share-list"},
    MASKED: {_short_vector: "masked-vector"},
    CONFIRM: {_other_sets: "statement-invalid"},
    UNMASK: {_both_shares: "share-invalid"},
}


@pytest.mark.parametrize("step", WRONG)
def test_wrong_messages_are_refused_and_the_right_one_is_stored_once(coordinator: Served, step: int) -> None:
    scene = at_step(coordinator, step)
    client = scene.clients[0]
    for make, problem in WRONG[step].items():
        refused = client.put(step, make(scene))
        assert (refused.status_code, slug(refused)) == (422, problem)
        assert refused.json()["detail"]
    sent = client.message(step)
    if step == MASKED:
        longer = client.put(MASKED, sent + b"\0")
        assert (longer.status_code, slug(longer), longer.json()["limit"]) == (
            413,
            "body-too-large",
            len(sent),
        )
    first, again = client.put(step), client.put(step)
    assert (first.status_code, again.status_code) == (201, 200), first.text
    assert first.json() == again.json()
    assert first.json()["digest"] == digest_of(sent)
    conflict = client.put(step, bytes(len(sent)) if step == MASKED else sent + b" ")  # JSON of the same value
    assert (conflict.status_code, slug(conflict)) == (409, "upload-conflict")
    assert conflict.json()["accepted"] == first.json()["digest"]
    for earlier in range(step):
        assert scene.clients[1].put(earlier).status_code == 200, "it is repeated after its phase has closed"


def test_only_members_of_the_session_send_and_read(coordinator: Served) -> None:
    scene = at_step(coordinator, SHARES)
    outside = SumClient(coordinator.enrol(scene.federation_id, "outside"), 1, terms=scene.clients[0].terms)
    for answer in (outside.put(SHARES, scene.clients[0].message(SHARES)), outside.get(KEYS)):
        assert (answer.status_code, slug(answer)) == (404, "not-found")
    status = outside.status()
    assert status is not None
    assert (status.session, status.step, status.terms) == (1, "shares", None)


def test_a_reader_gets_its_own_ciphertexts_only(coordinator: Served) -> None:
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
