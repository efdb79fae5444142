"""Scores of a model on a client's held-out examples: named numbers, each with its count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.messages.base import Strict, field_error

LOSS = "loss"
PERPLEXITY = "perplexity"

LOWER_IS_BETTER = frozenset({LOSS, PERPLEXITY})
"""The names whose lower value is better; every other score is in [0, 1] and better if higher."""

MOST_SCORES = 16
"""The most scores of one model."""

ScoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class Score(Strict):
    """One number, and the number of held-out examples that it was computed on.

    `loss` is in nats per answer token, `perplexity` its exponential; other scores are in [0, 1].
    """

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The number."""
    count: Annotated[int, Field(ge=1, lt=2**31)]
    """The number of examples, or of clients in a mean."""


ScoreSet = Annotated[dict[ScoreName, Score], Field(min_length=1, max_length=MOST_SCORES)]
"""Scores of one model by name; `loss` is always present."""


def as_text(scores: Mapping[str, Score]) -> str:
    """Return scores as one line: `loss 0.845, perplexity 2.33, f1 0.412`."""
    return ", ".join(f"{name} {_number(score.value)}" for name, score in scores.items())


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.4g}"


class Change(Strict):
    """A change of the loss on the same examples, in nats per answer token; negative is better."""

    value: Annotated[float, Field(allow_inf_nan=False)]
    """The later loss minus the earlier one."""
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Its standard error; a change of less than two of them is within the noise of the examples."""
    count: Annotated[int, Field(ge=2, lt=2**31)]
    """The number of texts."""

    @property
    def verdict(self) -> Literal["better", "worse", "noise"]:
        """Return whether the loss fell or rose by at least two standard errors."""
        # Two standard errors: a smaller change is within the noise of the examples.
        if abs(self.value) < 2 * self.error or self.value == 0:
            return "noise"
        return "better" if self.value < 0 else "worse"


class Scores(Strict):
    """A client's scores of a round, on its test examples."""

    served: ScoreSet
    """Scores of the weights that the round began with."""
    trained: ScoreSet
    """Scores of the adapter after the local steps."""
    kept: Literal["served", "trained"]
    """The model that the client keeps as its personal model."""
    final: ScoreSet | None = None
    """Scores of the final weights; accepted once the federation is finished, for the last published round."""
    final_kept: bool = True
    """Whether the client keeps the final weights as its personal model; otherwise it stays with `kept`, as
    they are worse on its validation examples.
    """

    mixing: Change | None = None
    """The loss of `served` minus that of the adapter that the client had trained in its round before: the
    effect of the other clients' updates. Null in a client's first round.
    """

    began: Annotated[Literal["served", "trained"], Field(exclude_if=lambda began: began == "served")] = (
        "served"
    )
    """The model from which the local steps of the round began: the served one, or the one that the client had
    trained in its round before, as the served one was worse on its validation examples.
    """

    @model_validator(mode="after")
    def _sets_are_complete(self) -> Self:
        for field in ("served", "trained", "final"):
            scores: dict[str, Score] | None = getattr(self, field)
            if scores is None:
                continue
            if LOSS not in scores:
                raise field_error("must have a loss", field)
            for name, score in scores.items():
                if name not in LOWER_IS_BETTER and score.value > 1:
                    raise field_error(f"{name} must be at most 1", field)
        return self

    @property
    def personal(self) -> dict[str, Score]:
        """Return the scores of the model that the client has: the final one if kept, else the round's."""
        return self.final if self.final is not None and self.final_kept else self.kept_scores

    @property
    def kept_scores(self) -> dict[str, Score]:
        """Return the scores of the model that the client kept in the round."""
        return self.served if self.kept == "served" else self.trained


class ScoreSummary(Strict):
    """Mean and worst over clients of the scores of their personal models, by name.

    `count` is the number of clients with a score of that name; of more than 16 names, the commonest are
    shown. `worst` is the highest loss and perplexity, and the lowest of any other score; it is null for
    clients, since it is the value of a single client. Clients see means in three
    decimals, of at least three other clients, and none of perplexity. Where scores are summed
    (`privacy.secure_sum.scores`), there is only the mean loss of the members' trained models, and no `worst`.
    """

    mean: ScoreSet
    """Means over clients, by name."""
    worst: dict[ScoreName, Score] | None
    """The worst client's scores, by name; null for clients, and where scores are summed."""
