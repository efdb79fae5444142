"""Messages of the secure sum: the terms of a session, and the bodies and answers of its five steps.

Binary values are base64url without padding. Members are named by their position in the terms.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Digest, Strict, UtcTime
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import Masking

SumKind = Literal["counts", "sum"]
Position = Annotated[int, Field(ge=0, lt=128)]
Binary = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]

MOST_MEMBERS = 128

CAPABILITY = "secure-sum-3"
"""The format of sessions. An agent's profile names it, and so do terms, ready clients and the greeting.

`secure-sum-1` derived masks from the secret of two keys alone: a member that copied a key in another spelling
could cancel masks. `secure-sum-2` summed counts that nobody could check: a member that added 2 to a count had
a lone user's expert summed. Both sides refuse them."""

ANY_FORMAT = "secure-sum-"
"""How the capability of every format begins."""

Format = Annotated[str, Field(max_length=50)]
CommittedCounts = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=2**16)]


class SumMember(Strict):
    """A member of a session, and the identity key that the roster has for it."""

    client: str
    """The id of the client."""
    key: Binary
    """Its Ed25519 public key."""


class Segment(Strict):
    """Consecutive values of the summed vector with one clip, in units of 2^-20.

    A segment with a `group` is summed only if enough members have counted themselves into the group.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of the segment: a factor of the adapter, `weight` or `scores`; of an expert, `x3.A`."""
    values: Annotated[int, Field(ge=1)]
    """The number of values."""
    group: str | None = None
    """The group whose members add to the segment; null = all members."""
    clip: Annotated[int, Field(ge=1, le=2**40)]
    """The largest value that is sent, in units of 2^-20."""


class SumTerms(Strict):
    """The terms that all members of a session accept before any key exists; the server signs them.

    `weights` is the digest of the values that all members were served in common; `counts` that of the outcome
    of the round's counts, and `lost` the number of its counted members who are not in this session.
    """

    format: Format
    """The format of the session's messages and keys: `secure-sum-3`."""
    federation: str
    """The id of the federation."""
    round: Annotated[int, Field(ge=1)]
    """The number of the round."""
    session: Annotated[int, Field(ge=1)]
    """The number of the session, from 1."""
    kind: SumKind
    """The kind of values that the session sums."""
    masking: Masking = "pairwise"
    """`pairwise`, or `none`: members send their values in clear."""
    nonce: Binary
    """16 random bytes."""
    members: Annotated[list[SumMember], Field(min_length=2, max_length=MOST_MEMBERS)]
    """The members, sorted by client; their places are their positions."""
    threshold: Annotated[int, Field(ge=2)]
    """The number of shares that give a secret: floor(2 N / 3) + 1 of N members."""
    minimum: Annotated[int, Field(ge=2)]
    """The fewest members of the sum."""
    roster_version: Annotated[int, Field(ge=0)]
    """The version of the roster that has the keys of the members."""
    roster_hash: Digest
    """The hash of the entry of this version."""
    plan: Digest
    """The digest of the plan: members with another plan would send other inputs."""
    weights: Digest
    """The digest of the values that all members were served."""
    segments: Annotated[list[Segment], Field(min_length=1)]
    """The segments of the summed vector, in order."""
    bits: Literal[8, 16]
    """The bits of an encoded value."""
    modulus: Literal[16, 24, 32]
    """The bits of a masked value."""
    counts: Digest | None = None
    """The digest of the outcome of the round's counts; null without counts."""
    lost: Annotated[int, Field(ge=0)] = 0
    """The number of counted members who are not in this session."""
    choices: Annotated[int, Field(ge=1)] | None = None
    """In counts, the most groups but `reject` into which a member may count itself; null = all of them."""
    phase_seconds: Annotated[int, Field(ge=1)]
    """Seconds that a step waits for members."""
    signature: Binary
    """The coordinator's signature of all other members of the terms."""

    @model_validator(mode="after")
    def _is_consistent(self) -> SumTerms:
        clients = [member.client for member in self.members]
        names = [segment.name for segment in self.segments]
        if clients != sorted(set(clients)) or len(set(names)) != len(names):
            raise PydanticCustomError("wrong", "members are sorted by client, and no name is repeated")
        return self

    @property
    def values(self) -> int:
        """The length of the summed vector."""
        return sum(segment.values for segment in self.segments)


class KeysStep(Strict):
    """Step 0: a member's public keys for the channel and for masks, signed by its identity key."""

    c: Binary
    """The X25519 public key of the channel."""
    s: Binary
    """The X25519 public key of the masks."""
    nonce: Binary
    """Random bytes."""
    signature: Binary
    """The signature of these keys and the terms."""


