"""Open a sum: rebuild the secrets of the masks that remain in it, remove these masks, decode. Pure.

Masks of pairs within U3 cancel. What remains are the self masks of U3, and the pair masks between U3 and the
members who shared but did not send a masked vector.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from schemas.identity.keys import decode
from schemas.messages.secure_sum import KeysStep, SumTerms, UnmaskStep
from schemas.secure_sum.agreement import AdvertisedKeys, SecretKey, agreed_key, self_mask_key
from schemas.secure_sum.count_proofs import opened_counts, summed_commitments
from schemas.secure_sum.curve import ORDER
from schemas.secure_sum.encoding import Modulus, largest_encoded, require_in_range
from schemas.secure_sum.errors import SecureSumError, SharesInconsistent
from schemas.secure_sum.masks import MaskKey, Masks, Words, blindings
from schemas.secure_sum.shamir import combine, lagrange_weights
from schemas.secure_sum.statements import commitment_to
from schemas.secure_sum.terms import terms_hash

_MOST_SUBSETS = 64
_OCTET = np.uint64(8)
_EVEN = np.uint64(0x00FF00FF00FF00FF)


@dataclass(frozen=True, slots=True)
class OpenedKeys:
    """The masks that remain in the sum, and the members whose shares contradicted a working set."""

    masks: tuple[MaskKey, ...]
    blamed: frozenset[int]


def opened_keys(
    terms: SumTerms,
    keys: Mapping[int, KeysStep],
    commitments: Mapping[int, str],
    masked: frozenset[int],
    steps: Mapping[int, UnmaskStep],
) -> OpenedKeys:
    """Rebuild b of every member of U3 and s of every other member of U2, each checked.

    Raises:
        SharesInconsistent: none of the first 64 sets of t shares gives a secret with the public key or
            commitment that its owner sent.
    """
    digest = terms_hash(terms)
    shares = _shares_by_owner(steps)
    advertised = {position: AdvertisedKeys.of(position, step) for position, step in keys.items()}
    rebuild = _Rebuild(terms.threshold)
    masks: list[MaskKey] = []
    for owner in sorted(commitments):
        if owner in masked:
            seed = rebuild(shares[owner], _seed_check(commitments[owner]), owner)
            masks.append(MaskKey(self_mask_key(seed, digest), is_subtracted=True))
            continue
        secret = SecretKey(rebuild(shares[owner], _key_check(advertised[owner].mask), owner))
        for peer in sorted(masked):
            key = agreed_key(secret, "mask", digest, advertised[owner], advertised[peer])
            # The peer subtracted this mask if its position is the higher one: undo that.
            masks.append(MaskKey(key, is_subtracted=peer < owner))
    return OpenedKeys(tuple(masks), frozenset(rebuild.blamed))


def unmasked_sum(
    terms: SumTerms, masks: OpenedKeys, members: int, blocks: Iterable[Iterable[bytes | memoryview]]
) -> Iterator[NDArray[np.int64]]:
    """Yield the sum, block by block: of every block all members' packed words, from the first value on.

    Memory is that of one block, whatever the number of members and values.

    Raises:
        SumOutOfRange: a coordinate exceeds what `members` members can send.
    """
    modulus = Modulus(terms.modulus)
    remaining = Masks(masks.masks, modulus.word)
    for vectors in blocks:
        total = _added(vectors, modulus)
        remaining.add_to(total)
        values = modulus.signed(total)
        require_in_range(values, members, terms.bits)
        yield values


def unmasked_counts(
    terms: SumTerms, masks: OpenedKeys, messages: Collection[bytes]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the sum of proved counts, encoded as that of inputs in clear, and the sums of their blindings.

    Raises:
        SumOutOfRange: a member's blinding is not its mask.
    """
    # The masks that remain are those to be added to a sum: their negative is what the members have added.
    opened = [-scalar % ORDER for scalar in blindings(masks.masks, terms.values)]
    counts = opened_counts(summed_commitments(terms, messages), opened, len(messages))
    return np.array(counts, np.int64) * largest_encoded(terms.bits), opened


def plain_sum(
    terms: SumTerms, members: int, blocks: Iterable[Iterable[bytes | memoryview]]
) -> Iterator[NDArray[np.int64]]:
    """Yield the sum of vectors that were sent without masks: `masking: none`, the oracle of `pairwise`."""
    return unmasked_sum(terms, OpenedKeys((), frozenset()), members, blocks)


