"""Counts: one value per group, the member's 0 or 1, summed in a session of its own before the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.identity.documents import hash_of
from schemas.maths.bank import manifest
from schemas.messages.secure_sum import Segment, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.encoding import Quantised, largest_encoded
from schemas.secure_sum.errors import SecureSumError, SumOutOfRange

# 1.0 in units of 2^-20: a member's 1 is the largest value that it can send.
_CLIP: Final = 2**20


def count_segments(groups: Sequence[str]) -> tuple[Segment, ...]:
    """Return the segments of a session of kind `counts`: one value per group, in order."""
    return tuple(Segment(name=group, values=1, clip=_CLIP) for group in groups)


def encoded_counts(groups: Sequence[str], memberships: Collection[str], bits: int) -> Quantised:
    """Return a member's input of the counts, (groups,): 1 for each group that it belongs to. Exact.

    Raises:
        SecureSumError: it belongs to a group that is not counted.
    """
    if not set(memberships) <= set(groups):
        raise SecureSumError("a member belongs to a group that is not counted")
    return np.array([largest_encoded(bits) if group in memberships else 0 for group in groups], np.int32)


def decoded_counts(
    groups: Sequence[str], total: NDArray[np.int64], members: int, bits: int
) -> dict[str, int]:
    """Return the number of members of each group from the sum of `members` inputs.

    Raises:
        SumOutOfRange: a value is no sum of zeros and ones of that many members. Who sent it cannot be known.
    """
    # A member's 1 is encoded as the largest number.
    counts = total // largest_encoded(bits)
    if (total % largest_encoded(bits)).any() or counts.min(initial=0) < 0 or counts.max(initial=0) > members:
        raise SumOutOfRange(f"a count is no whole number from 0 to {members}: a member spoilt the counts")
    return dict(zip(groups, counts.tolist(), strict=True))


def counts_digest(counts: SumCounts) -> str:
    """Return the digest by which the terms of a sum name the counts before it; members check the openings."""
    return hash_of(counts.model_dump(mode="json", exclude={"openings"}))


def groups_of(segments: Sequence[Segment]) -> frozenset[str]:
    """Return the groups that have a segment in a sum."""
    return frozenset(segment.group for segment in segments if segment.group is not None)


def starved_groups(terms: SumTerms, counts: Mapping[str, int], masked: int, k_min: int) -> list[str]:
    """Return the groups of a sum that may have fewer than `k_min` of its `masked` members, in order.

    All counted members that are absent, before this session or since it began, may belong to one group.
    """
    counted = terms.lost + len(terms.members)
    return sorted(groups_of(terms.segments) - manifest(counts, counted, counted - masked, k_min))