class SharesStep(Strict):
    """Step 1: the SHA-256 of the self mask's seed, and shares for the other members of U1, in order."""

    commitment: Binary
    """The SHA-256 of the self mask's seed."""
    shares: list[Binary]
    """The ciphertexts for the other members of step 0, in the order of their positions."""


class ConfirmStep(Strict):
    """Step 3: a signature over the terms, U2 and U3."""

    signature: Binary
    """The signature of the terms and of the members of steps 1 and 2."""


class UnmaskShare(Strict):
    """A share of a member's self-mask seed (`b`), or of its mask key (`s`)."""

    position: Position
    """The position of the member whose secret is shared."""
    of: Literal["b", "s"]
    """`b` for members of step 2, `s` for the others."""
    share: Binary
    """The share, 33 bytes."""


class UnmaskStep(Strict):
    """Step 4: one share per member of U2: of `b` for members of U3, of `s` for the others; never both."""

    shares: list[UnmaskShare]
    """The shares, in the order of positions."""


class KeysAnswer(Strict):
    """U1 and its keys."""

    members: list[Position]
    """The members who sent keys in time."""
    answers: list[KeysStep]
    """Their messages, in the same order."""


class SharesAnswer(Strict):
    """U2, its commitments, and the ciphertexts for the reader; the reader's own place has none."""

    members: list[Position]
    """The members who sent shares in time."""
    commitments: list[Binary]
    """Their commitments, in the same order."""
    shares: list[Binary | None]
    """Their ciphertexts for the reader, in the same order; null at its own place."""


class MaskedAnswer(Strict):
    """U3: the members whose masked vectors are summed, and in counts under masks their messages."""

    members: list[Position]
    """The members whose masked vectors came in time."""
    inputs: list[CommittedCounts] = Field(default_factory=list)
    """Their commitments to counts with proofs and signature, in the same order; empty for other sums."""


class ConfirmAnswer(Strict):
    """The confirmations of the members of U3 who answered."""

    members: list[Position]
    """The members who confirmed in time."""
    answers: list[ConfirmStep]
    """Their messages, in the same order."""


class ReadyRequest(Strict):
    """A client has trained, and waits for the sum.

    `base` is the digest of the weights that it was served, `values` that of their values without the head:
    the same for all members.
    """

    base: Digest
    """The digest of the weights that the client began the round with, as in its manifest."""
    values: Digest
    """The digest of the values of these weights, dense float32 in layout order, without the head."""
    format: Format
    """The format of sessions that the client speaks: `secure-sum-3`."""


class ReadyReceipt(Strict):
    """The client is counted on for the sum of the round."""

    round: int
    """The number of the round."""
    client: str
    """The id of the client."""
    received_at: UtcTime
    """The time at which the client became ready."""


SumStep = Literal["keys", "shares", "masked", "confirm", "unmask", "opening"]
"""The phases of a session; `masking: none` has `masked` and `opening` only."""

STEPS: tuple[SumStep, ...] = ("keys", "shares", "masked", "confirm", "unmask")
"""Steps in order: a step's number in paths is its place here."""


class SumOutcome(Strict):
    """The end of a round's sum: `counted` members were summed, or the round was abandoned."""

    state: Literal["summed", "abandoned"]
    """`summed`, or `abandoned` with the reason of the round."""
    counted: list[str] | None
    """The ids of the clients whose inputs were summed; null if the round was abandoned."""
    reason: str | None
    """Why the round was abandoned; null if it was not."""


class SumStatus(Strict):
    """The status of a round's sum.

    `phase` grows with every phase of every session of the federation; the next request sends it as `seen`.
    Before the first session, `session` and what describes it are null.
    """

    round: int
    """The number of the round."""
    phase: Annotated[int, Field(ge=0)]
    """A counter of phases, to be sent back as `seen`."""
    session: int | None
    """The number of the current session, from 1."""
    kind: SumKind | None
    """The kind of values that the session sums."""
    step: SumStep | None
    """The step that is due, `opening` while the coordinator computes the sum; null between sessions."""
    deadline: UtcTime | None
    """The end of the step."""
    terms: SumTerms | None
    """The terms of the session, signed by the coordinator; null for clients that are not members of it."""
    counts: SumCounts | None = None
    """The counts that the terms name; null without them, and for clients that are not members."""
    outcome: SumOutcome | None
    """The end of the sum; null while it is in progress."""
    server_time: UtcTime
    """The coordinator's time."""


class StepReceipt(Strict):
    """A member's message of a step is stored; the same bytes get the same receipt."""

    round: int
    """The number of the round."""
    session: int
    """The number of the session."""
    step: SumStep
    """The step."""
    digest: Digest
    """The digest of the received bytes."""
    received_at: UtcTime
    """The time at which the message was stored."""
