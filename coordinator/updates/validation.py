"""Decide whether a decoded update is one to keep. Pure: a checked body and the round's terms in, facts out.

The order of the questions is the order in which faults are told: norm, signature, manifest, base. Streams
mean nothing without their manifest, so of a body of streams manifest, base, recipe and reference come first.
"""

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
from schemas.messages.recipes import Recipe, SentRecipe
from schemas.messages.updates import SignatureManifest, UpdateManifest
from schemas.wire.envelope import Envelope, slots
from schemas.wire.header import Expected, Slot
from schemas.wire.refusals import RecipeRefused, TensorSchema
from schemas.wire.streams import stream_slots

_PIECE_VALUES = 2**18
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True, slots=True)
class Address:
    """Whom a body is from, for which round; `pack` is the digest of the client's alignment pack or None."""

    federation: str
    round: int
    client: str
    pack: str | None


@dataclass(frozen=True, slots=True)
class UpdateSpec:
    """What an update must fit.

    Attributes:
        base: the digest of the weights that the client was served for the round.
        least_rank: how few ranks it may have; None = it has those of the layout.
        signature: how the plan wants signatures.
        recipe: the plan's; dense bodies are taken whatever it says.
        seed: the plan's, from which the start of an ordinary LoRA is drawn.
    """

    address: Address
    base: str
    layout: Layout
    signature: SignaturePlan
    needs_signature: bool
    limits: LimitsPlan
    recipe: Recipe
    seed: int
    least_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        norm: L2 over the adapter tensors together, as sent.
        scale: what the state has learnt counts so often: 1, or what brings it down to `limits.clip_norm`.
        signature: None = there is none.
    """

    norm: float
    scale: float
    signature: Sketch | None
    examples: int

    @property
    def clipped(self) -> bool:
        """Whether the state was scaled down."""
        return self.scale != 1.0


def expected_tensors(layout: Layout, *, needs_signature: bool) -> Expected:
    """Say which tensors an update has; the length of the signature is judged with its values."""
    return {**slots(layout), **_signature_slot(needs_signature)}


def expected_streams(*, needs_signature: bool) -> Expected:
    """Say which tensors an update has that is written in another recipe than dense."""
    return {**stream_slots(), **_signature_slot(needs_signature)}


def _signature_slot(needed: bool) -> Expected:
    return {SIGNATURE: Slot((None,), frozenset({"F32"}), optional=not needed)}


def is_dense(envelope: Envelope, layout: Layout) -> bool:
    """Say whether the tensors of the layout came, not streams."""
    return all(name in layout or name == SIGNATURE for name in envelope.names)


def check_recipe(envelope: Envelope, terms: UpdateSpec, against: str | None) -> None:
    """Make sure that streams may be decoded as the plan's recipe says, whose reference has this digest.

    Raises:
        ManifestRefused, MetadataRefused, BaseMismatch, RecipeRefused, ReferenceMismatch: in this order.
    """
    manifest = envelope.manifest(UpdateManifest)
    check_address(manifest, terms.address, dense=False)
    if manifest.base != terms.base:
        raise BaseMismatch(expected=terms.base)
    try:
        sent = SentRecipe.model_validate(manifest.recipe)
    except ValidationError as error:
        raise RecipeRefused("the manifest's recipe is none that there is") from error
    if sent.is_dense or sent.recipe != terms.recipe:
        raise RecipeRefused("streams are written in the plan's recipe; dense bodies are plain tensors")
    is_missing = against is None and terms.recipe.reference != "none"
    if sent.against != against or is_missing:
        raise ReferenceMismatch(expected=against)


def judge(envelope: Envelope, norm: float, terms: UpdateSpec) -> Verdict:
    """Take a decoded update apart, whose adapter state has this L2 norm; nothing is scaled yet.

    Raises:
        NormExceeded, SignatureRefused, ManifestRefused, MetadataRefused, BaseMismatch: in this order.
    """
    if norm > terms.limits.max_norm:
        raise NormExceeded(norm=norm, limit=terms.limits.max_norm)
    vector = signature_of(envelope, terms.signature)
    manifest = envelope.manifest(UpdateManifest)
    check_address(manifest, terms.address, dense=is_dense(envelope, terms.layout))
    if manifest.base != terms.base:
        raise BaseMismatch(expected=terms.base)
    signature = None
    if vector is not None:
        signature = Sketch(vector, manifest.signature_reliability, manifest.signature_epsilon)
    return Verdict(norm=norm, scale=1.0, signature=signature, examples=manifest.examples)


def signature_of(envelope: Envelope, plan: SignaturePlan) -> NDArray[np.float32] | None:
    """Read the signature, (dim,) float32; None when there is none.

    Raises:
        SignatureRefused: another length; all zeros, with which nothing can be compared; or, where the plan
            has differential privacy, longer than the clip: whoever made it does not clip.
    """
    if SIGNATURE not in envelope.names:
        return None
    signature = envelope.read_float32(SIGNATURE)
    if signature.shape != (plan.dim,):
        raise SignatureRefused(f"a signature has {plan.dim} numbers here", dim=plan.dim)
    if not signature.any():
        raise SignatureRefused("a signature of zeros resembles nothing")
    length = float(np.linalg.norm(signature.astype(np.float64)))
    if plan.dp is not None and length > plan.clip * _ROUNDING:
        raise SignatureRefused(
            f"with differential privacy a signature is no longer than {plan.clip:g}", clip=plan.clip
        )
    return signature


def check_address(
    manifest: UpdateManifest | SignatureManifest, wanted: Address, *, dense: bool = True
) -> None:
    """Check that a manifest speaks of this federation, round, client and pack, and of no recipe if `dense`.

    Raises:
        MetadataRefused: `field` names the first member that does not.
    """
    pairs = {
        "federation": (manifest.federation, wanted.federation),
        "round": (manifest.round, wanted.round),
        "client": (manifest.client, wanted.client),
        "pack": (manifest.pack, wanted.pack),
        "recipe": (manifest.recipe if dense else {}, {}),
    }
    for field, (said, meant) in pairs.items():
        if said != meant:
            raise MetadataRefused(f"the manifest's {field} is not that of this request", field=field)


def state(envelope: Envelope, layout: Layout) -> Iterator[NDArray[np.float32]]:
    """Give the adapter state, float32 in the order of the layout, in pieces of a mebibyte at most."""
    for name in layout:
        values = envelope.read_float32(name).reshape(-1)
        for at in range(0, values.size, _PIECE_VALUES):
            yield values[at : at + _PIECE_VALUES]


def sent_layout(envelope: Envelope, layout: Layout, least: int) -> Layout:
    """Give the layout that an update has: that of the plan, at one rank from `least` to the plan's.

    Raises:
        TensorSchema: its ranks differ, or it has fewer or more of them.
    """
    first, shape = next(iter(layout.items()))
    axis = 0 if factor_of(first) == "A" else 1
    rank, most = envelope.shape(first)[axis], shape[axis]
    sent = at_rank(layout, rank)
    if not least <= rank <= most or any(envelope.shape(name) != sent[name] for name in layout):
        raise TensorSchema(f"all tensors have one rank here, from {least} to {most}")
    return sent
