"""Committed counts: a member's 0 or 1 for each group, hidden, with a proof that it is nothing else.

A count b is sent as the Pedersen commitment C = r B + b H. The blinding r is the mask of the secure sum in
the group of scalars: masks of pairs cancel, so that unmasking gives the sum of all blindings, and with it the
sum of all counts. Nobody learns more than these sums. A message proves that each count is 0 or 1, and that
those of all groups but `reject` add up to at most `choices` of the terms, by proofs of "one of these values"
(Cramer, Damgård and Schoenmakers 1994) under one challenge (Fiat and Shamir). The challenge is the hash of
the terms' digest, the member's position, all commitments and all first messages; groups and their order,
members, round and session are in the terms. The member's identity key signs the whole.

    K commitments | challenge | K x (c_0, z_0, z_1) | c_0 .. c_(m-1), z_0 .. z_m | signature

The part of m = `choices` is absent if the groups are not more than m. All parts but the signature (64) are
32 bytes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.identity.documents import Purpose, is_signed, sign
from schemas.identity.keys import decode, encode, public_key
from schemas.maths.bank import REJECT
from schemas.messages.secure_sum import SumTerms
from schemas.secure_sum.curve import (
    IDENTITY,
    POINT_BYTES,
    VALUE_BASE,
    add,
    added,
    base_times,
    commit,
    decode_scalar,
    encode_scalar,
    subtract,
    times,
    wide_scalar,
)
from schemas.secure_sum.errors import SecureSumError, SumOutOfRange
from schemas.secure_sum.terms import terms_hash

_PURPOSE: Purpose = "tessera-secure-sum-counts-v3"
_LABEL = b"tessera-secure-sum-count-proof-v3"
_SIGNATURE_BYTES = 64
_POSITION_BYTES = 2
_WIDE_BYTES = 64


def are_proved(terms: SumTerms) -> bool:
    """Whether the members of a session send commitments and proofs; without masks they send plain counts."""
    return terms.kind == "counts" and terms.masking == "pairwise"


def message_bytes(terms: SumTerms) -> int:
    """Return the length of a member's message of counts."""
    scalars = sum(2 * most + 1 for most in _limits(terms))
    return POINT_BYTES * (len(terms.segments) + 1 + scalars) + _SIGNATURE_BYTES


def require_choice(terms: SumTerms, counts: Sequence[int]) -> None:
    """Check a member's counts in clear, in the order of the terms' groups.

    Raises:
        SecureSumError: a count is neither 0 nor 1, or they are more than a member may choose.
    """
    if len(counts) != len(terms.segments) or any(count not in (0, 1) for count in counts):
        raise SecureSumError("a member's count of a group is 0 or 1")
    chosen = sum(count for place, count in enumerate(counts) if terms.segments[place].name != REJECT)
    if terms.choices is not None and chosen > terms.choices:
        raise SecureSumError(f"a member counts itself into {terms.choices} groups at most, not {chosen}")


def proved_counts(
    terms: SumTerms,
    position: int,
    counts: Sequence[int],
    blindings: Sequence[int],
    identity: Ed25519PrivateKey,
) -> bytes:
    """Return a member's message: commitments to its counts under the given blindings, proofs, signature.

    Raises:
        SecureSumError: as `require_choice`.
    """
    require_choice(terms, counts)
    commitments = [commit(count, blinding) for count, blinding in zip(counts, blindings, strict=True)]
    openings = list(zip(counts, blindings, strict=True))
    if _has_choice(terms):
        chosen = [openings[place] for place in _chosen_places(terms)]
        openings.append((sum(count for count, _ in chosen), sum(blinding for _, blinding in chosen)))
    statements = _statements(terms, commitments)
    begun = [_begin(statement, *opening) for statement, opening in zip(statements, openings, strict=True)]
    challenge = _challenge(terms, position, commitments, (a for proof in begun for a in proof.first))
    answers = b"".join(proof.answered(challenge) for proof in begun)
    message = b"".join(commitments) + encode_scalar(challenge) + answers
    return message + decode(sign(_PURPOSE, _signed(terms, position, message), identity))


def verify_counts(terms: SumTerms, position: int, message: bytes) -> None:
    """Verify a member's message: signature, and proofs that it counts as it may.

    Raises:
        SecureSumError: its length, its signature or a proof is wrong.
    """
    # The length is exact, so that parts need no lengths of their own.
    if len(message) != message_bytes(terms):
        raise SecureSumError(f"counts have {message_bytes(terms)} bytes, not {len(message)}")
    body, signature = message[:-_SIGNATURE_BYTES], message[-_SIGNATURE_BYTES:]
    if not _is_signed(terms, position, body, signature, public_key(terms.members[position].key)):
        raise SecureSumError("the counts are not signed by the member's key")
    parts = _parts(body)
    commitments = [next(parts) for _ in terms.segments]
    challenge = decode_scalar(next(parts))
    first: list[bytes] = []
    for statement in _statements(terms, commitments):
        challenges = [decode_scalar(next(parts)) for _ in range(statement.most)]
        answers = [decode_scalar(next(parts)) for _ in range(statement.most + 1)]
        # A prover is free in all challenges but one, that of the true value.
        challenges.append(challenge - sum(challenges))
        for point, part, answer in zip(statement.points(), challenges, answers, strict=True):
            first.append(subtract(base_times(answer), times(part, point)))
    if _challenge(terms, position, commitments, first) != challenge:
        raise SecureSumError("the proof that each count is 0 or 1, and their sum allowed, is wrong")


