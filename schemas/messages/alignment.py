"""Anchor texts, and what is said about alignment packs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from schemas.messages.strict import BaseModelSlug, Digest, Name, Strict, UtcTime
from schemas.messages.updates import Manifest


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


class PackView(Strict):
    """An alignment pack as it is listed."""

    base_model: str
    digest: Digest
    bytes: int
    alignment_set: Digest
    selected: list[str]
    errors: dict[str, PackErrors]
    stored_at: UtcTime


class PackList(Strict):
    """All packs of a federation: one per base model."""

    items: list[PackView]
    next: str | None = None
