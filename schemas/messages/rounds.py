"""What clients are told to do in a round, and how a round is shown to people."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schemas.messages.base import Digest, Lenient, Strict, UtcTime
from schemas.messages.enrolment import Traffic
from schemas.messages.federations import AdapterPlan, AlignmentPlan, SignaturePlan, StrategyPlan, TrainingPlan
from schemas.messages.recipes import WirePlan

RoundState = Literal["open", "collecting", "closing", "aggregating", "published", "abandoned"]
ParticipationState = Literal["joined", "arrived", "late", "rejected", "revoked"]


class WeightsReference(Strict):
    """Which bytes a client is served."""

    digest: Digest
    bytes: int


class RoundBrief(Strict):
    """What a client has to do now; `weights.digest` is its base for the round."""

    round: int
    state: Literal["open", "collecting"]
    deadline: UtcTime | None
    strategy: StrategyPlan
    adapter: AdapterPlan
    training: TrainingPlan
    signature: SignaturePlan
    alignment: AlignmentPlan | None
    wire: WirePlan
    weights: WeightsReference
    server_time: UtcTime


SignedDocument = dict[str, JsonValue]
"""A document as it was signed; readers check the signature before they look at members they know."""


class Previous(Lenient):
    """The manifest that a client was given before."""

    round: int
    hash: Digest


class RoundManifest(Lenient):
    """What a joined client holds the coordinator to: one manifest per round, each naming the one before.

    `plan` is the digest of what `GET .../plan` answers, `roster_version` 0 before there is a roster;
    a `deadline` of null says that collecting had not begun. `signature` is over all other members.
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
    """What the coordinator signs for weights that it serves in a recipe: which stored bytes they stand for.

    `weights` is the digest that the round's manifest names, `digest` that of the body as it is sent.
    """

    federation: str
    client: str
    round: int
    weights: Digest
    digest: Digest
    signature: str


class FinishedBrief(Strict):
    """The federation is over; `weights` are this client's final ones, or null if it never took part.

    `manifest` is a RoundManifest for the round after the last.
    """

    state: Literal["finished"]
    round: int
    weights: WeightsReference | None
    manifest: SignedDocument | None


class Joined(Strict):
    """The answer to a join; `manifest` is a RoundManifest."""

    weights: WeightsReference
    manifest: SignedDocument


class Metrics(Strict):
    """How good a model is on a client's own held-out examples; loss in nats per answer token."""

    loss: Annotated[float, Field(ge=0)]
    perplexity: Annotated[float, Field(ge=0)]
    exact_match: Annotated[float, Field(ge=0, le=1)]


class Scores(Strict):
    """Before and after the local steps of a round."""

    before: Metrics
    after: Metrics
    examples: Annotated[int, Field(ge=1, lt=2**31)]


class ScoreSummary(Strict):
    """Mean and worst over the clients' `after`; worst is the highest loss and the lowest exact match.

    `worst` is null for clients: it is a figure of one of them.
    """

    mean: Metrics
    worst: Metrics | None


class RoundCounts(Strict):
    """How many clients are where."""

    joined: int
    arrived: int
    late: int
    rejected: int


class ParticipationView(Strict):
    """One client in one round; `epsilon` is what its signatures have cost so far of its privacy budget.

    `examples_capped`: it was trained on more examples than `limits.max_examples`, and counts by these.
    """

    client_id: str
    name: str
    state: ParticipationState
    joined_at: UtcTime
    received_at: UtcTime | None
    bytes: Traffic
    norm: float | None
    epsilon: float | None = None
    examples_capped: bool = False
    staleness: int | None
    scores: Scores | None
    reject_reason: str | None


class RoundSummary(Strict):
    """A round as it is listed.

    A client gets its own `bytes`, and `scores` when the round is published, three clients or more delivered
    and all of them sent scores, or no more are taken.
    """

    round: int
    state: RoundState
    reason: str | None
    deadline: UtcTime | None
    opened_at: UtcTime
    published_at: UtcTime | None
    counts: RoundCounts
    seconds: dict[str, float]
    bytes: Traffic
    scores: ScoreSummary | None


class RoundView(RoundSummary):
    """A round with its clients; `claims` is what may be said of its privacy, derived from plan and counts."""

    clients: list[ParticipationView]
    claims: list[str]


class RoundPage(Strict):
    """Some rounds, newest first, and where the next page starts."""

    items: list[RoundSummary]
    next: str | None


HeldFor = Literal["large", "opposed", "copies", "capped", "few"]


class RelevanceView(Strict):
    """Who listened to whom; row i of `relevance` sums to 1, `entropy` is in nats.

    A client is shown its own row only, rounded to two decimals, without `similarity` and `agreement`, which
    would show it what others sent: `clients` names the columns, `rows` the rows. Where a guard stands
    between relevance and what is served, `served` is how much of whom i was served, `agreement` the cosine
    between what both have learnt (null = not compared), and `held` why j counts for less than its relevance:
    its update is longer than i's (`large`), points away from it (`opposed`), is nearly the same as others'
    (`copies`), or has more weight than one client or organisation may (`capped`); or the mixture had
    fewer voices than `privacy.min_voices` (`few`). Else they are null.
    """

    round: int
    clients: list[str]
    rows: list[str]
    relevance: list[list[float]]
    similarity: list[list[float | None]] | None
    entropy: list[float]
    served: list[list[float]] | None
    agreement: list[list[float | None]] | None
    held: list[list[list[HeldFor]]] | None