def _added(vectors: Iterable[bytes | memoryview], modulus: Modulus) -> Words:
    """Add packed vectors octet by octet; carries are resolved once, at the end."""
    # 128 octets of 255 fit in 16 bits. So eight bytes of a vector are added at once: the four at even
    # places to one word, and the four at odd places to another.
    even_octets = odd_octets = scratch = np.zeros(0, np.uint64)
    length = 0
    for vector in vectors:
        words = _whole_words(vector)
        if not length:
            length = len(vector)
            even_octets, odd_octets, scratch = (np.zeros(len(words), np.uint64) for _ in range(3))
        even_octets += np.bitwise_and(words, _EVEN, out=scratch)
        np.right_shift(words, _OCTET, out=scratch)
        odd_octets += np.bitwise_and(scratch, _EVEN, out=scratch)
    octets = np.stack([even_octets.view("<u2"), odd_octets.view("<u2")], axis=1).reshape(-1)[:length]
    columns = octets.reshape(-1, modulus.bits // 8)
    total = np.zeros(len(columns), modulus.word)
    for place in range(columns.shape[1]):
        total += columns[:, place].astype(modulus.word) << (8 * place)
    return total


def _whole_words(octets: bytes | memoryview) -> NDArray[np.uint64]:
    """Return octets as little-endian words of 64 bits; zeros fill the last one."""
    missing = -len(octets) % 8
    return np.frombuffer(bytes(octets) + bytes(missing) if missing else octets, "<u8")


def _shares_by_owner(steps: Mapping[int, UnmaskStep]) -> dict[int, dict[int, bytes]]:
    shares: dict[int, dict[int, bytes]] = {}
    for holder, step in steps.items():
        for share in step.shares:
            shares.setdefault(share.position, {})[holder] = decode(share.share)
    return shares


def _seed_check(commitment: str) -> Callable[[bytes], bool]:
    return lambda seed: commitment_to(seed) == commitment


def _key_check(public: bytes) -> Callable[[bytes], bool]:
    # The octets as sent: a private key has one canonical public key, so another spelling matches no key.
    return lambda raw: SecretKey(raw).public == public


class _Rebuild:
    """Rebuilds secrets; Lagrange weights are computed once per set of holders."""

    def __init__(self, threshold: int) -> None:
        self.blamed: set[int] = set()
        self._threshold = threshold
        self._weights: dict[tuple[int, ...], dict[int, int]] = {}

    def __call__(self, shares: Mapping[int, bytes], is_right: Callable[[bytes], bool], owner: int) -> bytes:
        trusted = sorted(shares, key=lambda holder: (holder in self.blamed, holder))
        # The bound limits the work that lying members can cause.
        for holders in islice(_subsets(trusted, self._threshold), _MOST_SUBSETS):
            secret = self._combined(shares, holders)
            if secret is not None and is_right(secret):
                self._blame(shares, holders, secret, is_right)
                return secret
        raise SharesInconsistent(f"the shares of member {owner} give no secret that it committed to")

    def _combined(self, shares: Mapping[int, bytes], holders: tuple[int, ...]) -> bytes | None:
        if holders not in self._weights:
            self._weights[holders] = lagrange_weights(holders)
        try:
            return combine({holder: shares[holder] for holder in holders}, self._weights[holders])
        except SecureSumError:
            return None

    def _blame(
        self,
        shares: Mapping[int, bytes],
        working: tuple[int, ...],
        secret: bytes,
        is_right: Callable[[bytes], bool],
    ) -> None:
        """Record the holders whose share, in place of one of the working set, gives another secret."""
        # The first set gave the secret, so no holder is suspected.
        if not self._was_difficult(shares, working):
            return
        for holder in shares.keys() - set(working):
            other_set = tuple(sorted((*working[1:], holder)))
            other_secret = self._combined(shares, other_set)
            if other_secret is None or not is_right(other_secret) or other_secret != secret:
                self.blamed.add(holder)

    def _was_difficult(self, shares: Mapping[int, bytes], working: tuple[int, ...]) -> bool:
        trusted = sorted(shares, key=lambda holder: (holder in self.blamed, holder))
        return working != tuple(sorted(trusted[: self._threshold]))


def _subsets(holders: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of holders: those that leave out one of the first t + 1 holders, then all others."""
    if len(holders) < size:
        return
    yielded: set[tuple[int, ...]] = set()
    extended = holders[: size + 1]
    for dropped in reversed(extended if len(holders) > size else []):
        subset = tuple(sorted(holder for holder in extended if holder != dropped))
        yielded.add(subset)
        yield subset
    for combination in combinations(holders, size):
        subset = tuple(sorted(combination))
        if subset not in yielded:
            yield subset
