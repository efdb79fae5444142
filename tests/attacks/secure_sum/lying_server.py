"""A dishonest coordinator with colluding members, and the sums that they can compute together.

The honest side is the product's own `Member` with all its checks. The colluders' messages are made by hand:
their mask keys are copies of honest members' ones, so that masks of different pairs might be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from client_agent.secure_sum.expectation import accept_terms
from client_agent.secure_sum.member import KeySet, Member, OwnShares, new_secrets
from coordinator.secure_sum import intake
from schemas.identity.keys import decode, encode
from schemas.messages.secure_sum import KeysStep, MaskedAnswer, SharesStep, SumTerms
from schemas.secure_sum.agreement import (
    AdvertisedKeys,
    SecretKey,
    agreed_key,
    new_secret_key,
    seal,
    self_mask_key,
    unseal,
)
from schemas.secure_sum.encoding import Modulus, largest_encoded
from schemas.secure_sum.masks import MaskKey, Masks
from schemas.secure_sum.shamir import SHARE_BYTES, combine, lagrange_weights, split
from schemas.secure_sum.statements import (
    commitment_to,
    keys_digest,
    masked_digest,
    sharing_digest,
    sign_keys,
    sign_sets,
)
from tests.scene.secure_sums import expectation_of, identity, inputs_of, terms_of


@dataclass(frozen=True)
class Colluder:
    """A colluder's own secret keys."""

    channel: SecretKey = field(default_factory=new_secret_key)
    mask: SecretKey = field(default_factory=new_secret_key)


Copy = Callable[[KeysStep, Colluder], tuple[bytes, bytes]]
"""The keys `c` and `s` that a colluder advertises, made of its victim's message and its own keys."""


@dataclass(frozen=True)
class Collusion:
    """Members 0 to `members` - 1; `copies`: the victim of each colluder; `lost`: left out of the sum."""

    members: int
    minimum: int
    copies: Mapping[int, int]
    lost: Collection[int] = ()

    @property
    def honest(self) -> list[int]:
        return [n for n in range(self.members) if n not in self.copies]

    @property
    def counted(self) -> list[int]:
        return [n for n in range(self.members) if n not in self.lost]


