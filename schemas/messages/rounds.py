"""Messages of a round: the client's instructions, the signed manifest, scores, and the views."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

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
from schemas.messages.recipes import WirePlan
from schemas.messages.scores import Scores, ScoreSummary

RoundState = Literal["open", "collecting", "closing", "aggregating", "published", "abandoned"]
ParticipationState = Literal["joined", "arrived", "late", "rejected", "revoked"]


class WeightsReference(Strict):
    """The digest and size of the weights served to a client."""

    digest: Digest
    bytes: int


class RoundBrief(Strict):
    """A client's instructions for the current round; `weights.digest` is its base for the round.

    `total_rounds` is the plan's number of rounds, over which the learning-rate schedule runs.
    """

    round: int
    total_rounds: int
    state: Literal["open", "collecting"]
    deadline: UtcTime | None
    strategy: StrategyPlan
    adapter: AdapterPlan
    training: TrainingPlan
    signature: SignaturePlan
    alignment: AlignmentPlan | None
    wire: WirePlan
    scores: ScoresPlan
    weights: WeightsReference
    server_time: UtcTime


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
    round: int
    weights: WeightsReference | None
    manifest: SignedDocument | None


class Joined(Strict):
    """The response to a join; `manifest` is a RoundManifest."""

    weights: WeightsReference
    manifest: SignedDocument


class RoundCounts(Strict):
    """The number of clients of a round, by state."""

    joined: int
    arrived: int
    late: int
    rejected: int


class ParticipationView(Strict):
    """One client's participation in one round; `epsilon` is the privacy budget spent on its sketches so far.

    `examples_capped`: the client reported more examples than `limits.max_examples`, and is weighted by the
    limit.
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
    """A round in a listing.

    For a client, `bytes` are its own, and `scores` are present once the round is published, at least three
    other clients sent them, and all that delivered did or the time for scores is over.
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
    """A round with its clients; `claims` are the privacy claims that follow from plan and counts."""

    clients: list[ParticipationView]
    claims: list[str]


class RoundPage(Strict):
    """A page of rounds, newest first; `next` is the cursor of the next page, null on the last."""

    items: list[RoundSummary]
    next: str | None


HeldFor = Literal["large", "opposed", "copies", "capped", "few"]


class RelevanceView(Strict):
    """The relevance matrix of a round: row i of `relevance` sums to 1, `entropy` is in nats.

    `rows` names the rows, `clients` the columns. A client is shown its own row only, rounded to two decimals,
    without `similarity` and `agreement`, which would reveal other clients' updates. If a guard limits the
    mixtures, `served` is the share of each client that was served, `agreement` the cosine between the learnt
    changes (null = not compared), and `held` lists why a client counts for less than its relevance: its
    update is longer than the receiver's (`large`), points away from it (`opposed`), nearly equals others'
    (`copies`), exceeds the maximum weight of a client or organisation (`capped`), or the mixture had fewer
    members than `privacy.min_voices` (`few`). Otherwise these are null.
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
