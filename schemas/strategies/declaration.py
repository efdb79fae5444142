"""The base class of the options of a strategy, with the facts on which both sides must agree. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from schemas.maths.adapter import Layout


class StrategyOptions(BaseModel):
    """The options of a strategy in a plan, as fields, and the facts that follow from them.

    Coordinator and agent read the same facts, so that neither declares what the other one must know. The
    defaults are those of plain averaging. A subclass overrides a fact by a property, or by a class variable
    where options do not decide. No option has the name of a fact.

    Attributes:
        removed: options that stored plans may have, and that have no effect.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    removed: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, options: object) -> object:
        # Manifests name the digests of plans, so that stored plans stay as they are.
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if name not in cls.removed}

    @property
    def lora_only(self) -> bool:
        """Whether adapters must be ordinary LoRA, because one of the sides knows A and B."""
        return False

    @property
    def least_rank(self) -> int | None:
        """Clients may differ in rank, from this to the plan's `adapter.rank`; None = they may not."""
        return None

    @property
    def mixed_ranks(self) -> bool:
        return self.least_rank is not None

    @property
    def gated(self) -> bool:
        """Whether the served P and Q are a frozen global branch beside the client's own."""
        return False

    @property
    def base_delta(self) -> bool:
        """Whether part of a round joins the base model, as the coordinator's `base_delta` computes it."""
        return False

    @property
    def restarts(self) -> bool:
        """Whether every round begins with a new A, drawn from its own seed, B = 0 and a new optimiser."""
        return False

    @property
    def only_steps(self) -> bool:
        """Whether nothing but gradient steps on one adapter reads the training examples of clients.

        Only then can these steps be made differentially private (`privacy.training`).
        """
        return False

    @property
    def adds_losses(self) -> bool:
        """Whether the local steps of clients add further terms to the loss (`training.anchor_pull`)."""
        return True

    @property
    def distilled_texts(self) -> int | None:
        """The number of anchor texts on which clients send the outputs of their models; None = they do not.

        They are served mixtures of their peers' outputs, by the coordinator's `listens`.
        """
        return None

    @property
    def choices(self) -> int | None:
        """The most counted groups but `reject` to which a client belongs in a round; None = any number."""
        return None

    def travels(self, tensor: str) -> bool:
        """Whether clients send a tensor of the adapter, by its name; the others never leave the client."""
        return True

    def beside(self, layout: Layout) -> Layout:
        """Return names and shapes of the tensors that are sent in addition to those of an adapter."""
        return {}

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        """Return the groups whose members are counted before a sum; () = there are none.

        `segments` are those of the summed layout. A client belongs to the group of an expert, `x3`, if its
        training changed tensors of the expert.
        """
        return ()
