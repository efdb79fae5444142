"""What is said about tensors: the manifest inside a tensor body, and the receipt of an update."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StrictInt, StrictStr

from schemas.messages.base import Digest, Lenient, Strict, UtcTime

Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Reliability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""The share of a signature's squared length that is not sampling noise: 1 = another sample gives the same."""


Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""What a client's signatures have cost of its privacy budget, this one included."""


class Manifest(Lenient):
    """The members that every tensor body's manifest has; unknown ones are ignored."""

    version: Annotated[StrictInt, Field(ge=1, le=1)] = 1
    federation: StrictStr
    recipe: dict[str, JsonValue]


class UpdateManifest(Manifest):
    """A client's adapter and signature; `base` is the digest of the weights it was trained from.

    `signature_reliability` may be left out: the signature is then taken as free of noise. `signature_epsilon`
    is told for people to see, where the plan sets a privacy budget.
    """

    kind: Literal["update"] = "update"
    round: Count
    client: StrictStr
    base: Digest
    pack: Digest | None
    examples: Count
    signature_reliability: Reliability = 1.0
    signature_epsilon: Epsilon | None = None


class SignatureManifest(Manifest):
    """A newcomer's signature, sent with `join`."""

    kind: Literal["signature"] = "signature"
    round: Count
    client: StrictStr
    pack: Digest | None = None
    signature_reliability: Reliability = 1.0
    signature_epsilon: Epsilon | None = None


class WeightsManifest(Manifest):
    """Personalised weights as they are served at the start of `round`."""

    kind: Literal["weights"] = "weights"
    round: Count
    client: StrictStr
    pack: Digest | None


class FoldedWeightsManifest(WeightsManifest):
    """Weights that come with an addition to the base model, by a strategy that folds.

    It is to be added to what weights of round `fold_from` had made of the base model; 1 = to nothing: it is
    all that was folded so far. None = nothing was.
    """

    fold_from: Count | None = None


class AdapterStateManifest(Manifest):
    """A client's stored adapter state after `round`."""

    kind: Literal["adapter"] = "adapter"
    round: Count
    client: StrictStr
    pack: Digest | None


class Receipt(Strict):
    """The coordinator has these bytes, for good."""

    digest: Digest
    received_at: UtcTime
    bytes: int
    round: int
    client: str
    clipped: bool