def summed_commitments(terms: SumTerms, messages: Iterable[bytes]) -> list[bytes]:
    """Return the commitments to the sums, in the order of the terms' groups, from verified messages."""
    sums = [IDENTITY] * len(terms.segments)
    for message in messages:
        sums = [add(total, point) for total, point in zip(sums, _parts(message), strict=False)]
    return sums


def opened_counts(sums: Sequence[bytes], blindings: Sequence[int], members: int) -> list[int]:
    """Return the sum of the counts of each group, from the commitments to the sums and their blindings.

    Raises:
        SumOutOfRange: a commitment is none to 0 .. `members` under its blinding: a member's blinding is not
            its mask. It cannot be known whose.
    """
    # The sums are small, so that their logarithms are found in a table.
    table = {times(count, VALUE_BASE): count for count in range(members + 1)}
    counts = [
        table.get(subtract(point, base_times(blinding)))
        for point, blinding in zip(sums, blindings, strict=True)
    ]
    if any(count is None for count in counts):
        raise SumOutOfRange("the blinding of a count is not its mask: a member spoilt the counts")
    return [count for count in counts if count is not None]


def require_opened(sums: Mapping[str, str], counts: Mapping[str, int], openings: Mapping[str, str]) -> None:
    """Check the counts of all groups against the commitments to the sums; base64url by group.

    Raises:
        SecureSumError: a count is not the one that the members have committed to.
    """
    if not sums.keys() == counts.keys() == openings.keys():
        raise SecureSumError("the counts are of other groups than the members have committed to")
    for group, point in sums.items():
        if commit(counts[group], decode_scalar(decode(openings[group]))) != decode(point):
            raise SecureSumError(f"the count of {group} is not the sum that the members have committed to")


@dataclass(frozen=True, slots=True)
class _Statement:
    """A commitment to a value from 0 to `most`."""

    commitment: bytes
    most: int

    def points(self) -> Iterator[bytes]:
        """Yield C - v H for each value v: the one of the committed value is a multiple of B."""
        point = self.commitment
        yield point
        for _ in range(self.most):
            point = subtract(point, VALUE_BASE)
            yield point


@dataclass(frozen=True, slots=True)
class _Begun:
    """A proof before its challenge: first messages, and the simulated branches by value."""

    value: int
    blinding: int
    nonce: int
    first: tuple[bytes, ...]
    simulated: Mapping[int, tuple[int, int]]

    def answered(self, challenge: int) -> bytes:
        """Return the challenges of all branches but the last, then the answers of all."""
        real_challenge = challenge - sum(part for part, _ in self.simulated.values())
        answer = self.nonce + real_challenge * self.blinding
        branches = {**self.simulated, self.value: (real_challenge, answer)}
        parts = [branches[value] for value in range(len(self.first))]
        return b"".join(
            [
                *(encode_scalar(part) for part, _ in parts[:-1]),
                *(encode_scalar(answer) for _, answer in parts),
            ]
        )


def _begin(statement: _Statement, value: int, blinding: int) -> _Begun:
    nonce, first, simulated = _random_scalar(), list[bytes](), dict[int, tuple[int, int]]()
    for branch, point in enumerate(statement.points()):
        if branch == value:
            first.append(base_times(nonce))
            continue
        # Simulated: with the challenge known first, the first message follows from any answer.
        part, answer = _random_scalar(), _random_scalar()
        simulated[branch] = part, answer
        first.append(subtract(base_times(answer), times(part, point)))
    return _Begun(value, blinding, nonce, tuple(first), simulated)


def _statements(terms: SumTerms, commitments: Sequence[bytes]) -> list[_Statement]:
    points = list(commitments)
    if _has_choice(terms):
        points.append(added(commitments[place] for place in _chosen_places(terms)))
    return [_Statement(point, most) for point, most in zip(points, _limits(terms), strict=True)]


def _limits(terms: SumTerms) -> list[int]:
    """Return the largest value of each proved commitment: 1 for groups, then what a member may choose."""
    choices = [terms.choices] if _has_choice(terms) and terms.choices is not None else []
    return [1] * len(terms.segments) + choices


def _has_choice(terms: SumTerms) -> bool:
    return terms.choices is not None and len(_chosen_places(terms)) > terms.choices


def _chosen_places(terms: SumTerms) -> list[int]:
    return [place for place, segment in enumerate(terms.segments) if segment.name != REJECT]


def _challenge(terms: SumTerms, position: int, commitments: Iterable[bytes], first: Iterable[bytes]) -> int:
    # All parts have fixed lengths, and the terms say how many there are.
    digest = bytes.fromhex(terms_hash(terms).removeprefix("sha256:"))
    hashed = hashlib.sha512(_LABEL + digest + position.to_bytes(_POSITION_BYTES, "big"))
    for point in (*commitments, *first):
        hashed.update(point)
    return wide_scalar(hashed.digest())


def _parts(message: bytes) -> Iterator[bytes]:
    """Yield the points and scalars of a message: its commitments first."""
    return (message[begin : begin + POINT_BYTES] for begin in range(0, len(message), POINT_BYTES))


def _random_scalar() -> int:
    return wide_scalar(secrets.token_bytes(_WIDE_BYTES))


def _signed(terms: SumTerms, position: int, body: bytes) -> dict[str, object]:
    return {"terms": terms_hash(terms), "position": position, "counts": hashlib.sha256(body).hexdigest()}


def _is_signed(
    terms: SumTerms, position: int, body: bytes, signature: bytes, identity: Ed25519PublicKey
) -> bool:
    return is_signed(_PURPOSE, _signed(terms, position, body), encode(signature), identity)
