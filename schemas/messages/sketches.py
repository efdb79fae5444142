"""The part of a plan that describes gradient sketches, which plans and messages call signatures."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.messages.base import SharedModelSlug, Strict, field_error
from schemas.messages.training import Count, Positive


class SignatureDpPlan(Strict):
    """(epsilon, delta)-differential privacy of every record, against any reader of a client's sketches."""

    epsilon: Annotated[float, Field(ge=0.01, le=10)]
    """The privacy budget of all sketches of a client together."""
    delta: Annotated[float, Field(ge=1e-8, le=1e-2)] = 1e-5
    """The probability with which the guarantee of epsilon may fail."""
    releases: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The number of sketches that share the budget, one per round; null = `rounds.total`. Once the budget is
    spent, the last sketch is sent again.
    """
    minimum_sample: Count = 32
    """The smallest expected number of records per sketch: with fewer, a sketch is mostly noise."""


_DIM_WITH_DP = 64
_SAMPLE_WITH_DP = 256


class SignaturePlan(Strict):
    """A client's sanitized gradient sketch, from which relevance is computed."""

    kind: Literal["gradient"] = "gradient"
    """The kind of sketch: `gradient` sketches the gradients of the silo's examples in the shared model."""
    dim: Annotated[int, Field(ge=2, le=65536)] = 256
    """The number of values of a sketch; with `dp` 64 by default."""
    probe_examples: Annotated[int, Field(ge=1, le=65536)] = 32
    """The number of examples that a sketch is computed from; with `dp` the expected number, 256 by default.
    """
    ema: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The weight of the newest sketch in the moving average over rounds; with `dp` the mean of all sketches
    is used.
    """
    clip: Positive = 1.0
    """The largest L2 norm of one example's gradient, and of the sketch."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of the random projection to `dim` values."""
    model: SharedModelSlug | None = None
    """The slug of the model that computes sketches; null = the pivot of `alignment`, or each silo's own
    model.
    """
    dp: SignatureDpPlan | None = None
    """Differential privacy of the sketches; null = none."""

    @model_validator(mode="after")
    def _defaults_with_dp(self) -> Self:
        if self.dp is None:
            return self
        for field, value in (("dim", _DIM_WITH_DP), ("probe_examples", _SAMPLE_WITH_DP)):
            if field not in self.model_fields_set:
                object.__setattr__(self, field, value)
        if self.probe_examples < self.dp.minimum_sample:
            raise field_error(
                f"must be at least dp.minimum_sample = {self.dp.minimum_sample}: with fewer records "
                "a sketch is mostly noise",
                "probe_examples",
            )
        return self
