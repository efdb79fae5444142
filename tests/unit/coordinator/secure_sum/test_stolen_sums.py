"""A thief with copies of the database at all commits cannot open the input of a member."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from schemas.identity.keys import encode
from schemas.messages.secure_sum import SharesStep, SumTerms
from schemas.secure_sum.agreement import self_mask_key
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.masks import MaskKey, Masks
from schemas.secure_sum.shamir import combine, lagrange_weights
from schemas.secure_sum.statements import commitment_to
from schemas.secure_sum.terms import terms_hash
from tests.scene.coordinator import Served, slug
from tests.scene.database import ask
from tests.scene.sum_members import (
    CONFIRM,
    KEYS,
    MASKED,
    SHARES,
    UNMASK,
    SumClient,
    SummedRound,
    summing,
)
from tests.scene.thief import Thief, as_bytes, row_values, thief_at_every_commit
from tests.scene.waiting import wait_until

STEPS = (KEYS, SHARES, MASKED, CONFIRM, UNMASK)


@pytest.mark.slow
def test_stolen_states_of_a_sum_hide_inputs(coordinator: Served) -> None:
    with thief_at_every_commit() as thief:
        scene = summing(coordinator)
        thief.federation_id = scene.federation_id
        _play_session(scene, scene.clients, "done")
    _assert_inputs_hidden(thief, coordinator, scene.clients)


@pytest.mark.slow
def test_stolen_states_hide_a_lost_members_input(coordinator: Served) -> None:
    """Shares of its mask key are stored, and never its vector: it comes too late, and is refused."""
    with thief_at_every_commit() as thief:
        scene = summing(coordinator, 8, phase_seconds=6)
        thief.federation_id = scene.federation_id
        scene.begin()
        for step in (KEYS, SHARES):
            scene.step(step)
        lost = scene.clients[3]
        vector = lost.message(MASKED)
        scene.step(MASKED, stop=[lost.position])
        scene.clients[0].answer(MASKED)
        refused = lost.put(MASKED, vector)
        assert (refused.status_code, slug(refused)) == (409, "phase-mismatch")
        for step in (CONFIRM, UNMASK):
            scene.step(step, stop=[lost.position])
        _wait(scene, "done")
    (session,) = thief.sessions()
    assert lost.position not in thief.of(session, "masked")
    assert {of for owner, of in thief.shares(session) if owner == lost.position} == {"s"}
    _assert_inputs_hidden(thief, coordinator, scene.clients)


@pytest.mark.slow
def test_stolen_states_of_two_sessions_hide_inputs(coordinator: Served) -> None:
    with thief_at_every_commit() as thief:
        scene = summing(coordinator, phase_seconds=6)
        thief.federation_id = scene.federation_id
        scene.begin()
        for step in (KEYS, SHARES, MASKED):
            scene.step(step)
        first = [_secrets(client) for client in scene.clients]
        scene.step(CONFIRM, stop=[3, 4])
        _wait(scene, "aborted", "keys")
        living = scene.clients[:3]
        _play_session(scene, living, "aborted", "done")
    assert len(thief.sessions()) == 2
    assert thief.of(min(thief.sessions()), "masked")
    assert not thief.shares(min(thief.sessions()))
    _assert_inputs_hidden(thief, coordinator, living)
    stored = _joined_messages(thief)
    assert not [secret for secrets in first for secret in secrets if secret in stored]


def test_inputs_in_clear_are_deleted_with_their_session(coordinator: Served) -> None:
    with thief_at_every_commit() as thief:
        scene = summing(coordinator, masking="none")
        thief.federation_id = scene.federation_id
        scene.begin()
        scene.step(MASKED)
        _wait(scene, "done")
    assert scene.clients[0].message(MASKED) in _joined_messages(thief), "without masks, a thief reads them"
    assert not thief.now


def _play_session(scene: SummedRound, clients: list[SumClient], *states: str) -> None:
    scene.begin(clients)
    for step in STEPS:
        for client in clients:
            assert client.put(step).status_code == 201
        if step != UNMASK:
            stored = b"\0".join(map(as_bytes, row_values(scene.served.database_url)))
            assert not [secret for client in clients for secret in _secrets(client) if secret in stored]
    _wait(scene, *states)


def _wait(scene: SummedRound, *states: str) -> None:
    """Wait until the sessions of the round are in these states."""
    query = (
        "SELECT s.state FROM sum_sessions s JOIN rounds r ON r.id = s.round_id"
        f" WHERE r.federation_id = '{scene.federation_id}' AND r.number = 1 ORDER BY s.number"
    )
    wait_until(lambda: tuple(state for (state,) in ask(scene.served.database_url, query)) == states)


def _assert_inputs_hidden(thief: Thief, served: Served, clients: list[SumClient]) -> None:
    """Check that no member is opened, by all messages of all sessions, and that none of them is left."""
    assert thief.commits > 10
    stored = _joined_messages(thief)
    assert not [secret for client in clients for secret in _secrets(client) if secret in stored]
    for session in thief.sessions():
        terms = _terms(served.database_url, session)
        shares = thief.shares(session)
        for owner in range(len(terms.members)):
            counts = {of: len(shares.get((owner, of), {})) for of in ("b", "s")}
            assert min(counts.values()) < terms.threshold, f"both secrets of member {owner} can be rebuilt"
            assert min(counts.values()) == 0
    for client in clients:
        _check_still_masked(thief, client)
    sessions = ", ".join(map(str, thief.sessions()))
    left = f"SELECT count(*) FROM sum_messages WHERE session_id IN ({sessions})"
    assert ask(served.database_url, left) == [(0,)]


def _check_still_masked(thief: Thief, client: SumClient) -> None:
    """Remove the self mask, which the coordinator rebuilds too: pair masks are left on every value."""
    assert client.terms is not None
    assert client.input is not None
    session, position, modulus = max(thief.sessions()), client.position, Modulus(client.terms.modulus)
    shares = thief.shares(session).get((position, "b"))
    if shares is None:
        return
    holders = sorted(shares)[: client.terms.threshold]
    seed = combine({holder: shares[holder] for holder in holders}, lagrange_weights(holders))
    commitment = SharesStep.model_validate_json(thief.of(session, "shares")[position]).commitment
    assert commitment_to(seed) == commitment
    words = modulus.unpack(thief.of(session, "masked")[position]).copy()
    key = self_mask_key(seed, terms_hash(client.terms))
    Masks([MaskKey(key, is_subtracted=True)], modulus.word).add_to(words)
    assert not np.array_equal(modulus.signed(words), client.input)


def _secrets(client: SumClient) -> list[bytes]:
    """Return what must not be stored: the secrets of a member as octets and as text, and its input."""
    assert client.terms is not None
    assert client.input is not None
    secrets = client._member.secrets
    modulus = Modulus(client.terms.modulus)
    raw = [secrets.seed, secrets.mask.raw, secrets.channel.raw]
    forms: list[Callable[[bytes], bytes]] = [
        bytes,
        lambda secret: encode(secret).encode(),
        lambda secret: secret.hex().encode(),
    ]
    written = [form(secret) for secret in raw for form in forms]
    values = client.input.astype(np.int64)
    return [*written, modulus.pack(values.astype(modulus.word)), client.input.astype("<i4").tobytes()]


def _joined_messages(thief: Thief) -> bytes:
    return b"\0".join(thief.messages.values())


def _terms(url: str, session: int) -> SumTerms:
    engine = create_engine(url)
    with engine.connect() as connection:
        stored = connection.execute(text(f"SELECT terms FROM sum_sessions WHERE id = {session}")).scalar()
    engine.dispose()
    return (
        SumTerms.model_validate_json(stored) if isinstance(stored, str) else SumTerms.model_validate(stored)
    )
