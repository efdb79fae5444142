"""Validate alignment packs against their federation's plan. Pure: no database, clock or network.

Reported held-out errors are trusted: any agent of the base model can measure them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.errors import MetadataRefused, UploadConflict
from schemas.maths.adapter import module_of
from schemas.messages.alignment import AlignmentManifest
from schemas.messages.federations import FederationPlan
from schemas.wire.envelope import Envelope
from schemas.wire.errors import TensorSchema
from schemas.wire.header import Expected, Slot

OFFSETS = "offsets"
_FRAMES = frozenset({"F32"})
_RESPONSES = frozenset({"F16", "F32"})
_ALLOWANCE = 2**20
_MOST_EXPANSION = 16


def expected_tensors(plan: FederationPlan, *, has_responses: bool) -> Expected:
    """Return the tensors that a pack may have; the pivot's pack includes its responses to the anchors."""
    r = plan.adapter.rank
    tensors: dict[str, Slot] = {}
    for module in plan.adapter.modules():
        tensors[f"{module}.A"] = Slot((r, None), _FRAMES, optional=True)
        tensors[f"{module}.B"] = Slot((None, r), _FRAMES, optional=True)
        if has_responses:
            tensors[f"{module}.z"] = Slot((None, r), _RESPONSES, optional=True)
            tensors[f"{module}.g"] = Slot((None, r), _RESPONSES, optional=True)
    if has_responses:
        tensors[OFFSETS] = Slot((None, 3), frozenset({"I32"}))
    return tensors


def validate_pack(
    envelope: Envelope, *, federation_id: str, base_model: str, plan: FederationPlan, required_set: str | None
) -> AlignmentManifest:
    """Validate a decoded pack and return its manifest.

    Args:
        required_set: the alignment set to which the pack must belong; None = any.

    Raises:
        TensorSchema: a (block, role) is incomplete, or a tensor is empty.
        ManifestRefused, MetadataRefused: the manifest does not match the tensors or the federation.
    """
    modules = _complete_modules(envelope)
    manifest = envelope.manifest(AlignmentManifest)
    if manifest.federation != federation_id:
        raise _wrong("federation")
    if manifest.base_model != base_model:
        raise _wrong("base_model")
    if manifest.recipe:
        raise _wrong("recipe")
    if required_set is not None and manifest.alignment_set != required_set:
        raise _wrong("alignment_set")
    if not set(manifest.selected) <= modules or len(set(manifest.selected)) != len(manifest.selected):
        raise _wrong("selected")
    aligned = plan.alignment is not None and plan.alignment.frames != "random"
    if not manifest.errors.keys() <= modules or (aligned and manifest.errors.keys() != modules):
        raise _wrong("errors")
    if plan.alignment is not None and aligned:
        limit = plan.alignment.max_error
        if any(manifest.errors[module].b_task >= limit for module in manifest.selected):
            raise _wrong("selected")
    return manifest


def max_decoded_bytes(encoded: int) -> int:
    """Return the largest decoded size of a pack of `encoded` bytes."""
    # Fitted numbers compress little. The limit protects each agent that unpacks the pack.
    return _ALLOWANCE + _MOST_EXPANSION * encoded


def require_replaceable(stored_digest: str, *, is_client: bool) -> None:
    """Require that an operator, not a client, replaces the stored pack.

    Call it before validation: the pack of a slower agent may not fit packs that depend on the stored one.

    Raises:
        UploadConflict: a client sent the pack.
    """
    if is_client:
        raise UploadConflict(accepted=stored_digest)


def _complete_modules(envelope: Envelope) -> set[str]:
    """Return the (block, role)s of a pack, each checked for all its tensors and for matching offsets."""
    names = set(envelope.names)
    empty = sorted(name for name in names if 0 in envelope.shape(name))
    if empty:
        raise TensorSchema(f"tensors without values: {', '.join(empty[:5])}")
    suffixes = {".A", ".B", ".z", ".g"} if OFFSETS in names else {".A", ".B"}
    modules = {module_of(name) for name in names - {OFFSETS}}
    missing = sorted(
        module + suffix for module in modules for suffix in suffixes if module + suffix not in names
    )
    if missing or not modules:
        raise TensorSchema(f"missing: {', '.join(missing[:5])}" if missing else "a pack without frames")
    if OFFSETS in names:
        tokens = _rows(envelope, [OFFSETS]) | _rows(envelope, (f"{module}.z" for module in modules))
        answers = _rows(envelope, (f"{module}.g" for module in modules))
        if len(tokens) != 1 or len(answers) != 1 or max(answers) > max(tokens):
            raise TensorSchema("responses and offsets have different numbers of tokens")
    return modules


def _rows(envelope: Envelope, names: Iterable[str]) -> set[int]:
    return {envelope.shape(name)[0] for name in names}


def _wrong(field: str) -> MetadataRefused:
    return MetadataRefused(
        f"the manifest's {field} does not match the federation; build the pack again", field=field
    )
