"""Colluders that advertise an honest member's key in another encoding: no smaller sum is opened.

The checks of keys and the derivation of masks are two defences; each is tested without the other one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_agent.secure_sum import member as members
from coordinator.secure_sum import intake
from schemas.identity.keys import decode
from schemas.messages.secure_sum import KeysStep
from schemas.secure_sum import agreement
from schemas.secure_sum.agreement import SecretKey, cleared_key, new_secret_key, require_distinct
from schemas.secure_sum.errors import MessageRefused, SecureSumError, SessionAborted, SharesInconsistent
from schemas.secure_sum.statements import sign_keys
from schemas.secure_sum.terms import terms_hash
from tests.attacks.secure_sum.lying_server import Colluder, Collusion, Copy, LyingServer
from tests.attacks.secure_sum.x25519_points import PRIME, spellings
from tests.scene.secure_sums import Session, identity, inputs_of, session_until, terms_of

SCENES = {
    "one of seven": (Collusion(7, 5, {5: 0, 6: 1}, [3, 4]), (2,)),
    "one of four": (Collusion(4, 3, {3: 0}, [2]), (1,)),
    "a pair": (Collusion(4, 4, {3: 0}), (1, 2)),
    "three of four by default": (Collusion(5, 5, {4: 0}), (1, 2, 3)),
    "one of ten": (Collusion(10, 5, {7: 0, 8: 1, 9: 2}, [4, 5, 6]), (3,)),
}
"""Scenes with the honest members whose sum could be opened while masks did not depend on who had agreed."""


def _bit(key: str) -> bytes:
    raw = bytearray(decode(key))
    raw[31] ^= 0x80
    return bytes(raw)


def _torsion(key: str) -> bytes:
    """Return 1 / u: the point plus the point of order 2. It is canonical."""
    return pow(int.from_bytes(decode(key), "little"), -1, PRIME).to_bytes(32, "little")


COPIES: dict[str, Copy] = {
    "bit 255": lambda victim, own: (own.channel.public, _bit(victim.s)),
    "torsion": lambda victim, own: (own.channel.public, _torsion(victim.s)),
    "same": lambda victim, own: (own.channel.public, decode(victim.s)),
    "c as s": lambda victim, own: (own.channel.public, decode(victim.c)),
    "own c as s": lambda victim, own: (own.channel.public, own.channel.public),
}

RESPELT = [*((scene, "bit 255") for scene in SCENES), ("one of ten", "torsion"), ("one of four", "same")]
PLAYED = [*RESPELT, ("one of four", "c as s"), ("one of four", "own c as s")]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members check no key."""
    monkeypatch.setattr(members, "require_distinct", lambda _: None)


@pytest.mark.parametrize(("scene", "copy"), PLAYED)
def test_members_notice_a_copied_key(scene: str, copy: str) -> None:
    server = LyingServer(SCENES[scene][0], COPIES[copy])
    with pytest.raises(SessionAborted, match=r"public keys are equal|not a canonical"):
        server.run()
    assert not server.masked


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("scene", "copy"), PLAYED)
def test_an_unchecked_copied_key_opens_nothing(scene: str, copy: str) -> None:
    server = LyingServer(SCENES[scene][0], COPIES[copy])
    server.run()
    assert list(server.opened()) == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("scene", "copy"), RESPELT)
