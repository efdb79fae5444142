"""Get a federation's frames: from disk, from the coordinator, or by making the pack nobody made yet."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from client_agent.coordinator_api import CoordinatorApi
from client_agent.errors import CoordinatorRefused
from client_agent.model.alignment import aligned_pack, pivot_pack, random_pack
from client_agent.model.frames import Frames, random_frames
from client_agent.model.pack import Pack
from client_agent.round_folder import write_durably
from client_agent.silo import Silo
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.messages.rounds import RoundBrief
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FramesInUse:
    """The frames, and the digest of the pack they came from, or None without alignment."""

    frames: Frames
    pack_digest: str | None


def frames_for(
    brief: RoundBrief, silo: Silo, api: CoordinatorApi, federation: str, folder: Path
) -> FramesInUse:
    """Give the frames of the federation; after this returns the coordinator has our base model's pack.

    Raises:
        PivotMissing, AlignmentImpossible: the pack must be made here and cannot be.
    """
    if brief.adapter.kind == "lora":
        return FramesInUse({}, None)
    if brief.alignment is None:
        return FramesInUse(random_frames(silo.base, brief.adapter, brief.training.seed), None)
    file = folder / "pack.safetensors"
    if not file.exists():
        write_durably(file, _stored_pack(brief.adapter, brief.alignment, silo, api, federation))
    body = file.read_bytes()
    return FramesInUse(Pack.from_body(body).frames(), digest_of(body))


def _stored_pack(
    adapter: AdapterPlan, alignment: AlignmentPlan, silo: Silo, api: CoordinatorApi, federation: str
) -> bytes:
    """Download our base model's pack; when there is none, make and deliver it (and the pivot's before it)."""
    stored = api.pack(federation, silo.base.slug)
    if stored is not None:
        return stored.body
    anchors = api.anchors(federation).anchors[: alignment.anchors]
    if alignment.frames == "random":
        return _delivered(
            random_pack(silo.base, adapter, alignment, federation), silo.base.slug, api, federation
        )
    pivot = silo.model_named(alignment.pivot)
    of_pivot = api.pack(federation, alignment.pivot)
    if of_pivot is None:
        log.info("making the alignment pack of the pivot %s from %d anchors", alignment.pivot, len(anchors))
        made = pivot_pack(pivot, anchors, adapter, alignment, federation)
        pivot_body = _delivered(made, alignment.pivot, api, federation)
    else:
        pivot_body = of_pivot.body
    if silo.base.slug == alignment.pivot:
        return pivot_body
    log.info("aligning %s to %s on %d anchors", silo.base.slug, alignment.pivot, len(anchors))
    made = aligned_pack(silo.base, pivot, Pack.from_body(pivot_body), anchors, adapter, alignment, federation)
    return _delivered(made, silo.base.slug, api, federation)


def _delivered(pack: Pack, base_model: str, api: CoordinatorApi, federation: str) -> bytes:
    """Deliver a pack, and give what is stored: ours, or that of another agent who was faster."""
    body = pack.to_body()
    try:
        api.put_pack(federation, base_model, body)
    except CoordinatorRefused as refusal:
        stored = api.pack(federation, base_model) if refusal.slug == "upload-conflict" else None
        if stored is None:
            raise
        return stored.body
    return body
