"""Manifests of tensor bodies, and the receipt of an update."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StrictInt, StrictStr

from schemas.messages.base import Digest, Lenient, Strict, UtcTime

Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
_RoundOrNone = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Reliability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""The share of a sketch's squared length that is not sampling noise; 1 = no noise."""

Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""The privacy budget spent on a client's sketches, or on its training, this body's included."""


class Manifest(Lenient):
    """Members common to all manifests; unknown ones are ignored."""

    version: Annotated[StrictInt, Field(ge=1, le=1)] = 1
    federation: StrictStr
    recipe: dict[str, JsonValue]


class UpdateManifest(Manifest):
    """The manifest of a client's adapter and sketch; `base` is the digest of the weights it was trained from.

    `signature_reliability` is the share of the sketch that is not noise (default 1). `signature_epsilon` is
    the spent privacy budget of sketches, for display, if the plan sets one. `training_epsilon` is that of
    training, and required if the plan has `privacy.training`.
    """

    kind: Literal["update"] = "update"
    round: Count
    client: StrictStr
    base: Digest
    pack: Digest | None
    examples: Count
    signature_reliability: Reliability = 1.0
    signature_epsilon: Epsilon | None = None
    training_epsilon: Epsilon | None = None


class SignatureManifest(Manifest):
    """The manifest of a new client's sketch, sent with `join`."""

    kind: Literal["signature"] = "signature"
    round: Count
    client: StrictStr
    pack: Digest | None = None
    signature_reliability: Reliability = 1.0
    signature_epsilon: Epsilon | None = None


class ExpertReference(Strict):
    """An active expert of a bank, as a round begins with it."""

    expert: Count
    """The ordinal of the expert, which is never used again."""
    revision: _RoundOrNone
    """The round that changed it last; 0 = none, and it is drawn from the plan's seed."""
    digest: Digest | None
    """The digest of the revision's body; null for revision 0, which nobody downloads."""
    bytes: Annotated[StrictInt, Field(ge=0)]
    """The size of that body."""
    prior: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    """The expert's share of the prior."""


class BankIndex(Strict):
    """The active experts beside the served weights, which are those of the shared expert.

    `since` is the round after which their values began: 0, or the last one whose values were voided.
    Exploring is counted from it.
    """

    experts: list[ExpertReference]
    since: _RoundOrNone = 0


class WeightsManifest(Manifest):
    """The manifest of personalised weights, served at the start of `round`.

    `bank` names the experts beside them, by a strategy that has a bank of experts. `initial` weights are for
    a client none of whose updates counts: before its first, or again after its round was abandoned.
    """

    kind: Literal["weights"] = "weights"
    round: Count
    client: StrictStr
    pack: Digest | None
    bank: BankIndex | None = None
    initial: bool = False


class FoldedWeightsManifest(WeightsManifest):
    """The manifest of weights with a base delta, by a strategy that changes the base model.

    The base delta is added to the base model as weights of round `fold_from` left it; 1 = to the original,
    with the whole delta so far. null = there is no delta.
    """

    fold_from: Count | None = None


class AdapterStateManifest(Manifest):
    """The manifest of a client's stored adapter state after `round`."""

    kind: Literal["adapter"] = "adapter"
    round: Count
    client: StrictStr
    pack: Digest | None


class Receipt(Strict):
    """The receipt of an update: the coordinator has stored these bytes durably."""

    digest: Digest
    """The digest of the stored bytes."""
    received_at: UtcTime
    """The time at which they were stored."""
    bytes: int
    """The size of the stored bytes."""
    round: int
    """The number of the round."""
    client: str
    """The id of the client."""
    clipped: bool
    """Whether the learnt change was scaled down to `limits.clip_norm`."""
