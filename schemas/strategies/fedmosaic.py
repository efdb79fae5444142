"""The options of FedMosaic: how relevance is computed, and how clients use what they are served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.strategies.declaration import StrategyOptions

MOST_TEXTS = 4096
"""The largest number of public texts on which outputs are computed."""


class DistilPlan(BaseModel):
    """Distillation on the federation's public anchor texts, across base models and tokenizers.

    The method: docs/explanation/distillation.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    texts: Annotated[
        int,
        Field(
            ge=1, le=MOST_TEXTS, description="The number of first anchor texts on which outputs are computed."
        ),
    ] = 64
    factor: Annotated[
        float,
        Field(gt=0, le=10, description="The weight of the divergence from the peers' mixture in the loss."),
    ] = 0.1


class FedMosaicOptions(StrategyOptions):
    """The computation of relevance, and the use of the served weights by clients."""

    temperature: Annotated[float, Field(ge=1e-6)] = 0.1
    """The temperature of the softmax over similarities: lower values concentrate on the most similar peers.
    """
    evidence: Literal["changes", "sketches"] = "changes"
    """The weights of established clients follow from what they change in their rounds (with `mix` replace and
    one base model), or from their sketches alone, as published.
    """
    change_temperature: Annotated[float, Field(ge=1e-6)] = 0.05
    """The temperature of the softmax over the cosines of changes."""
    include_self: bool = False
    """Whether a client's own update is part of the mixture that it is served; always with `mix` replace."""
    centre: bool = False
    """Whether the mean sketch is subtracted before the cosine, which removes most of the direction that a
    majority shares; the cosine is then not corrected for noise.
    """
    top_k: Annotated[int, Field(ge=1)] | None = None
    """The largest number of peers in a mixture, without the client itself; null = all eligible ones."""
    mix: Literal["replace", "gate"] = "replace"
    """How clients use the served weights G: continue from G, in which a client's own update counts as that of
    a peer of the same task (`replace`), or train their own L beside a frozen G with a learnt gate (`gate`).
    """
    start_from: Literal["better", "served"] = "better"
    """With `mix` replace, what a client trains from: its own state of the round before where the served one
    is worse on its validation examples, by two standard errors (`better`), or always the served one.
    """
    sources: Literal["same_architecture", "all"] = "same_architecture"
    """Peers of established clients: those of the identical base model, or all. For newcomers they are always
    all.
    """
    min_relevance: Annotated[float, Field(ge=-1, le=1)] | None = 0.6
    """The smallest similarity at which a peer counts; 1 is the same task, null = no floor."""
    weight_by_examples: bool = False
    """Whether weights are multiplied by the number of examples."""
    guard: Literal["on", "strict", "off"] = "on"
    """Limits on the influence of peers (docs/explanation/poisoning.md); `strict` applies them even if few
    peers remain, `off` is the published method. The weight that the guard cuts off goes to the client itself,
    whatever `include_self` is.
    """
    distil: DistilPlan | None = None
    """Whether clients of all base models also learn from the outputs of each other's models on the anchor
    texts, mixed by relevance (docs/explanation/distillation.md); null = they do not.
    """

    @property
    def gated(self) -> bool:
        return self.mix == "gate"

    @property
    def only_steps(self) -> bool:
        return self.distil is None

    @property
    def distilled_texts(self) -> int | None:
        return self.distil.texts if self.distil is not None else None