class LyingServer:
    """One session of a scene: run it, then ask which sums of honest members can be opened."""

    def __init__(self, scene: Collusion, copy: Copy) -> None:
        self.scene = scene
        self.terms: SumTerms = terms_of(scene.members, minimum=scene.minimum)
        self.inputs = inputs_of(scene.members, seed=3)
        self.members = {n: self._member(n) for n in scene.honest}
        self.digest = self.members[scene.honest[0]].accepted.digest
        self.keys = {n: member.keys() for n, member in self.members.items()}
        self.colluders = {n: Colluder() for n in scene.copies}
        for colluder, victim in scene.copies.items():
            c, s = copy(self.keys[victim], self.colluders[colluder])
            self.keys[colluder] = sign_keys(self.digest, c, s, bytes(16), identity(colluder))
        self.keys = dict(sorted(self.keys.items()))
        self.steps: dict[int, SharesStep] = {}
        self.masked: dict[int, bytes] = {}
        self._shares: dict[int, dict[tuple[int, str], bytes]] = {}

    def run(self) -> None:
        """Play all steps; the server gets the masked vectors of the lost too.

        Raises:
            SessionAborted: an honest member noticed.
        """
        keyed = {
            n: member.accept_keys(intake.keys_answer(self.keys), self.keys[n])
            for n, member in self.members.items()
        }
        own = {n: member.shares(keyed[n]) for n, member in self.members.items()}
        self._share(own)
        shared = {
            n: member.accept_shares(intake.shares_answer(n, self.keys, self.steps), keyed[n], own[n])
            for n, member in self.members.items()
        }
        self.masked = {n: self.members[n].masked(self.inputs[n], keyed[n], shared[n]) for n in self.members}
        counted = self.scene.counted
        stay = {n: member for n, member in self.members.items() if n in counted}
        sets = {
            n: member.accept_masked(MaskedAnswer(members=counted), shared[n]) for n, member in stay.items()
        }
        confirmed = {n: member.confirm(shared[n], sets[n]) for n, member in stay.items()}
        sharing = sharing_digest({n: step.commitment for n, step in self.steps.items()})
        for n in self.scene.copies:
            confirmed[n] = sign_sets(self.digest, sharing, masked_digest(counted), identity(n))
        answer = intake.confirm_answer(dict(sorted(confirmed.items())))
        for n, member in stay.items():
            step = member.unmask(answer, shared[n], sets[n])
            self._shares[n] = {(share.position, share.of): decode(share.share) for share in step.shares}
        self._open_own(keyed)

    def opened(self) -> Iterator[tuple[int, ...]]:
        """Yield the sets of honest members whose sum is an input's size once all known masks are removed."""
        modulus = Modulus(self.terms.modulus)
        vectors = {n: self._without_known_masks(n, modulus) for n in self.members}
        for count in range(1, len(vectors) + 1):
            for members in combinations(vectors, count):
                total = np.sum([vectors[n] for n in members], axis=0, dtype=modulus.word)
                if np.abs(modulus.signed(total)).max() <= count * largest_encoded(16):
                    assert np.array_equal(modulus.signed(total), self._expected(members))
                    yield members

    def _member(self, n: int) -> Member:
        expectation = expectation_of(self.terms, n, minimum=self.scene.minimum)
        return Member(accept_terms(self.terms, expectation), new_secrets(), identity(n), expectation)

    def _share(self, own: Mapping[int, OwnShares]) -> None:
        """Add the colluders' messages of step 1: shares of zeros, which nobody can tell."""
        steps = {n: shares.step for n, shares in own.items()}
        for n in self.scene.copies:
            junk = split(bytes(32), self.terms.threshold, self.scene.members)
            sealed = [
                encode(seal(self._channel(n, peer), junk[peer] * 2, n, peer, self._context(n, peer)))
                for peer in range(self.scene.members)
                if peer != n
            ]
            steps[n] = SharesStep(commitment=commitment_to(bytes(32)), shares=sealed)
        self.steps = dict(sorted(steps.items()))

    def _open_own(self, keyed: Mapping[int, KeySet]) -> None:
        """Decrypt the shares that honest members sent to the colluders."""
        for n in self.scene.copies:
            self._shares[n] = {}
            for source in keyed:
                sealed = decode(self.steps[source].shares[n - (n > source)])
                context = self._context(source, n)
                plain = unseal(self._channel(n, source), sealed, source, n, context)
                self._shares[n] |= {(source, "s"): plain[:SHARE_BYTES], (source, "b"): plain[SHARE_BYTES:]}

    def _channel(self, colluder: int, peer: int) -> bytes:
        pair = self._advertised(colluder), self._advertised(peer)
        return agreed_key(self.colluders[colluder].channel, "channel", self.digest, *pair)

    def _advertised(self, n: int) -> AdvertisedKeys:
        return AdvertisedKeys.of(n, self.keys[n])

    def _context(self, source: int, destination: int) -> bytes:
        return f"{self.digest}|{source}|{destination}|{keys_digest(self.keys)}".encode()

    def _rebuilt(self, owner: int, of: str) -> bytes | None:
        shares = {n: held[owner, of] for n, held in self._shares.items() if (owner, of) in held}
        holders = sorted(shares)[: self.terms.threshold]
        if len(holders) < self.terms.threshold:
            return None
        return combine({n: shares[n] for n in holders}, lagrange_weights(holders))

    def _without_known_masks(self, n: int, modulus: Modulus) -> NDArray[np.unsignedinteger]:
        """Remove the masks that can be computed: the self mask, and those of known secret keys."""
        seed = self._rebuilt(n, "b")
        masks = [] if seed is None else [MaskKey(self_mask_key(seed, self.digest), is_subtracted=True)]
        for peer in self.keys.keys() - {n}:
            key = self._mask_key(n, peer) or self._mask_key(peer, n)
            if key is not None:
                masks.append(MaskKey(key, is_subtracted=n < peer))
        words = modulus.unpack(self.masked[n]).copy()
        Masks(masks, modulus.word).add_to(words)
        return words

    def _mask_key(self, owner: int, peer: int) -> bytes | None:
        """Return the key of a pair's mask, if the owner's secret key is known and fits what it advertised."""
        secret = self.colluders[owner].mask if owner in self.colluders else self._mask_secret(owner)
        if secret is None or encode(secret.public) != self.keys[owner].s:
            return None
        return agreed_key(secret, "mask", self.digest, self._advertised(owner), self._advertised(peer))

    def _mask_secret(self, owner: int) -> SecretKey | None:
        raw = self._rebuilt(owner, "s")
        return None if raw is None else SecretKey(raw)

    def _expected(self, members: Collection[int]) -> NDArray[np.int64]:
        total: NDArray[np.int64] = np.sum([self.inputs[n].astype(np.int64) for n in members], axis=0)
        return total
