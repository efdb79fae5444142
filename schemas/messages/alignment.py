"""Messages about anchor texts, alignment packs and their transfer tests."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from schemas.maths.paired_test import Lead, lead
from schemas.messages.base import BaseModelSlug, Digest, Name, Strict, UtcTime, field_error
from schemas.messages.federations import AlignmentPlan, Positive
from schemas.messages.updates import Manifest
from schemas.wire.digests import digest_of


class Anchor(Strict):
    """One public text. Random targets are placed at the positions of `answer`."""

    id: Name
    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    answer: Annotated[str, Field(min_length=1, max_length=20_000)]


class Anchors(Strict):
    """The public texts that align the base models of a federation."""

    anchors: Annotated[list[Anchor], Field(min_length=1, max_length=100_000)]


class AnchorsView(Strict):
    """The stored anchor texts; `digest` is the digest of the JSON that `GET` returns."""

    digest: Digest
    bytes: int
    count: int


class PackErrors(Strict):
    """Held-out relative errors of one (block, role): inputs `a`, gradients per token, gradients per task."""

    a: Annotated[FiniteFloat, Field(ge=0)]
    b_token: Annotated[FiniteFloat, Field(ge=0)]
    b_task: Annotated[FiniteFloat, Field(ge=0)]


class AlignmentManifest(Manifest):
    """The frozen A, B of one base model; `selected` lists the shared (block, role)s."""

    kind: Literal["alignment"] = "alignment"
    base_model: BaseModelSlug
    alignment_set: Digest
    selected: list[str]
    errors: dict[str, PackErrors]


def random_set(plan: AlignmentPlan, rank: int) -> str:
    """Return the alignment set of random frames, derived from the plan alone."""
    return digest_of(json.dumps(["random", plan.pivot, plan.seed, rank]).encode())


Verdict = Literal["passed", "failed"]
Start = Literal["right", "zero", "wrong_task", "random_frames"]
CONTROLS: tuple[Start, ...] = ("zero", "wrong_task", "random_frames")

FEWEST_TASKS = 5
"""Minimum number of pseudo-tasks: with fewer, a lead is not reliable."""

LEVEL = 0.05
"""Upper bound of the probability that a pack passes although a control is not beaten."""


class Ending(Strict):
    """Quality of trained P and Q: one value per pseudo-task, on anchors held out from training.

    The anchors are held out from alignment too, except for the pivot's own frames, which are the principal
    directions of all anchors.
    """

    loss: Annotated[list[Annotated[FiniteFloat, Field(ge=0)]], Field(min_length=FEWEST_TASKS, max_length=100)]
    exact_match: Annotated[
        list[Annotated[FiniteFloat, Field(ge=0, le=1)]], Field(min_length=FEWEST_TASKS, max_length=100)
    ]


class Direction(Strict):
    """A transfer of P and Q from `source`, where they were trained, to `target`.

    `learnt` is the quality in the source, `endings` the quality in the target after further training, per
    start.
    """

    source: BaseModelSlug
    target: BaseModelSlug
    learnt: Ending
    endings: dict[Start, Ending]

    def lead_over(self, control: Start) -> Lead:
        """Compute the lead of the right start over a control in loss.

        The differences are paired: both starts of a pseudo-task train on the same examples.
        """
        return lead(self.endings[control].loss, over=self.endings["right"].loss)

    def beats(self, control: Start) -> bool:
        """Whether the right start is ahead of a control, by the one-sided paired t test at LEVEL."""
        return self.lead_over(control).chance < LEVEL

    @property
    def passed(self) -> bool:
        """Whether the right start beats every control.

        Because every control must be beaten, each test may use LEVEL: the probability of passing while one
        control is not beaten is no larger (Berger 1982, intersection-union tests).
        """
        return all(self.beats(control) for control in CONTROLS)


class Acceptance(Strict):
    """The transfer test of an alignment pack: whether training in one architecture helps another, both ways.

    `taught` is the number of training steps in the source, `steps` the number of further steps in the target
    at `learning_rate`; `seed` determines the pseudo-tasks and the random frames. `verdict` must follow from
    the figures.
    """

    pack: Digest
    verdict: Verdict
    directions: Annotated[list[Direction], Field(min_length=2, max_length=2)]
    taught: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    learning_rate: Positive
    seed: Annotated[int, Field(ge=0, lt=2**63)]

    @model_validator(mode="after")
    def _figures_are_complete(self) -> Self:
        for direction in self.directions:
            if direction.endings.keys() != {"right", *CONTROLS}:
                raise field_error("must have every start", "directions")
            every = (direction.learnt, *direction.endings.values())
            lengths = {len(figures) for e in every for figures in (e.loss, e.exact_match)}
            if len(lengths) != 1:
                raise field_error("must have one figure per pseudo-task", "directions")
        if self.verdict != verdict_on(self.directions):
            raise field_error("must follow from the figures", "verdict")
        return self


def verdict_on(directions: list[Direction]) -> Verdict:
    return "passed" if all(direction.passed for direction in directions) else "failed"


class AcceptanceView(Strict):
    """A stored transfer test; `tested_by` is a client id, or null for an operator."""

    verdict: Verdict
    directions: list[Direction]
    taught: int
    steps: int
    learning_rate: float
    seed: int
    tested_by: str | None
    tested_at: UtcTime


class PackView(Strict):
    """An alignment pack in a listing.

    `acceptance` is the transfer test in effect, null if there is none; `verdicts` counts the clients'
    verdicts.
    """

    base_model: str
    digest: Digest
    bytes: int
    alignment_set: Digest
    selected: list[str]
    errors: dict[str, PackErrors]
    stored_at: UtcTime
    acceptance: AcceptanceView | None
    verdicts: dict[Verdict, int] = Field(default_factory=dict)
    sharing: str


class VoidedPack(Strict):
    """A pack that was replaced or deleted, or whose client was revoked."""

    base_model: str
    digest: Digest


class PackList(Strict):
    """All packs of a federation, one per base model, and the voided ones."""

    items: list[PackView]
    voided: list[VoidedPack] = Field(default_factory=list)
    next: str | None = None
