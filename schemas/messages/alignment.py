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

PACK_BYTES = 256 * 2**20
"""Largest alignment pack, encoded or decoded, including the pivot's responses."""


class Anchor(Strict):
    """One public text. Random targets are placed at the positions of `answer`."""

    id: Name
    """The id of the text, distinct in the federation."""
    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    """The beginning of the text."""
    answer: Annotated[str, Field(min_length=1, max_length=20_000)]
    """The rest of the text, whose tokens get targets."""


class Anchors(Strict):
    """The public texts that align the base models of a federation."""

    anchors: Annotated[list[Anchor], Field(min_length=1, max_length=100_000)]
    """The texts."""


class AnchorsView(Strict):
    """The stored anchor texts; `digest` is the digest of the JSON that `GET` returns."""

    digest: Digest
    """The digest of the stored JSON."""
    bytes: int
    """The size of the stored JSON."""
    count: int
    """The number of texts."""


class PackErrors(Strict):
    """Held-out relative errors of one (block, role): inputs `a`, gradients per token, gradients per task."""

    a: Annotated[FiniteFloat, Field(ge=0)]
    """The error of the inputs."""
    b_token: Annotated[FiniteFloat, Field(ge=0)]
    """The error of the gradients of single tokens."""
    b_task: Annotated[FiniteFloat, Field(ge=0)]
    """The error of the mean gradients of pseudo-tasks."""


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
    """Losses, one per pseudo-task."""
    exact_match: Annotated[
        list[Annotated[FiniteFloat, Field(ge=0, le=1)]], Field(min_length=FEWEST_TASKS, max_length=100)
    ]
    """Shares of exact answers, one per pseudo-task."""


class Direction(Strict):
    """A transfer of P and Q from `source`, where they were trained, to `target`.

    `learnt` is the quality in the source, `endings` the quality in the target after further training, per
    start.
    """

    source: BaseModelSlug
    """The slug of the model in which P and Q were trained."""
    target: BaseModelSlug
    """The slug of the model in which they are trained further."""
    learnt: Ending
    """The quality in the source."""
    endings: dict[Start, Ending]
    """The quality in the target, by start."""

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
        """Whether the right start beats every control."""
        # Since every control must be beaten, each test may use LEVEL: the probability of passing while one
        # control is not beaten is no larger (Berger 1982, intersection-union tests).
        return all(self.beats(control) for control in CONTROLS)


class Acceptance(Strict):
    """The transfer test of an alignment pack: whether training in one architecture helps another, both ways.

    `taught` is the number of training steps in the source, `steps` the number of further steps in the target
    at `learning_rate`; `seed` determines the pseudo-tasks and the random frames. `verdict` must follow from
    the figures.
    """

    pack: Digest
    """The digest of the tested pack."""
    verdict: Verdict
    """Whether the right start beat every control in both directions."""
    directions: Annotated[list[Direction], Field(min_length=2, max_length=2)]
    """Both directions."""
    taught: Annotated[int, Field(ge=1)]
    """The number of training steps in the source."""
    steps: Annotated[int, Field(ge=1)]
    """The number of further steps in the target."""
    learning_rate: Positive
    """The learning rate in the target."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """The seed of pseudo-tasks and random frames."""

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
    """Whether the right start beat every control in both directions."""
    directions: list[Direction]
    """Both directions."""
    taught: int
    """The number of training steps in the source."""
    steps: int
    """The number of further steps in the target."""
    learning_rate: float
    """The learning rate in the target."""
    seed: int
    """The seed of pseudo-tasks and random frames."""
    tested_by: str | None
    """The id of the client that tested it; null = an operator."""
    tested_at: UtcTime
    """The time at which it was stored."""


class PackView(Strict):
    """An alignment pack in a listing.

    `acceptance` is the transfer test in effect, null if there is none; `verdicts` counts the clients'
    verdicts.
    """

    base_model: str
    """The slug of the base model."""
    digest: Digest
    """The digest of the encoded pack."""
    bytes: int
    """The size of the encoded pack."""
    alignment_set: Digest
    """The set of packs that share P and Q with each other."""
    selected: list[str]
    """The (block, role)s that are shared."""
    errors: dict[str, PackErrors]
    """The held-out errors, by (block, role)."""
    stored_at: UtcTime
    """The time at which it was stored."""
    acceptance: AcceptanceView | None
    """The transfer test in effect; null = none."""
    verdicts: dict[Verdict, int] = Field(default_factory=dict)
    """The number of clients' tests, by verdict."""
    sharing: str
    """With whom the clients of this base model share."""


class VoidedPack(Strict):
    """A pack that was replaced or deleted, or whose client was revoked."""

    base_model: str
    """The slug of the base model."""
    digest: Digest
    """The digest of the encoded pack."""


class PackList(Strict):
    """All packs of a federation, one per base model, and the voided ones."""

    items: list[PackView]
    """The packs in effect."""
    voided: list[VoidedPack] = Field(default_factory=list)
    """Packs that no longer count."""
    next: str | None = None
    """Always null: all packs are in one page."""
