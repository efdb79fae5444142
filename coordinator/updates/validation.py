"""Validate a decoded update against the spec of its round. Pure: no database, clock or network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from coordinator.errors import (
    BaseMismatch,
    MetadataRefused,
    NormExceeded,
    ReferenceMismatch,
    SignatureRefused,
)
from coordinator.strategies.base import Sketch
from schemas.maths.adapter import SIGNATURE, Layout, at_rank, factor_of
from schemas.messages.federations import LimitsPlan, SignaturePlan
from schemas.messages.recipes import Recipe, Reference, SentRecipe
from schemas.messages.updates import SignatureManifest, UpdateManifest
from schemas.wire import outputs
from schemas.wire.envelope import Envelope, slots
from schemas.wire.errors import RecipeRefused, TensorSchema
from schemas.wire.header import Expected, Slot
from schemas.wire.outputs import Outputs
from schemas.wire.streams import stream_slots

_PIECE_VALUES = 2**18
# Clipping in float32 may leave a norm slightly above the limit.
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True, slots=True)
class Address:
    """The sender and round of a body; `pack` is the digest of the client's alignment pack, if any."""

    federation: str
    round: int
    client: str
    pack: str | None


@dataclass(frozen=True, slots=True)
class UpdateSpec:
    """The checks that an update must pass.

    Attributes:
        base: digest of the weights that the client was served for the round.
        sketch: the plan's settings of sketches.
        recipe: the plan's recipe; dense bodies are accepted with any recipe.
        seed: the seed of an ordinary LoRA's start values: the plan's, or the round's own if it restarts.
        restarts: whether clients restart from new values: no update is then a difference to the last one.
        least_rank: smallest accepted rank; None = the rank of the layout only.
        distils: whether the update may carry outputs of the client's model.
        private: whether training is differentially private, so that the update must say what it has cost.
    """

    address: Address
    base: str
    layout: Layout
    sketch: SignaturePlan
    needs_sketch: bool
    limits: LimitsPlan
    recipe: Recipe
    seed: int
    restarts: bool = False
    least_rank: int | None = None
    distils: bool = False
    private: bool = False

    @property
    def reference(self) -> Reference:
        kind = self.recipe.reference
        return "served" if self.restarts and kind == "own_last" else kind


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The measured facts of an accepted update.

    Attributes:
        norm: L2 norm over all adapter tensors, as sent.
        scale: factor of the state's distance from its start: 1, or less to bring it to `limits.clip_norm`.
        sketch: None = the update has none.
        training_epsilon: the privacy cost of the client's training so far; None = training is not private.
    """

    norm: float
    scale: float
    sketch: Sketch | None
    examples: int
    training_epsilon: float | None = None

    @property
    def clipped(self) -> bool:
        return self.scale != 1.0


def expected_tensors(layout: Layout, *, needs_sketch: bool, distils: bool = False) -> Expected:
    """Return the tensors of a dense update. `read_sketch` checks the length of the sketch."""
    return {**slots(layout), **_sketch_slot(needs_sketch), **(outputs.slots() if distils else {})}


def expected_streams(*, needs_sketch: bool, distils: bool = False) -> Expected:
    return {**stream_slots(), **_sketch_slot(needs_sketch), **(outputs.slots() if distils else {})}


def _sketch_slot(needed: bool) -> Expected:
    return {SIGNATURE: Slot((None,), frozenset({"F32"}), optional=not needed)}


def is_dense(envelope: Envelope, layout: Layout) -> bool:
    beside = {SIGNATURE, outputs.BYTES, outputs.SHARES}
    return all(name in layout or name in beside for name in envelope.names)


def check_recipe(envelope: Envelope, spec: UpdateSpec) -> SentRecipe:
    """Validate the manifest of streams before they are decoded, and return their recipe.

    Streams cannot be decoded without their manifest, so it is checked before norm and sketch.

    Raises:
        ManifestRefused, MetadataRefused, BaseMismatch, RecipeRefused: in this order.
    """
    manifest = envelope.manifest(UpdateManifest)
    check_address(manifest, spec.address, dense=False)
    if manifest.base != spec.base:
        raise BaseMismatch(expected=spec.base)
    try:
        recipe = SentRecipe.model_validate(manifest.recipe)
    except ValidationError as error:
        raise RecipeRefused("the manifest's recipe is unknown; use the recipe of the plan") from error
    if recipe.is_dense or recipe.recipe != spec.recipe:
        raise RecipeRefused("the streams are not in the plan's recipe; encode them with it, or send tensors")
    if spec.least_rank is None and recipe.rank is not None:
        raise RecipeRefused("the recipe names a rank, which the plan fixes; leave it out")
    return recipe


def check_reference(recipe: SentRecipe, spec: UpdateSpec, reference: str | None) -> None:
    """Raise unless streams are differences to `reference`, the digest that the coordinator expects.

    Raises:
        ReferenceMismatch: they are not.
    """
    is_missing = reference is None and spec.recipe.reference != "none"
    if recipe.against != reference or is_missing:
        raise ReferenceMismatch(expected=reference)


def coded_layout(recipe: SentRecipe, layout: Layout, least: int) -> Layout:
    """Return the layout of streams: the plan's, at the rank that the recipe names.

    Raises:
        RecipeRefused: it names none from `least` to the plan's.
    """
    first, shape = next(iter(layout.items()))
    most = shape[0 if factor_of(first) == "A" else 1]
    if recipe.rank is None or not least <= recipe.rank <= most:
        raise RecipeRefused(f"the recipe must name the rank of A and B; send one from {least} to {most}")
    return at_rank(layout, recipe.rank)


def validate_update(envelope: Envelope, norm: float, spec: UpdateSpec) -> ValidationResult:
    """Validate a decoded update whose adapter state has the L2 norm `norm`; nothing is clipped yet.

    Raises:
        NormExceeded, SignatureRefused, TensorSchema, ManifestRefused, MetadataRefused, BaseMismatch: in this
            order.
    """
    if norm > spec.limits.max_norm:
        raise NormExceeded(norm=norm, limit=spec.limits.max_norm)
    vector = read_sketch(envelope, spec.sketch)
    # Validated here, so that aggregation need not check them again.
    Outputs.read(envelope)
    manifest = envelope.manifest(UpdateManifest)
    check_address(manifest, spec.address, dense=is_dense(envelope, spec.layout))
    if manifest.base != spec.base:
        raise BaseMismatch(expected=spec.base)
    sketch = None
    if vector is not None:
        sketch = Sketch(vector, manifest.signature_reliability, manifest.signature_epsilon)
    if spec.private and manifest.training_epsilon is None:
        raise MetadataRefused(
            "the plan has privacy.training, and the manifest has no training_epsilon, the budget that the "
            "training has spent; install an agent that trains with differential privacy",
            field="training_epsilon",
        )
    return ValidationResult(
        norm=norm,
        scale=1.0,
        sketch=sketch,
        examples=manifest.examples,
        training_epsilon=manifest.training_epsilon if spec.private else None,
    )


def read_sketch(envelope: Envelope, plan: SignaturePlan) -> NDArray[np.float32] | None:
    """Read the sketch, (dim,) float32; None when the body has none.

    Raises:
        SignatureRefused: the length differs from the plan's; all values are zero, so that no cosine is
            defined; or, under differential privacy, the norm exceeds the clip.
    """
    if SIGNATURE not in envelope.names:
        return None
    sketch = envelope.read_float32(SIGNATURE)
    if sketch.shape != (plan.dim,):
        raise SignatureRefused(
            f"the signature has the wrong length; send {plan.dim} numbers, as the plan says", dim=plan.dim
        )
    if not sketch.any():
        raise SignatureRefused("the signature is all zeros; send one with a direction, or none")
    norm = float(np.linalg.norm(sketch.astype(np.float64)))
    if plan.dp is not None and norm > plan.clip * _ROUNDING:
        raise SignatureRefused(
            f"the signature is longer than {plan.clip:g}; clip it, as differential privacy requires",
            clip=plan.clip,
        )
    return sketch


def check_address(
    manifest: UpdateManifest | SignatureManifest, expected: Address, *, dense: bool = True
) -> None:
    """Check a manifest's federation, round, client and pack, and that it has no recipe if `dense`.

    Raises:
        MetadataRefused: `field` names the first member that differs.
    """
    pairs = {
        "federation": (manifest.federation, expected.federation),
        "round": (manifest.round, expected.round),
        "client": (manifest.client, expected.client),
        "pack": (manifest.pack, expected.pack),
        "recipe": (manifest.recipe if dense else {}, {}),
    }
    for field, (value, required) in pairs.items():
        if value != required:
            raise MetadataRefused(
                f"the manifest's {field} differs from this request's; write the body again", field=field
            )


def state_pieces(envelope: Envelope, layout: Layout) -> Iterator[NDArray[np.float32]]:
    for name in layout:
        values = envelope.read_float32(name).reshape(-1)
        for offset in range(0, values.size, _PIECE_VALUES):
            yield values[offset : offset + _PIECE_VALUES]


def sent_layout(envelope: Envelope, layout: Layout, least: int) -> Layout:
    """Return the layout of an update: the plan's, at one rank from `least` to the plan's.

    Raises:
        TensorSchema: the ranks of its tensors differ, or are out of this range.
    """
    first, shape = next(iter(layout.items()))
    axis = 0 if factor_of(first) == "A" else 1
    rank, most = envelope.shape(first)[axis], shape[axis]
    ranked = at_rank(layout, rank)
    if not least <= rank <= most or any(envelope.shape(name) != ranked[name] for name in layout):
        raise TensorSchema(f"the ranks of the tensors do not fit; send one rank from {least} to {most}")
    return ranked
