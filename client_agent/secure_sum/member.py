"""The five steps of a member: secure aggregation against an active adversary (Bonawitz et al. 2017, fig. 4).

    0 keys     send c, s, signed                       receive U1 and its keys
    1 shares   send shares of s and b, encrypted       receive U2 and the shares for this member
    2 masked   send the masked vector                  receive U3
    3 confirm  sign U2 and U3                          receive the confirmations
    4 unmask   send shares of b for U3, of s for the others

Every received set is checked before the next message is made, and a failed check ends the member's part:
nothing that it has sent by then reveals its input.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.secure_sum.expectation import AcceptedTerms, Expectation, require_groups
from schemas.identity.keys import decode, encode, public_key
from schemas.messages.secure_sum import (
    ConfirmAnswer,
    ConfirmStep,
    KeysAnswer,
    KeysStep,
    MaskedAnswer,
    SharesAnswer,
    SharesStep,
    UnmaskShare,
    UnmaskStep,
)
from schemas.secure_sum.agreement import (
    AdvertisedKeys,
    SecretKey,
    agreed_key,
    new_secret_key,
    require_distinct,
    seal,
    self_mask_key,
    unseal,
)
from schemas.secure_sum.count_proofs import are_proved, proved_counts, verify_counts
from schemas.secure_sum.encoding import Modulus, largest_encoded
from schemas.secure_sum.errors import SecureSumError, SessionAborted
from schemas.secure_sum.masks import MaskKey, Masks, blindings
from schemas.secure_sum.shamir import SHARE_BYTES, share_value, split
from schemas.secure_sum.statements import (
    are_keys_signed,
    are_sets_signed,
    commitment_to,
    keys_digest,
    masked_digest,
    sharing_digest,
    sign_keys,
    sign_sets,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MemberSecrets:
    """The secrets of one session: two private keys, and the seed `b` of the self mask.

    `channels` keeps the keys that were agreed with peers: each is needed twice.
    """

    channel: SecretKey
    mask: SecretKey
    seed: bytes = field(repr=False)
    channels: dict[AdvertisedKeys, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True)
class KeySet:
    """U1: the keys of all members who answered step 0, by position."""

    keys: dict[int, KeysStep]

    @cached_property
    def digest(self) -> str:
        return keys_digest(self.keys)

    def advertised(self, position: int) -> AdvertisedKeys:
        return AdvertisedKeys.of(position, self.keys[position])


@dataclass(frozen=True)
class ShareSet:
    """U2: commitments and the shares that this member holds, by position; its own among them."""

    commitments: dict[int, str]
    mask_shares: dict[int, bytes]
    seed_shares: dict[int, bytes]

    @cached_property
    def digest(self) -> str:
        return sharing_digest(self.commitments)


@dataclass(frozen=True, slots=True)
class OwnShares:
    """The message of step 1, and the shares of its own secrets that a member keeps."""

    step: SharesStep
    mask_share: bytes
    seed_share: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """One member in one session, after it has accepted the terms."""

    accepted: AcceptedTerms
    secrets: MemberSecrets
    identity: Ed25519PrivateKey
    expectation: Expectation

    @property
    def position(self) -> int:
        return self.accepted.position

    def keys(self) -> KeysStep:
        """Return the body of step 0."""
        nonce = secrets.token_bytes(16)
        c, s = self.secrets.channel.public, self.secrets.mask.public
        return sign_keys(self.accepted.digest, c, s, nonce, self.identity)

    def accept_keys(self, answer: KeysAnswer, step: KeysStep) -> KeySet:
        """Check U1: enough members, signed by the keys of the terms, canonical and distinct, own unchanged.

        Raises:
            SessionAborted: a check failed.
        """
        terms = self.accepted.terms
        keys = _by_position(answer.members, answer.answers, len(terms.members))
        _require(len(keys) >= max(terms.minimum, terms.threshold), "too few members sent keys")
        # Otherwise the coordinator could put its own key between this member and its peers.
        _require(keys.get(self.position) == step, "this member's own keys are absent or changed")
        for position, peer in keys.items():
            signer = public_key(terms.members[position].key)
            _require(are_keys_signed(self.accepted.digest, peer, signer), "keys without a valid signature")
        # A repeated key would make masks cancel each other.
        _require_distinct(keys.values())
        return KeySet(keys)

    def shares(self, keyed: KeySet) -> OwnShares:
        """Return the body of step 1: both secrets shared among all members of the terms, encrypted for U1."""
        terms = self.accepted.terms
        # For all members of the terms: positions stay the same when some do not answer.
        mask_shares = split(self.secrets.mask.raw, terms.threshold, len(terms.members))
        seed_shares = split(self.secrets.seed, terms.threshold, len(terms.members))
        sealed = []
        for peer in sorted(keyed.keys.keys() - {self.position}):
            plain = mask_shares[peer] + seed_shares[peer]
            # Binds the ciphertext to both ends and to all keys: it cannot be moved to another session or
            # member.
            context = self._context(self.position, peer, keyed)
            sealed.append(encode(seal(self._channel(peer, keyed), plain, self.position, peer, context)))
        step = SharesStep(commitment=commitment_to(self.secrets.seed), shares=sealed)
        return OwnShares(step, mask_shares[self.position], seed_shares[self.position])

    def accept_shares(self, answer: SharesAnswer, keyed: KeySet, shares: OwnShares) -> ShareSet:
        """Check U2: enough members of U1, this one among them, and every share for this member decrypts.

        Raises:
            SessionAborted: a check failed.
        """
        terms = self.accepted.terms
        commitments = _by_position(answer.members, answer.commitments, len(terms.members))
        sealed = _by_position(answer.members, answer.shares, len(terms.members))
        _require(commitments.keys() <= keyed.keys.keys(), "a member shared without keys")
        _require(len(commitments) >= max(terms.threshold, terms.minimum), "too few members sent shares")
        _require(
            commitments.get(self.position) == shares.step.commitment,
            "this member's own shares are absent or changed",
        )
        mask_shares, seed_shares = {self.position: shares.mask_share}, {self.position: shares.seed_share}
        for peer in commitments.keys() - {self.position}:
            plain = self._unsealed(peer, sealed[peer], keyed)
            mask_shares[peer], seed_shares[peer] = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        return ShareSet(commitments, mask_shares, seed_shares)

    def masked(self, values: NDArray[np.int32], keyed: KeySet, shared: ShareSet) -> bytes:
        """Return the body of step 2: encoded values (D,) plus the self mask and all pair masks, modulo 2^m.

        Counts are committed to instead: their blindings are the masks, and proofs follow.

        Raises:
            SecureSumError: the values are not as many as the terms say, or none of the allowed counts.
        """
        terms = self.accepted.terms
        if len(values) != terms.values:
            raise SecureSumError(f"the terms are for {terms.values} values, not {len(values)}")
        masks = [MaskKey(self_mask_key(self.secrets.seed, self.accepted.digest), is_subtracted=False)]
        for peer in sorted(shared.commitments.keys() - {self.position}):
            pair = keyed.advertised(self.position), keyed.advertised(peer)
            key = agreed_key(self.secrets.mask, "mask", self.accepted.digest, *pair)
            # One of a pair adds the mask and the other subtracts it, so that masks cancel in the sum.
            masks.append(MaskKey(key, is_subtracted=self.position > peer))
        if are_proved(terms):
            whole, left = divmod(values.astype(np.int64), largest_encoded(terms.bits))
            _require(not left.any(), "the input is none of counts")
            blinded = blindings(masks, terms.values)
            return proved_counts(terms, self.position, whole.tolist(), blinded, self.identity)
        modulus = Modulus(terms.modulus)
        words = values.astype(np.int64).astype(modulus.word)  # two's complement
        Masks(masks, modulus.word).add_to(words)
        return modulus.pack(words)

    def accept_masked(self, answer: MaskedAnswer, shared: ShareSet) -> tuple[int, ...]:
        """Check U3: enough members of U2, this one among them, enough of every group, and proofs of counts.

        Raises:
            SessionAborted: too few members, this one is absent, or a member's counts are not proved.
            TermsRefused: a group of the sum may have too few members.
        """
        terms = self.accepted.terms
        members = tuple(sorted(_by_position(answer.members, answer.members, len(terms.members))))
        _require(set(members) <= shared.commitments.keys(), "a member masked without shares")
        _require(self.position in members, "this member's masked vector is not in the sum")
        _require(len(members) >= max(terms.threshold, terms.minimum), "too few members sent masked vectors")
        require_groups(self.accepted, len(members), self.expectation)
        self._require_proved(answer)
        return members

    def confirm(self, shared: ShareSet, masked: Sequence[int]) -> ConfirmStep:
        """Return the body of step 3."""
        return sign_sets(self.accepted.digest, shared.digest, masked_digest(masked), self.identity)

    def unmask(self, answer: ConfirmAnswer, shared: ShareSet, masked: Sequence[int]) -> UnmaskStep:
        """Check that at least t members of U3 confirmed the same sets; return the body of step 4.

        From here on the member is spent: it takes part in no other session of this kind in the round.

        Raises:
            SessionAborted: too few confirmations, or one over other sets.
        """
        terms = self.accepted.terms
        confirmations = _by_position(answer.members, answer.answers, len(terms.members))
        _require(confirmations.keys() <= set(masked), "a member confirmed without a masked vector")
        # The threshold is above two thirds: two different sets could both reach it only if more than a third
        # of the members confirm twice.
        _require(len(confirmations) >= terms.threshold, "too few confirmations")
        sets = shared.digest, masked_digest(masked)
        for position, confirmation in confirmations.items():
            signer = public_key(terms.members[position].key)
            is_same = are_sets_signed(self.accepted.digest, *sets, confirmation, signer)
            _require(is_same, "a member confirmed other sets of members")
        counted = set(masked)
        return UnmaskStep(
            shares=[
                # Never both shares of a member: together they would unmask its input.
                UnmaskShare(position=peer, of="b", share=encode(shared.seed_shares[peer]))
                if peer in counted
                else UnmaskShare(position=peer, of="s", share=encode(shared.mask_shares[peer]))
                for peer in sorted(shared.commitments)
            ]
        )

    def _require_proved(self, answer: MaskedAnswer) -> None:
        """Verify what every member of U3 sent as its counts: the coordinator may have let others pass."""
        terms = self.accepted.terms
        if not are_proved(terms):
            return
        for position, message in _by_position(answer.members, answer.inputs, len(terms.members)).items():
            try:
                verify_counts(terms, position, decode(message))
            except ValueError as error:
                client = terms.members[position].client
                raise SessionAborted(f"the counts of {client} are not acceptable: {error}") from error

    def _channel(self, peer: int, keyed: KeySet) -> bytes:
        advertised, agreed = keyed.advertised(peer), self.secrets.channels
        if advertised not in agreed:
            pair = keyed.advertised(self.position), advertised
            agreed[advertised] = agreed_key(self.secrets.channel, "channel", self.accepted.digest, *pair)
        return agreed[advertised]

    def _context(self, source: int, destination: int, keyed: KeySet) -> bytes:
        return f"{self.accepted.digest}|{source}|{destination}|{keyed.digest}".encode()

    def _unsealed(self, peer: int, sealed: str | None, keyed: KeySet) -> bytes:
        context = self._context(peer, self.position, keyed)
        try:
            plain = unseal(self._channel(peer, keyed), decode(sealed or ""), peer, self.position, context)
            # A share out of range would be found by the coordinator only, when it is too late to leave the
            # session.
            share_value(plain[:SHARE_BYTES])
            share_value(plain[SHARE_BYTES:])
        except ValueError as error:
            sender = self.accepted.terms.members[peer].client
            raise SessionAborted(f"the shares of {sender} do not decrypt") from error
        return plain


def new_secrets() -> MemberSecrets:
    """Draw the secrets of a session; they are never used for another one."""
    return MemberSecrets(new_secret_key(), new_secret_key(), secrets.token_bytes(32))


def _by_position(positions: Sequence[int], values: Sequence[Value], members: int) -> dict[int, Value]:
    _require(len(positions) == len(values), "positions and answers differ in number")
    _require(len(set(positions)) == len(positions), "a member is named twice")
    _require(all(0 <= position < members for position in positions), "a member is not in the terms")
    return dict(zip(positions, values, strict=True))


def _require_distinct(steps: Iterable[KeysStep]) -> None:
    try:
        require_distinct(decode(key) for step in steps for key in (step.c, step.s))
    except ValueError as error:
        raise SessionAborted(str(error)) from error


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise SessionAborted(reason)
