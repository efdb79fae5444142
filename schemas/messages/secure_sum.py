"""Messages of the secure sum: the terms of a session, and the bodies and answers of its five steps.

Binary values are base64url without padding. Members are named by their position in the terms.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Digest, Strict, UtcTime
from schemas.messages.scores import Score
from schemas.messages.sum_plan import Masking

SumKind = Literal["counts", "sum"]
Position = Annotated[int, Field(ge=0, lt=128)]
Binary = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]

MOST_MEMBERS = 128

CAPABILITY = "secure-sum-1"
"""What an agent's profile names if it can take part in sums: others would send their updates."""


class SumMember(Strict):
    """A member of a session, and the identity key that the roster has for it."""

    client: str
    key: Binary


class Segment(Strict):
    """Consecutive values of the summed vector with one clip, in units of 2^-20.

    A segment with a `group` is summed only if enough members have counted themselves into the group.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    values: Annotated[int, Field(ge=1)]
    group: str | None = None
    clip: Annotated[int, Field(ge=1, le=2**40)]


class SumTerms(Strict):
    """What all members of a session agree on before any key exists; the server signs it.

    `weights` is the digest of the values that all members were served in common; `counts` that of the outcome
    of the round's counts, and `lost` the number of its counted members who are not in this session.
    """

    federation: str
    round: Annotated[int, Field(ge=1)]
    session: Annotated[int, Field(ge=1)]
    kind: SumKind
    masking: Masking = "pairwise"
    nonce: Binary
    members: Annotated[list[SumMember], Field(min_length=2, max_length=MOST_MEMBERS)]
    threshold: Annotated[int, Field(ge=2)]
    minimum: Annotated[int, Field(ge=2)]
    roster_version: Annotated[int, Field(ge=0)]
    roster_hash: Digest
    weights: Digest
    segments: Annotated[list[Segment], Field(min_length=1)]
    bits: Literal[8, 16]
    modulus: Literal[16, 24, 32]
    counts: Digest | None = None
    lost: Annotated[int, Field(ge=0)] = 0
    phase_seconds: Annotated[int, Field(ge=1)]
    signature: Binary

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
    s: Binary
    nonce: Binary
    signature: Binary


class SharesStep(Strict):
    """Step 1: the SHA-256 of the self mask's seed, and shares for the other members of U1, in order."""

    commitment: Binary
    shares: list[Binary]


class ConfirmStep(Strict):
    """Step 3: a signature over the terms, U2 and U3."""

    signature: Binary


class UnmaskShare(Strict):
    """A share of a member's self-mask seed (`b`), or of its mask key (`s`)."""

    position: Position
    of: Literal["b", "s"]
    share: Binary


class UnmaskStep(Strict):
    """Step 4: one share per member of U2: of `b` for members of U3, of `s` for the others; never both."""

    shares: list[UnmaskShare]


class KeysAnswer(Strict):
    """U1 and its keys."""

    members: list[Position]
    answers: list[KeysStep]


class SharesAnswer(Strict):
    """U2, its commitments, and the ciphertexts for the reader; the reader's own place has none."""

    members: list[Position]
    commitments: list[Binary]
    shares: list[Binary | None]


class MaskedAnswer(Strict):
    """U3: the members whose masked vectors are summed."""

    members: list[Position]


class ConfirmAnswer(Strict):
    """The confirmations of the members of U3 who answered."""

    members: list[Position]
    answers: list[ConfirmStep]


class ReadyRequest(Strict):
    """A client has trained, and waits for the sum.

    `base` is the digest of the weights that it was served, `values` that of their values without the head:
    the same for all members.
    """

    base: Digest
    """The digest of the weights that the client began the round with, as in its manifest."""
    values: Digest
    """The digest of the values of these weights, dense float32 in layout order, without the head."""


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
    """How the sum of a round ended: `counted` members were summed, or the round was abandoned."""

    state: Literal["summed", "abandoned"]
    """`summed`, or `abandoned` with the reason of the round."""
    counted: list[str] | None
    """The ids of the clients whose inputs were summed; null if the round was abandoned."""
    reason: str | None
    """Why the round was abandoned; null if it was not."""


class SumStatus(Strict):
    """Where the sum of a round stands.

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
    """What the session sums."""
    step: SumStep | None
    """The step that is due, `opening` while the coordinator computes the sum; null between sessions."""
    deadline: UtcTime | None
    """The end of the step."""
    terms: SumTerms | None
    """The terms of the session, signed by the coordinator; null for clients that are not members of it."""
    outcome: SumOutcome | None
    """How the sum ended; null while it goes on."""
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


SumState = Literal["keys", "shares", "masked", "confirm", "unmask", "opening", "done", "aborted"]
"""The states of a session: its open phase, `opening`, then `done` or `aborted`."""


class SumEvent(Strict):
    """A session of a sum was opened, or has ended; `members` are those of the sum once it is done."""

    round: int
    """The number of the round."""
    session: int
    """The number of the session."""
    kind: SumKind
    """What the session sums."""
    state: SumState
    """The first phase, `done` or `aborted`."""
    members: int
    """The number of members; of those in the sum, if it is done."""
    reason: str | None
    """Why the session was aborted; null if it was not."""


class SumSessionView(Strict):
    """A session of a round's sum, for people."""

    number: int
    """The number of the session, from 1."""
    kind: SumKind
    """What the session sums."""
    state: SumState
    """The open phase, `opening`, `done` or `aborted`."""
    members: int
    """The number of members."""
    answered: dict[str, int]
    """The number of members who answered each phase, by its name."""
    seconds: float
    """The duration of the session so far."""
    reason: str | None
    """Why the session was aborted; null if it was not."""


class SumView(Strict):
    """The secure sum of a round: its sessions, and the number of members in the sum, null before it.

    For a client, `losses` are present only if they are means over three other members, in three decimals.
    """

    sessions: list[SumSessionView]
    """The sessions in order."""
    counted: int | None
    """The number of members whose inputs are in the sum."""
    losses: dict[str, Score] | None = None
    """Mean losses of the members, of the model as `served` and as `trained`; null before the round is
    published, and if scores are not summed.
    """