def test_copied_keys_open_sums_without_bound_masks(
    scene: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack works on masks that do not depend on positions and keys: the tests above play it."""
    monkeypatch.setattr(agreement, "_pair", lambda *_: b"")
    server = LyingServer(SCENES[scene][0], COPIES[copy])
    server.run()
    assert SCENES[scene][1] in set(server.opened())


@pytest.mark.parametrize("scene", SCENES)
def test_colluders_open_only_the_sum_of_honest_members(scene: str) -> None:
    """With keys of their own they learn one sum, of at least minimum - k honest members."""
    played = SCENES[scene][0]
    server = LyingServer(played, lambda _, own: (own.channel.public, own.mask.public))
    server.run()
    (opened,) = server.opened()
    assert set(opened) == set(played.counted) - set(played.copies)
    assert len(opened) >= played.minimum - len(played.copies)


@pytest.mark.usefixtures("unchecked")
def test_a_key_of_two_identities_opens_no_less() -> None:
    shared = SecretKey(b"\x05" * 32)
    server = LyingServer(SCENES["one of seven"][0], lambda _, own: (own.channel.public, shared.public))
    server.colluders = {n: Colluder(own.channel, shared) for n, own in server.colluders.items()}
    server.run()
    assert list(server.opened()) == [(0, 1, 2)]


def test_a_key_of_two_identities_is_refused() -> None:
    shared = SecretKey(b"\x05" * 32)
    server = LyingServer(SCENES["one of seven"][0], lambda _, own: (own.channel.public, shared.public))
    with pytest.raises(SessionAborted, match="public keys are equal"):
        server.run()


def test_a_key_of_an_earlier_session_opens_nothing() -> None:
    earlier = Session(terms_of(7, session=2), inputs_of(7)).run_steps(1)
    copied = decode(earlier.keys[0].s)
    played = Collusion(7, 5, {6: 0}, [4, 5])
    server = LyingServer(played, lambda _, own: (own.channel.public, copied))
    server.run()
    assert list(server.opened()) == []


@pytest.mark.usefixtures("unchecked")
def test_a_copied_channel_key_cannot_decrypt_shares() -> None:
    server = LyingServer(SCENES["a pair"][0], lambda victim, own: (_torsion(victim.c), own.mask.public))
    with pytest.raises(SessionAborted, match="do not decrypt"):
        server.run()


def test_spellings_of_a_key_are_equal() -> None:
    """P + T for every T of small order; X25519 tells none of them from P."""
    secret, peer = new_secret_key(), new_secret_key()
    respelled = spellings(secret.public)
    assert len(respelled) == 8
    for spelling in respelled:
        assert peer.exchange(spelling) == peer.exchange(secret.public)
        assert cleared_key(spelling) == cleared_key(secret.public)
        with pytest.raises(SecureSumError, match="equal"):
            require_distinct([secret.public, spelling])


def _unusable() -> Iterator[bytes]:
    yield bytes(32)
    yield b"\x01" + bytes(31)
    yield (PRIME - 1).to_bytes(32, "little")
    yield from (value.to_bytes(32, "little") for value in range(PRIME, 2**255))
    yield (9 + 2**255).to_bytes(32, "little")
    yield from (bytes(31), bytes(33), b"")


def test_weak_and_noncanonical_keys_are_refused() -> None:
    for public in _unusable():
        with pytest.raises(SecureSumError):
            require_distinct([public])
    require_distinct([new_secret_key().public, (9).to_bytes(32, "little")])


@pytest.mark.parametrize("copy", COPIES)
def test_the_coordinator_refuses_a_copied_key_at_once(copy: str) -> None:
    session = Session(terms_of(5), inputs_of(5))
    first, own = session.members[0].keys(), Colluder()
    c, s = COPIES[copy](first, own)
    step = sign_keys(terms_hash(session.terms), c, s, bytes(16), identity(1))
    with pytest.raises(MessageRefused, match=r"used twice|not canonical"):
        intake.check_keys(session.terms, 1, step, [first])


def test_a_respelled_mask_key_prevents_opening() -> None:
    """A respelled key has no private key: nothing is rebuilt for a member that advertised it."""
    session = session_until(5, stops={4: 2})
    sent: KeysStep = session.keys[4]
    session.keys[4] = sign_keys(
        terms_hash(session.terms), decode(sent.c), _torsion(sent.s), bytes(16), identity(4)
    )
    with pytest.raises(SharesInconsistent, match="member 4"):
        session.open()
