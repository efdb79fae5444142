"""Checks of the members' messages, and the answer that each member is sent when a phase closes. Pure.

A message is checked when it arrives, so that its sender gets the error and later steps can rely on it.
Members check what only they can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from schemas.identity.keys import decode, encode, public_key
from schemas.messages.secure_sum import (
    ConfirmAnswer,
    ConfirmStep,
    KeysAnswer,
    KeysStep,
    MaskedAnswer,
    SharesAnswer,
    SharesStep,
    SumTerms,
    UnmaskStep,
)
from schemas.secure_sum.agreement import cleared_key
from schemas.secure_sum.count_proofs import are_proved, message_bytes, require_choice, verify_counts
from schemas.secure_sum.counts import decoded_counts
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.errors import MessageRefused
from schemas.secure_sum.shamir import SHARE_BYTES, share_value
from schemas.secure_sum.statements import are_keys_signed, are_sets_signed, masked_digest, sharing_digest
from schemas.secure_sum.terms import terms_hash

_SEALED_BYTES = 2 * SHARE_BYTES + 16  # two shares and the tag of AES-GCM
_COMMITMENT_BYTES = 32


def check_keys(terms: SumTerms, position: int, step: KeysStep, arrived: Collection[KeysStep]) -> None:
    """Check step 0 of a member; `arrived` are the keys of others so far.

    Raises:
        MessageRefused: the signature is invalid, or a key is not canonical, weak, or equal to another one up
            to a point of small order.
    """
    identity = public_key(terms.members[position].key)
    _require(are_keys_signed(terms_hash(terms), step, identity), position, "the keys are not signed by it")
    try:
        # Without their part of small order: a copy of a key in another spelling could cancel masks.
        sent = [cleared_key(decode(key)) for key in (step.c, step.s)]
    except ValueError as error:
        raise MessageRefused(position, "a public key is not canonical, or of low order") from error
    used = {cleared_key(decode(key)) for keys in arrived for key in (keys.c, keys.s)}
    is_new = len(set(sent)) == len(sent) and not used & set(sent)
    _require(is_new, position, "a public key is used twice, or is another one plus a point of small order")


def check_shares(keys: Collection[int], position: int, step: SharesStep) -> None:
    """Check step 1: one ciphertext for every other member of U1.

    Raises:
        MessageRefused: another number of ciphertexts, or of another length.
    """
    _require(len(step.shares) == len(keys) - 1, position, "it has one ciphertext per other member of U1")
    _require_bytes(step.commitment, _COMMITMENT_BYTES, position, "a commitment has 32 bytes")
    for sealed in step.shares:
        _require_bytes(sealed, _SEALED_BYTES, position, f"a ciphertext has {_SEALED_BYTES} bytes")


def masked_bytes(terms: SumTerms) -> int:
    """Return the length of a member's message of step 2."""
    return message_bytes(terms) if are_proved(terms) else Modulus(terms.modulus).packed_bytes(terms.values)


def check_counts(terms: SumTerms, position: int, octets: bytes) -> None:
    """Check step 2 of a session of counts: proofs under masks, and without masks the counts themselves.

    Raises:
        MessageRefused: the member counts itself into more than it may, or has not proved that it does not.
    """
    check_masked(terms, position, len(octets))
    try:
        if are_proved(terms):
            verify_counts(terms, position, octets)
            return
        modulus = Modulus(terms.modulus)
        values = modulus.signed(modulus.unpack(octets))
        require_choice(
            terms, list(decoded_counts([s.name for s in terms.segments], values, 1, terms.bits).values())
        )
    except ValueError as error:
        raise MessageRefused(position, str(error)) from error


def check_masked(terms: SumTerms, position: int, size: int) -> None:
    """Check step 2: exactly as many bytes as the packed vector, or the message of counts, has.

    Raises:
        MessageRefused: another length.
    """
    expected = masked_bytes(terms)
    _require(size == expected, position, f"a masked vector has {expected} bytes")


def check_confirmation(
    terms: SumTerms, position: int, step: ConfirmStep, commitments: Mapping[int, str], masked: Collection[int]
) -> None:
    """Check step 3: a signature over exactly the sets that this session has.

    Raises:
        MessageRefused: the member is not in U3, or signed something else.
    """
    _require(position in masked, position, "it is not in the sum")
    identity = public_key(terms.members[position].key)
    digests = sharing_digest(commitments), masked_digest(sorted(masked))
    is_signed = are_sets_signed(terms_hash(terms), *digests, step, identity)
    _require(is_signed, position, "the confirmation is not of the sets of this session")


def check_unmask(position: int, step: UnmaskStep, sharing: Collection[int], masked: Collection[int]) -> None:
    """Check step 4: one share per member of U2, of `b` for U3 and of `s` for the others.

    Raises:
        MessageRefused: a share is missing, of the wrong secret, or malformed.
    """
    _require(position in masked, position, "it is not in the sum")
    expected = [(peer, "b" if peer in masked else "s") for peer in sorted(sharing)]
    actual = [(share.position, share.of) for share in step.shares]
    _require(actual == expected, position, "it has one share per member of U2, of b for those in the sum")
    for share in step.shares:
        try:
            share_value(decode(share.share))
        except ValueError as error:
            raise MessageRefused(position, str(error)) from error


def keys_answer(keys: Mapping[int, KeysStep]) -> KeysAnswer:
    members = sorted(keys)
    return KeysAnswer(members=members, answers=[keys[position] for position in members])


def shares_answer(reader: int, keys: Collection[int], steps: Mapping[int, SharesStep]) -> SharesAnswer:
    """Return U2, and of each member's ciphertexts the one for `reader`."""
    members = sorted(steps)
    shares = [
        None if source == reader else steps[source].shares[_place(reader, source, keys)] for source in members
    ]
    return SharesAnswer(
        members=members, commitments=[steps[source].commitment for source in members], shares=shares
    )


def masked_answer(terms: SumTerms, masked: Mapping[int, bytes | None]) -> MaskedAnswer:
    """Return U3; `masked` are the messages by position, which only counts under masks show to all members."""
    members = sorted(masked)
    inputs = [encode(masked[position] or b"") for position in members] if are_proved(terms) else []
    return MaskedAnswer(members=members, inputs=inputs)


def confirm_answer(steps: Mapping[int, ConfirmStep]) -> ConfirmAnswer:
    members = sorted(steps)
    return ConfirmAnswer(members=members, answers=[steps[position] for position in members])


def _place(reader: int, source: int, keys: Collection[int]) -> int:
    """Return the index of a reader's ciphertext in a source's list, which leaves the source out."""
    return [position for position in sorted(keys) if position != source].index(reader)


def _require(holds: bool, position: int, reason: str) -> None:
    if not holds:
        raise MessageRefused(position, reason)


def _require_bytes(text: str, length: int, position: int, reason: str) -> None:
    try:
        octets = decode(text)
    except ValueError as error:
        raise MessageRefused(position, reason) from error
    _require(len(octets) == length, position, reason)
