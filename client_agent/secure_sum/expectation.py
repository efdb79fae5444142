"""A member's own knowledge of a round, and the check of a session's terms against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from schemas.messages.secure_sum import CAPABILITY, Segment, SumKind, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import Masking
from schemas.secure_sum.count_proofs import require_opened
from schemas.secure_sum.counts import counts_digest, starved_groups
from schemas.secure_sum.encoding import modulus_for
from schemas.secure_sum.errors import SecureSumError, TermsRefused
from schemas.secure_sum.terms import is_signed_by_server, terms_hash, threshold_for


@dataclass(frozen=True, slots=True)
class Expectation:
    """A member's own view of the session: its plan, its roster, its weights, and where it has taken part.

    Attributes:
        roster: the identity keys at `roster_version`, by client.
        plan: the digest of the plan by which the input was made: members with another plan may have sent
            zeros, and the sum would be this member's input.
        segments: the segments of a session of this `kind`: the same values in a session of another kind would
            be a second sum.
        groups: the groups whose members are counted before the sum.
        counts: the outcome of the counts, as the coordinator shows it.
        counted: the clients that this member confirmed as counted, sorted; None without masks.
        commitments: the commitments to the sums of their counts, by group; None without masks.
        choices: the largest number of groups, `reject` excluded, into which a member may count itself.
        spent: the kinds of sessions of this round in which this member has sent step 4: a second sum over
            other members would reveal the difference.
    """

    federation: str
    round: int
    client: str
    server_key: Ed25519PublicKey
    roster: Mapping[str, str]
    roster_version: int
    roster_hash: str
    plan: str
    weights: str
    segments: tuple[Segment, ...]
    bits: int
    minimum: int
    kind: SumKind = "sum"
    masking: Masking = "pairwise"
    least_per_group: int = 1
    groups: tuple[str, ...] = ()
    counts: SumCounts | None = None
    counted: tuple[str, ...] | None = None
    commitments: Mapping[str, str] | None = None
    choices: int | None = None
    spent: frozenset[SumKind] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class AcceptedTerms:
    """Terms that a member has checked, their digest T, and its own position."""

    terms: SumTerms
    digest: str
    position: int


def accept_terms(terms: SumTerms, expectation: Expectation) -> AcceptedTerms:
    """Check every field of a session's terms before the first key is made.

    Raises:
        TermsRefused: a field differs from the member's own plan, roster, weights or counts.
    """
    if terms.format != CAPABILITY:
        raise TermsRefused(
            f"the coordinator sums in the format {terms.format}, this agent in {CAPABILITY}; install the "
            "same version on both sides"
        )
    if not is_signed_by_server(terms, expectation.server_key):
        raise TermsRefused("the terms are not signed by the coordinator's key")
    # Compared with this member's own values: the signature alone proves only that the coordinator wrote them.
    for name, value in _own_fields(expectation).items():
        if getattr(terms, name) != value:
            raise TermsRefused(
                f"`{name}` of the terms is not that of the plan, roster or weights of this member"
            )
    _check_members(terms, expectation)
    _check_counts(terms, expectation)
    if terms.kind in expectation.spent:
        raise TermsRefused(f"this member has unmasked a session of kind {terms.kind} in this round already")
    clients = [member.client for member in terms.members]
    return AcceptedTerms(terms, terms_hash(terms), clients.index(expectation.client))


def _own_fields(expectation: Expectation) -> dict[str, object]:
    return {
        "federation": expectation.federation,
        "round": expectation.round,
        "kind": expectation.kind,
        "roster_version": expectation.roster_version,
        "roster_hash": expectation.roster_hash,
        "plan": expectation.plan,
        "weights": expectation.weights,
        "segments": list(expectation.segments),
        "bits": expectation.bits,
        "masking": expectation.masking,
        "choices": expectation.choices if expectation.kind == "counts" else None,
    }


def _check_members(terms: SumTerms, expectation: Expectation) -> None:
    for member in terms.members:
        if expectation.roster.get(member.client) != member.key:
            raise TermsRefused(f"the roster has another key for {member.client}, or no such client")
    # One person behind two members would learn the sum of fewer others.
    if len({member.key for member in terms.members}) != len(terms.members):
        raise TermsRefused("two members have the same identity key")
    if expectation.client not in {member.client for member in terms.members}:
        raise TermsRefused("this member is not among the members of the session")
    count = len(terms.members)
    if terms.threshold != threshold_for(count):
        raise TermsRefused(f"the threshold of {count} members is {threshold_for(count)}")
    # The terms may ask for more members than the plan, never for fewer.
    if terms.minimum < expectation.minimum or count < terms.minimum:
        raise TermsRefused(f"a sum has at least {expectation.minimum} members here")
    try:
        smallest = modulus_for(count, terms.bits)
    except SecureSumError as error:
        raise TermsRefused(str(error)) from error
    # In a smaller modulus the sum could wrap round, and would be wrong without an error.
    if terms.modulus < smallest.bits:
        raise TermsRefused(f"a sum of {count} members needs a modulus of {smallest.bits} bits")


def _check_counts(terms: SumTerms, expectation: Expectation) -> None:
    counts = expectation.counts
    if terms.kind == "counts":
        if terms.counts is not None or terms.lost or any(segment.group for segment in terms.segments):
            raise TermsRefused("counts come first: their terms refer to no counts and have no groups")
        return
    if terms.counts != (None if counts is None else counts_digest(counts)):
        raise TermsRefused("the terms refer to other counts than this member has seen")
    if counts is not None:
        _check_outcome(terms, counts, expectation)
    elif expectation.groups:
        raise TermsRefused("the members of groups are counted before the sum, and were not")
    elif terms.lost or any(segment.group for segment in terms.segments):
        raise TermsRefused("segments of groups are summed only after counts")


def _check_outcome(terms: SumTerms, counts: SumCounts, expectation: Expectation) -> None:
    """Check the members behind the counts, and under masks the counts against their commitments.

    A member that was not counted would hide an absent one, and a group could consist of a single member.
    """
    if set(counts.groups) != set(expectation.groups):
        raise TermsRefused("the counts are of other groups than those of this member's strategy")
    if expectation.counted is not None and tuple(counts.counted) != expectation.counted:
        raise TermsRefused("other clients were counted than this member has confirmed")
    if len(set(counts.counted)) != counts.members or max(counts.groups.values()) > counts.members:
        raise TermsRefused("the counts have more members than were counted")
    if terms.masking == "pairwise":
        _check_opening(counts, expectation.commitments or {})
    if not {member.client for member in terms.members} <= set(counts.counted):
        raise TermsRefused("a member of the sum was not counted")
    # A number that is too small would let a group shrink to one member unnoticed.
    if terms.lost != counts.members - len(terms.members):
        raise TermsRefused("`lost` is not the number of counted members who are absent from this session")


def _check_opening(counts: SumCounts, commitments: Mapping[str, str]) -> None:
    try:
        require_opened(commitments, counts.groups, counts.openings or {})
    except ValueError as error:
        raise TermsRefused(str(error)) from error


def require_groups(accepted: AcceptedTerms, masked: int, expectation: Expectation) -> None:
    """Check that every group has enough members even if all absent members belonged to it.

    `masked` is the number of members of U3.

    Raises:
        TermsRefused: counts[k] - absent < k_min for the group of a segment.
    """
    groups = {} if expectation.counts is None else expectation.counts.groups
    starved = starved_groups(accepted.terms, groups, masked, expectation.least_per_group)
    if starved:
        raise TermsRefused(
            f"group {starved[0]} may have fewer than {expectation.least_per_group} members in this sum"
        )
