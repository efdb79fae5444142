"""Messages of a round: the client's instructions, the signed manifest, scores, and the views."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schemas.messages.base import Digest, Lenient, Strict, UtcTime
from schemas.messages.enrolment import Traffic
from schemas.messages.federations import (
    AdapterPlan,
    AlignmentPlan,
    ScoresPlan,
    SignaturePlan,
    StrategyPlan,
    TrainingPlan,
)
from schemas.messages.progress import ProgressView
from schemas.messages.recipes import WirePlan
from schemas.messages.scores import Scores, ScoreSummary
from schemas.messages.sum_views import SumView

RoundState = Literal["open", "collecting", "summing", "closing", "aggregating", "published", "abandoned"]
ParticipationState = Literal["joined", "ready", "arrived", "late", "dropped", "rejected", "revoked"]
"""`ready`: trained, and waiting for the sum; `dropped`: ready, and not in the sum that was counted."""


NOT_DRAWN_FIELD = "Tessera-Not-Drawn"
"""The header field of a response without a round for the client: the round that others were drawn for."""


class WeightsReference(Strict):
    """The digest and size of the weights served to a client."""

    digest: Digest
    """The digest of the encoded bytes."""
    bytes: int
    """The size of the encoded bytes."""


class RoundBrief(Strict):
    """A client's instructions for the current round; `weights.digest` is its base for the round.

    `total_rounds` is the plan's number of rounds, over which the learning-rate schedule runs.
    """

    round: int
    """The number of the round, from 1."""
    total_rounds: int
    """The plan's number of rounds."""
    state: Literal["open", "collecting"]
    """`open` until enough clients have joined, then `collecting`."""
    deadline: UtcTime | None
    """The end of the round; null until collecting begins."""
    strategy: StrategyPlan
    """The plan's strategy."""
    adapter: AdapterPlan
    """The plan's adapter."""
    training: TrainingPlan
    """The plan's training."""
    signature: SignaturePlan
    """The plan's sketches."""
    alignment: AlignmentPlan | None
    """The plan's alignment."""
    wire: WirePlan
    """The plan's encoding."""
    scores: ScoresPlan
    """The plan's scores."""
    weights: WeightsReference
    """The weights that this client begins the round with."""
    server_time: UtcTime
    """The coordinator's time."""


SignedDocument = dict[str, JsonValue]
"""A signed document; readers verify the signature before they parse members."""


class Previous(Lenient):
    """The preceding manifest of a client."""

    round: int
    hash: Digest


class RoundManifest(Lenient):
    """The coordinator's signed commitment to a joined client: one manifest per round, linked to the previous.

    `plan` is the digest of the response of `GET .../plan`; `roster_version` is 0 before there is a roster; a
    null `deadline` means that collecting had not begun. `signature` covers all other members.
    """

    federation: str
    client: str
    round: int
    weights: Digest
    plan: Digest
    roster_version: int
    roster_hash: Digest | None
    deadline: UtcTime | None
    issued_at: UtcTime
    previous: Previous | None
    signature: str


class CodedWeights(Lenient):
    """The coordinator's signature for weights that are served in a recipe.

    `weights` is the digest of the stored bytes, as in the round's manifest; `digest` is that of the body
    sent.
    """

    federation: str
    client: str
    round: int
    weights: Digest
    digest: Digest
    signature: str


class FinishedBrief(Strict):
    """The federation is finished; `weights` are this client's final ones, null if it never participated.

    `manifest` is a RoundManifest for the round after the last.
    """

    state: Literal["finished"]
    """Always `finished`."""
    round: int
    """The number under which the final weights are requested, after that of the last published round."""
    weights: WeightsReference | None
    """The client's final weights."""
    manifest: SignedDocument | None
    """The signed manifest of the final weights."""


class Joined(Strict):
    """The response to a join; `manifest` is a RoundManifest."""

    weights: WeightsReference
    """The weights that this client begins the round with."""
    manifest: SignedDocument
    """The signed manifest of the round."""


class RoundCounts(Strict):
    """The number of clients of a round, by state."""

    joined: int
    """All clients that joined."""
    arrived: int
    """Clients whose update is counted, and those that are ready for the sum."""
    late: int
    """Clients whose update came after the deadline."""
    dropped: int = 0
    """Clients that were ready for the sum, and are not in the one that was counted."""
    rejected: int
    """Clients whose update was rejected."""


