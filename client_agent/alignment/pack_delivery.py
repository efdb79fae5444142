"""Deliver an alignment pack that this silo has built, and archive a voided one. Needs no torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorRefused, PackRefused, PivotPackAwaited
from client_agent.storage.archive import move_aside
from client_agent.transport.client import CoordinatorApi
from schemas.messages.federations import AlignmentPlan
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

PACK = "pack.safetensors"
"""The file of the pack in use, in the folder of a federation."""

_UNKNOWN_CALLER = 401
_UNFIT = 422
_PIVOT_PACK_MISSING = "pivot-pack-missing"
_UPLOAD_CONFLICT = "upload-conflict"


def archive_voided_pack(base_model: str, api: CoordinatorApi, federation_id: str, folder: Path) -> bool:
    """Archive the stored pack if it is no longer valid; return whether it was archived.

    A pack is no longer valid if the coordinator has another pack or lists this one as voided. A pack that the
    coordinator lost is still valid, and is delivered again.
    """
    file = folder / PACK
    if not file.exists():
        return False
    stored, packs = digest_of(file.read_bytes()), api.packs(federation_id)
    current = next((pack.digest for pack in packs.items if pack.base_model == base_model), None)
    is_voided = any((pack.base_model, pack.digest) == (base_model, stored) for pack in packs.voided)
    # No current pack and no voided one: the coordinator was restored from an older backup.
    if current == stored or (current is None and not is_voided):
        return False
    log.warning("alignment pack: voided (%s); training restarts under the next pack", base_model)
    move_aside(file, "a voided alignment pack")
    return True


def redeliver_pack(
    base_model: str, pivot: str, api: CoordinatorApi, federation_id: str, folder: Path
) -> None:
    """Deliver the stored pack again after the coordinator lost it.

    Raises:
        PivotPackAwaited: the coordinator also lost the pivot's pack, which another client delivers.
        PackRefused: the coordinator has another pack, or refuses this one.
    """
    try:
        api.put_pack(federation_id, base_model, (folder / PACK).read_bytes())
    except CoordinatorRefused as refusal:
        if refusal.status == _UNKNOWN_CALLER:
            raise
        if refusal.slug == _PIVOT_PACK_MISSING:
            raise PivotPackAwaited(federation_id, pivot) from refusal
        raise PackRefused(base_model, refusal) from refusal


@dataclass(frozen=True, slots=True)
class PackDelivery:
    """Delivers the packs that this silo has built; `folder` is that of the federation."""

    api: CoordinatorApi
    federation: str
    folder: Path
    alignment: AlignmentPlan

    def built_file(self, base_model: str) -> Path:
        """Return the file of a pack that was built and is not delivered yet."""
        return self.folder / f"made-{base_model}.safetensors"

    def deliver(self, base_model: str) -> bytes:
        """Deliver a built pack; return the stored body, which may be another agent's.

        Raises:
            PivotPackAwaited: the pivot's pack is missing, or is another than that of the built pack.
            PackRefused: the coordinator refuses the built pack.
        """
        file = self.built_file(base_model)
        body = file.read_bytes()
        # The other pack may be voided between the conflict and its download; then there is room for this one.
        while (conflict := self._put(base_model, body)) is not None:
            if (stored := self.api.pack(self.federation, base_model)) is not None:
                return stored.body
            log.info(
                "alignment pack: the pack of another client was voided (%s): %s; delivering again",
                base_model,
                conflict,
            )
        # Only now: until the coordinator has it, a restart delivers this file again.
        file.unlink()
        return body

    def _put(self, base_model: str, body: bytes) -> CoordinatorRefused | None:
        """Deliver a pack; return the refusal if another one was stored before."""
        try:
            self.api.put_pack(self.federation, base_model, body)
        except CoordinatorRefused as refusal:
            if refusal.status == _UNKNOWN_CALLER:  # not a verdict on the pack
                raise
            # The pack itself is fine, so this is no refusal to a person: it is fitted again when the pivot's
            # is there.
            if refusal.slug == _PIVOT_PACK_MISSING or self._pivot_was_replaced(refusal, body):
                raise PivotPackAwaited(self.federation, self.alignment.pivot) from refusal
            if refusal.slug == _UPLOAD_CONFLICT:
                return refusal
            raise PackRefused(base_model, refusal) from refusal
        return None

    def _pivot_was_replaced(self, refusal: CoordinatorRefused, body: bytes) -> bool:
        """Whether the pivot's current pack differs from the pack that a refused pack was fitted to."""
        if refusal.status != _UNFIT or self.alignment.frames == "random":
            return False
        stored = self.api.pack(self.federation, self.alignment.pivot)
        if stored is None:
            return True
        fitted_to = Pack.from_body(body).manifest.alignment_set
        return Pack.from_body(stored.body).manifest.alignment_set != fitted_to
