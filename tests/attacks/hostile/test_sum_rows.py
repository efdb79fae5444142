"""Rows 45 to 49: messages of the secure sum that are early, late, weak, short, long, or of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import update

from coordinator.db.tables.secure_sum import SumSessionRow
from schemas.identity.keys import decode, encode
from schemas.messages.secure_sum import ConfirmStep, SharesStep, UnmaskShare, UnmaskStep
from schemas.secure_sum.shamir import PRIME, SHARE_BYTES
from schemas.secure_sum.statements import sign_keys
from schemas.secure_sum.terms import terms_hash
from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Scene
from tests.scene.coordinator import Served
from tests.scene.sum_members import CONFIRM, KEYS, MASKED, SHARES, UNMASK, SumClient, SummedRound, summing

_A_DAY = 86400
_LOW_ORDER = bytes(32)


@cache
def _summed(served_url: str, step: int) -> SummedRound:
    """Make a federation whose sum waits for the first member in a step; the last was too slow in step 2."""
    scene = summing(_SERVED[served_url], 5, phase_seconds=_A_DAY)
    scene.begin()
    slow = scene.clients.pop()
    for earlier in range(step):
        scene.step(earlier)
        if earlier < MASKED:
            assert slow.put(earlier).status_code == 201
        elif earlier == MASKED:
            slow.message(MASKED)
            _let_the_phase_end(scene)
    scene.clients.append(slow)
    for client in scene.clients:
        if step > MASKED and client is slow:
            continue
        client.message(step)  # what it asks the coordinator for is not part of the attack
    return scene


_SERVED: dict[str, Served] = {}


def _let_the_phase_end(scene: SummedRound) -> None:
    """Move the beginning of the phase into the past: its deadline is over."""
    ((session_id,),) = scene.rows("SELECT id FROM sum_sessions WHERE {ours}")
    with scene.served.database.write() as session:
        past = datetime.now(UTC) - timedelta(seconds=2 * _A_DAY)
        late = update(SumSessionRow).where(SumSessionRow.id == session_id)
        session.execute(late.values(phase_opened_at=past))
    scene.wait_for(lambda view: view["secure_sum"]["sessions"][0]["state"] == "confirm")


def _first(scene: Scene, step: int) -> SumClient:
    return _summed(scene.served.url, step).clients[0]


def _sends(
    step: int, body: Callable[[SumClient], bytes], *, at: int | None = None, session: int = 1
) -> Callable[[Scene], Any]:
    """Send a body in a step, in a session whose open step is `at`."""

    def send(scene: Scene) -> Any:
        client = _first(scene, step if at is None else at)
        return client.put(step, body(client), session=session)

    return send


def _own_message(step: int) -> Callable[[SumClient], bytes]:
    return lambda client: client.message(step)


def _late_vector(scene: Scene) -> Any:
    slow = _summed(scene.served.url, CONFIRM).clients[-1]
    return slow.put(MASKED)


def _keys(
    *, c: bytes | None = None, s: bytes | None = None, terms: str | None = None, stranger: bool = False
) -> Callable[[SumClient], bytes]:
    """Advertise other keys, sign other terms, or sign with another key."""

    def make(client: SumClient) -> bytes:
        sent = json.loads(client.message(KEYS))
        assert client.terms is not None
        signed = sign_keys(
            terms or terms_hash(client.terms),
            decode(sent["c"]) if c is None else c,
            decode(sent["s"]) if s is None else s,
            b"nonce",
            Ed25519PrivateKey.generate() if stranger else client.silo.key,
        )
        return signed.model_dump_json().encode()

    return make


def _same_key_twice(client: SumClient) -> bytes:
    c = decode(json.loads(client.message(KEYS))["c"])
    return _keys(c=c, s=c)(client)


def _key_of_another(scene: Scene) -> Any:
    client, second, *_ = _summed(scene.served.url, KEYS).clients
    foreign = decode(json.loads(second.message(KEYS))["c"])
    return client.put(KEYS, _keys(c=foreign)(client))


def _shares(change: Callable[[SharesStep], dict[str, Any]]) -> Callable[[SumClient], bytes]:
    def make(client: SumClient) -> bytes:
        step = SharesStep.model_validate_json(client.message(SHARES))
        return step.model_copy(update=change(step)).model_dump_json().encode()

    return make


def _unmask(change: Callable[[list[UnmaskShare]], list[UnmaskShare]]) -> Callable[[SumClient], bytes]:
    def make(client: SumClient) -> bytes:
        shares = UnmaskStep.model_validate_json(client.message(UNMASK)).shares
        return UnmaskStep(shares=change(shares)).model_dump_json().encode()

    return make


def _changed_share(share: UnmaskShare, /, **changes: Any) -> UnmaskShare:
    return share.model_copy(update=changes)


_ANY = ConfirmStep(signature="AAAA").model_dump_json().encode()
_MISMATCH, _WEAK, _LIST, _SHARE = "phase-mismatch", "weak-public-key", "share-list", "share-invalid"

CASES = [
    Case(45, "a step too early", _sends(CONFIRM, lambda _: _ANY, at=KEYS), 409, _MISMATCH),
    Case(45, "a session to come", _sends(KEYS, _own_message(KEYS), session=2), 409, _MISMATCH),
    Case(45, "a vector without keys", _sends(MASKED, lambda _: b"", at=KEYS), 409, _MISMATCH),
    Case(46, "a key of low order", _sends(KEYS, _keys(c=_LOW_ORDER)), 422, _WEAK),
    Case(46, "a mask key of low order", _sends(KEYS, _keys(s=_LOW_ORDER)), 422, _WEAK),
    Case(46, "31 bytes", _sends(KEYS, _keys(c=b"x" * 31)), 422, _WEAK),
    Case(46, "one key for both", _sends(KEYS, _same_key_twice), 422, _WEAK),
    Case(46, "a key of another", _key_of_another, 422, _WEAK),
    Case(46, "signed by another key", _sends(KEYS, _keys(stranger=True)), 422, _WEAK),
    Case(46, "signed over other terms", _sends(KEYS, _keys(terms="sha256:x")), 422, _WEAK),
    Case(47, "short", _sends(SHARES, _shares(lambda s: {"shares": s.shares[1:]})), 422, _LIST),
    Case(47, "long", _sends(SHARES, _shares(lambda s: {"shares": [*s.shares, s.shares[0]]})), 422, _LIST),
    Case(47, "none", _sends(SHARES, _shares(lambda s: {"shares": []})), 422, _LIST),
    Case(
        47,
        "a short ciphertext",
        _sends(SHARES, _shares(lambda s: {"shares": [encode(bytes(81)), *s.shares[1:]]})),
        422,
        _LIST,
    ),
    Case(
        47,
        "a short commitment",
        _sends(SHARES, _shares(lambda s: {"commitment": encode(bytes(31))})),
        422,
        _LIST,
    ),
    Case(48, "a byte short", _sends(MASKED, lambda c: c.message(MASKED)[:-1]), 422, "masked-vector"),
    Case(48, "empty", _sends(MASKED, lambda _: b""), 422, "masked-vector"),
    Case(48, "after U3 froze", _late_vector, 409, _MISMATCH),
    Case(
        49, "both shares", _sends(UNMASK, _unmask(lambda s: [_changed_share(s[0], of="s"), *s])), 422, _SHARE
    ),
    Case(
        49,
        "the other share",
        _sends(UNMASK, _unmask(lambda s: [_changed_share(s[0], of="s"), *s[1:]])),
        422,
        _SHARE,
    ),
    Case(
        49,
        "the other share of who was lost",
        _sends(UNMASK, _unmask(lambda s: [*s[:-1], _changed_share(s[-1], of="b")])),
        422,
        _SHARE,
    ),
    Case(49, "one missing", _sends(UNMASK, _unmask(lambda s: s[1:])), 422, _SHARE),
    Case(49, "another order", _sends(UNMASK, _unmask(lambda s: s[::-1])), 422, _SHARE),
    Case(
        49,
        "of a stranger",
        _sends(UNMASK, _unmask(lambda s: [*s[:-1], _changed_share(s[-1], position=99)])),
        422,
        _SHARE,
    ),
    Case(
        49,
        "at least p",
        _sends(
            UNMASK,
            _unmask(
                lambda s: [_changed_share(s[0], share=encode(PRIME.to_bytes(SHARE_BYTES, "big"))), *s[1:]]
            ),
        ),
        422,
        _SHARE,
    ),
    Case(
        49,
        "32 bytes",
        _sends(UNMASK, _unmask(lambda s: [_changed_share(s[0], share=encode(bytes(32))), *s[1:]])),
        422,
        _SHARE,
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _sums(scene: Scene) -> None:
    """Create the sums before the hostile inputs."""
    _SERVED[scene.served.url] = scene.served
    for step in (KEYS, SHARES, MASKED, CONFIRM, UNMASK):
        summed = _summed(scene.served.url, step)
        summed.view()
    keys = _summed(scene.served.url, KEYS)
    assert keys.clients[1].put(KEYS).status_code == 201


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_message_of_a_sum_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)


def test_sums_complete_after_hostile_messages(scene: Scene) -> None:
    for step in (KEYS, SHARES, MASKED, CONFIRM, UNMASK):
        summed = _summed(scene.served.url, step)
        slow = summed.clients.pop() if step > MASKED else None
        for due in range(step, UNMASK + 1):
            for client in summed.clients:
                assert client.put(due).status_code in (200, 201)
        assert summed.total().tolist() == summed.expected().tolist()
        assert slow is None or slow.input is not None
        summed.wait_for(lambda view: view["state"] == "published")
    scene.settle()  # the next rounds open after the publications; later tests compare whole tables