class ParticipationView(Strict):
    """One client's participation in one round; `epsilon` is the privacy budget spent on its sketches so far.

    `examples_capped`: the client reported more examples than `limits.max_examples`, and is weighted by the
    limit.
    """

    client_id: str
    """The id of the client."""
    name: str
    """The name of the client."""
    state: ParticipationState
    """The state of the participation."""
    joined_at: UtcTime
    """The time of the join."""
    received_at: UtcTime | None
    """The time at which the update was stored, or the client became ready for the sum."""
    bytes: Traffic
    """The client's encoded bytes in this round."""
    norm: float | None
    """The L2 norm of the update."""
    epsilon: float | None = None
    """The privacy budget spent on the client's sketches so far."""
    training_epsilon: float | None = None
    """The privacy budget spent on the client's training so far; null unless training is private."""
    examples_capped: bool = False
    """Whether the client reported more examples than `limits.max_examples`."""
    rank: int | None = None
    """The rank of the update's `A` and `B`; null without an update, or without `A` and `B`."""
    staleness: int | None
    """Rounds since the client's last counted update; null without one."""
    scores: Scores | None
    """The scores that the client sent."""
    reject_reason: str | None
    """Why the update was rejected."""
    progress: ProgressView | None = None
    """The progress of the client's training; null before its first report, and after its update or the
    round's end."""


Advice = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A sentence for people."""


class RoundSummary(Strict):
    """A round in a listing.

    For a client, `bytes` are its own, and `scores` are present once the round is published, at least three
    other clients sent them, and all that delivered did or the time for scores is over.
    """

    round: int
    """The number of the round, from 1."""
    state: RoundState
    """The state of the round."""
    reason: str | None
    """Why the round was abandoned; null if it was not."""
    deadline: UtcTime | None
    """The end of the round; null until collecting begins."""
    opened_at: UtcTime
    """The time at which the round opened."""
    published_at: UtcTime | None
    """The time at which its weights were published."""
    counts: RoundCounts
    """Clients by the state of their participation."""
    seconds: dict[str, float]
    """Durations of the round's phases, by name."""
    bytes: Traffic
    """Encoded bytes of the round."""
    scores: ScoreSummary | None
    """Mean and worst scores over clients."""
    advice: Advice | None = None
    """What has to be done before the round can begin; null if it needs nothing but time."""


class SampleView(Strict):
    """The clients that were drawn for a round."""

    places: int | None
    """The number of clients that the plan takes; null once the round accepts no more."""
    drawn: list[str]
    """The names of the drawn clients, of which some may not have joined yet; for a client, its own."""


class RoundView(RoundSummary):
    """A round with its clients; `claims` are the privacy claims that follow from plan and counts."""

    clients: list[ParticipationView]
    """The participations of the round; for a client, its own."""
    claims: list[str]
    """Privacy claims that follow from the plan and from counts."""
    secure_sum: SumView | None = None
    """The sessions of the round's sum; null if the plan has no secure sum."""
    sample: SampleView | None = None
    """The clients that were drawn; null if the plan does not sample them."""


class RoundPage(Strict):
    """A page of rounds, newest first; `next` is the cursor of the next page, null on the last."""

    items: list[RoundSummary]
    """The rounds."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""


HeldFor = Literal["large", "opposed", "copies", "capped", "few"]


class RelevanceView(Strict):
    """The relevance matrix of a round: row i of `relevance` sums to 1, `entropy` is in nats.

    `rows` names the rows, `clients` the columns. A client is shown its own row only, rounded to two decimals,
    without `similarity`, `agreement` and `changes`, which would reveal other clients' updates. If a guard
    limits the mixtures, `served` is the share of each client that was served, `agreement` the cosine between
    the updates since the start (null = not compared), and `held` lists why a client counts for less than its
    relevance: its update is longer than the receiver's (`large`), points away from it (`opposed`), nearly
    equals others' (`copies`), exceeds the maximum weight of a client or organisation (`capped`), or the
    mixture had fewer members than `privacy.min_voices` (`few`). Otherwise these are null.
    """

    round: int
    """The number of the round."""
    clients: list[str]
    """The clients of the columns."""
    rows: list[str]
    """The clients of the rows."""
    relevance: list[list[float]]
    """The weight of each column's client for each row's client."""
    similarity: list[list[float | None]] | None
    """The similarities of sketches; null = not compared."""
    entropy: list[float]
    """The entropy of each row of `relevance`, in nats."""
    served: list[list[float]] | None
    """The share of each client in what was served."""
    agreement: list[list[float | None]] | None
    """The cosines between updates: all that was learnt since the start."""
    changes: list[list[float | None]] | None = None
    """The cosines of what two clients change in their rounds, on which relevance rests where they are known;
    null where changes are not compared.
    """
    held: list[list[list[HeldFor]]] | None
    """Why a client counts for less than its relevance."""
