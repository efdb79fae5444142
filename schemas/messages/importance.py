"""What a plan may say of adapters whose ranks are learnt to matter more or less (CA-PFL). Knows no maths."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class ImportancePlan(BaseModel):
    """How clients learn how much each rank of A and B matters, and send the more of it the more it does.

    The strategy `ca_pfl` has these options on both sides; docs/decisions/0024 says what each is for.
    """

    density: Annotated[
        float, Field(gt=0, le=1, description="Share of the values of A and B that is sent after the warm-up.")
    ] = 0.27
    span: Annotated[
        float,
        Field(ge=0, le=1, description="Density of the most important rank less that of the least important."),
    ] = 0.25
    cut: Annotated[
        float,
        Field(ge=0, le=100, description="Nothing of a rank is sent whose importance is below; 0 = off."),
    ] = 0.0
    warm_rounds: Annotated[
        int,
        Field(ge=0, le=100_000, description="Rounds over which density falls from 1, and `alpha_s` rises."),
    ] = 2
    alpha_s: Annotated[
        float, Field(ge=0, le=100, description="Weight of the size of B's columns, each on its own scale.")
    ] = 0.01
    alpha_p: Annotated[
        float, Field(gt=0, le=100, description="Weight of the mean KL divergence from posterior to prior.")
    ] = 0.01
    alpha_f: Annotated[
        float, Field(ge=0, le=100, description="Weight of the squared distance to the weights served.")
    ] = 0.1
    variational_rate: Annotated[
        float, Field(gt=0, le=1, description="Learning rate of posterior and modulator.")
    ] = 0.01
    modulator: Annotated[
        bool, Field(description="Whether a client's own examples shape its prior, beside the common one.")
    ] = True
    fourier_features: Annotated[
        int,
        Field(ge=2, le=65536, multiple_of=2, description="Random Fourier features that the modulator reads."),
    ] = 64
