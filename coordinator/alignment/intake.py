"""Decide whether a body is an alignment pack of its federation, and is wanted. Pure: what is known comes in.

The held-out errors are believed: any agent of the base model can measure them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.errors import MetadataRefused, UploadConflict
from schemas.maths.adapter import module_of
from schemas.messages.alignment import AlignmentManifest
from schemas.messages.federations import FederationPlan
from schemas.wire.envelope import Envelope
from schemas.wire.header import Expected, Slot
from schemas.wire.refusals import TensorSchema

OFFSETS = "offsets"
_FRAMES = frozenset({"F32"})
_RESPONSES = frozenset({"F16", "F32"})
_ALLOWANCE = 2**20
_MOST_EXPANSION = 16


def expected(plan: FederationPlan, *, with_responses: bool) -> Expected:
    """Say which tensors a pack may have: the pivot's also has its responses to the anchors."""
    r = plan.adapter.rank
    tensors: dict[str, Slot] = {}
    for module in plan.adapter.modules(plan.adapter.roles):
        tensors[f"{module}.A"] = Slot((r, None), _FRAMES, optional=True)
        tensors[f"{module}.B"] = Slot((None, r), _FRAMES, optional=True)
        if with_responses:
            tensors[f"{module}.z"] = Slot((None, r), _RESPONSES, optional=True)
            tensors[f"{module}.g"] = Slot((None, r), _RESPONSES, optional=True)
    if with_responses:
        tensors[OFFSETS] = Slot((None, 3), frozenset({"I32"}))
    return tensors


def judge(
    envelope: Envelope, *, federation_id: str, base_model: str, plan: FederationPlan, wanted_set: str | None
) -> AlignmentManifest:
    """Take a decoded pack apart; `wanted_set` is the alignment set that it must belong to, if any.

    Raises:
        TensorSchema: a (block, role) is incomplete, or a tensor has no values.
        ManifestRefused, MetadataRefused: the manifest does not fit the tensors or the federation.
    """
    modules = _complete_modules(envelope)
    manifest = envelope.manifest(AlignmentManifest)
    if manifest.federation != federation_id:
        raise _wrong("federation")
    if manifest.base_model != base_model:
        raise _wrong("base_model")
    if manifest.recipe:
        raise _wrong("recipe")
    if wanted_set is not None and manifest.alignment_set != wanted_set:
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


def most_decoded(encoded: int) -> int:
    """Return how many bytes a pack of so many encoded bytes may have: numbers that were fitted hardly shrink.

    Every agent of the base model has to unpack it.
    """
    return _ALLOWANCE + _MOST_EXPANSION * encoded


def require_replaceable(known: str, *, by_client: bool) -> None:
    """Check that the pack with the digest `known` is replaced by an operator.

    It comes before all judging: a slower agent's pack may not fit others that were made on the faster one's.

    Raises:
        UploadConflict: it is not.
    """
    if by_client:
        raise UploadConflict(accepted=known)


def _complete_modules(envelope: Envelope) -> set[str]:
    """Name the (block, role)s of a pack, each with all its parts, and responses that fit the offsets."""
    names = set(envelope.names)
    empty = sorted(name for name in names if 0 in envelope.shape(name))
    if empty:
        raise TensorSchema(f"without values: {', '.join(empty[:5])}")
    parts = {".A", ".B", ".z", ".g"} if OFFSETS in names else {".A", ".B"}
    modules = {module_of(name) for name in names - {OFFSETS}}
    lacking = sorted(module + part for module in modules for part in parts if module + part not in names)
    if lacking or not modules:
        raise TensorSchema(f"missing: {', '.join(lacking[:5])}" if lacking else "a pack without frames")
    if OFFSETS in names:
        tokens = _rows(envelope, [OFFSETS]) | _rows(envelope, (f"{module}.z" for module in modules))
        answers = _rows(envelope, (f"{module}.g" for module in modules))
        if len(tokens) != 1 or len(answers) != 1 or max(answers) > max(tokens):
            raise TensorSchema("responses and offsets speak of different tokens")
    return modules


def _rows(envelope: Envelope, names: Iterable[str]) -> set[int]:
    return {envelope.shape(name)[0] for name in names}


def _wrong(field: str) -> MetadataRefused:
    return MetadataRefused(f"the manifest's {field} does not fit", field=field)
