"""Anchor texts, and what is said about alignment packs."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from schemas.maths.paired_test import Lead, lead
from schemas.messages.base import BaseModelSlug, Digest, Name, Strict, UtcTime, wrong
from schemas.messages.federations import AlignmentPlan, Positive
from schemas.messages.updates import Manifest
from schemas.wire.digests import digest_of


class Anchor(Strict):
    """One public text: random targets are put at the answer's positions."""

    id: Name
    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    answer: Annotated[str, Field(min_length=1, max_length=20_000)]


class Anchors(Strict):
    """The public texts on which a federation's base models are aligned."""

    anchors: Annotated[list[Anchor], Field(min_length=1, max_length=100_000)]


class AnchorsView(Strict):
    """Which anchor texts are stored; `digest` names the JSON that `GET` serves."""

    digest: Digest
    bytes: int
    count: int


class PackErrors(Strict):
    """Held-out relative errors of one (block, role): inputs, gradients per token, gradients per task."""

    a: Annotated[FiniteFloat, Field(ge=0)]
    b_token: Annotated[FiniteFloat, Field(ge=0)]
    b_task: Annotated[FiniteFloat, Field(ge=0)]


class AlignmentManifest(Manifest):
    """The frozen A, B of one base model; `selected` names the (block, role) that are shared."""

    kind: Literal["alignment"] = "alignment"
    base_model: BaseModelSlug
    alignment_set: Digest
    selected: list[str]
    errors: dict[str, PackErrors]


def random_set(plan: AlignmentPlan, rank: int) -> str:
    """Return the alignment set of random frames, which follow from the plan alone."""
    return digest_of(json.dumps(["random", plan.pivot, plan.seed, rank]).encode())


Verdict = Literal["passed", "failed"]
Start = Literal["right", "zero", "wrong_task", "random_frames"]
CONTROLS: tuple[Start, ...] = ("zero", "wrong_task", "random_frames")

FEWEST_TASKS = 5
"""On fewer pseudo-tasks a lead says little about the next one."""

LEVEL = 0.05
"""A pack whose right start is not ahead of some control passes with at most this probability."""


class Ending(Strict):
    """How good P and Q were: one figure per pseudo-task, on anchors held out from training.

    They are held out from alignment too, but for the pivot's own frames, which are the principal directions
    of all anchors.
    """

    loss: Annotated[list[Annotated[FiniteFloat, Field(ge=0)]], Field(min_length=FEWEST_TASKS, max_length=100)]
    exact_match: Annotated[
        list[Annotated[FiniteFloat, Field(ge=0, le=1)]], Field(min_length=FEWEST_TASKS, max_length=100)
    ]


class Direction(Strict):
    """P and Q were trained in `source` and loaded in `target`.

    `learnt` is how good the right start was in the source itself, `endings` how good every start was in the
    target after the further steps.
    """

    source: BaseModelSlug
    target: BaseModelSlug
    learnt: Ending
    endings: dict[Start, Ending]

    def lead_over(self, control: Start) -> Lead:
        """Say by how much the right start's loss is below a control's.

        The differences are paired: both starts of a pseudo-task learn from the same examples.
        """
        return lead(self.endings[control].loss, over=self.endings["right"].loss)

    def beats(self, control: Start) -> bool:
        """Say whether the right start is ahead of a control: by the one-sided paired t test at LEVEL."""
        return self.lead_over(control).chance < LEVEL

    @property
    def passed(self) -> bool:
        """Say whether the right start beats every control.

        Since all of them must be beaten, each may be tested at LEVEL: the chance to pass while one is not
        beaten is no larger (Berger 1982, intersection-union tests).
        """
        return all(self.beats(control) for control in CONTROLS)


class Acceptance(Strict):
    """The acceptance test of a pack: whether what one architecture learnt helps the other, both ways.

    `taught` are the steps in the source, `steps` the further ones in the target at `learning_rate`; `seed`
    drew the pseudo-tasks and the random frames. `verdict` must follow from the figures.
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
                raise wrong("must have every start", "directions")
            every = (direction.learnt, *direction.endings.values())
            lengths = {len(figures) for e in every for figures in (e.loss, e.exact_match)}
            if len(lengths) != 1:
                raise wrong("must have one figure per pseudo-task", "directions")
        if self.verdict != verdict_on(self.directions):
            raise wrong("must follow from the figures", "verdict")
        return self


def verdict_on(directions: list[Direction]) -> Verdict:
    """Judge: a pack passes when it does in both directions."""
    return "passed" if all(direction.passed for direction in directions) else "failed"


class AcceptanceView(Strict):
    """A stored acceptance test; `tested_by` is a client, or null for an operator."""

    verdict: Verdict
    directions: list[Direction]
    taught: int
    steps: int
    learning_rate: float
    seed: int
    tested_by: str | None
    tested_at: UtcTime


class PackView(Strict):
    """An alignment pack as it is listed.

    `acceptance` is the test that stands, null while there is none; `verdicts` counts what clients said.
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
    """A pack that was replaced, deleted, or stored by a client that was revoked."""

    base_model: str
    digest: Digest


class PackList(Strict):
    """All packs of a federation, one per base model, and those that do not count any more."""

    items: list[PackView]
    voided: list[VoidedPack] = Field(default_factory=list)
    next: str | None = None
