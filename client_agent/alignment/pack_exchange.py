"""Get a federation's frames: from disk, from the coordinator, or by making the pack nobody made yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_agent.adapters.frames import Frames, random_frames
from client_agent.alignment.fit_packs import aligned_pack, pivot_pack, random_pack
from client_agent.alignment.pack import Pack
from client_agent.errors import (
    AlignmentImpossible,
    CoordinatorRefused,
    PackRefused,
    PivotPackAwaited,
    Stopped,
)
from client_agent.model.loading import BaseModel
from client_agent.storage.archive import move_aside
from client_agent.storage.files import write_durably
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.messages.rounds import RoundBrief
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_UNKNOWN_CALLER = 401
_CONFLICT = 409
_UNFIT = 422
_PIVOT_PACK_MISSING = "pivot-pack-missing"
_PACK = "pack.safetensors"


@dataclass(frozen=True, slots=True)
class FramesInUse:
    """The frames, and the digest of the pack they came from, or None without alignment."""

    frames: Frames
    pack_digest: str | None


def frames_for(
    brief: RoundBrief,
    silo: Silo,
    api: CoordinatorApi,
    federation: str,
    folder: Path,
    stop: Callable[[], bool],
) -> FramesInUse:
    """Give the frames of the federation; after this returns the coordinator has our base model's pack.

    Raises:
        PivotPackAwaited: the pivot's pack comes first, and is another's to make.
        PivotMissing, AlignmentImpossible: the pack must be made here and cannot be.
        PackRefused: the coordinator does not take the pack that was made.
        Stopped: `stop` said so; what was finished before is not made again.
    """
    if brief.alignment is not None and not (folder / _PACK).exists():
        making = _Making(silo, api, federation, folder, brief.adapter, brief.alignment, stop)
        write_durably(folder / _PACK, making.our_pack())
    return frames_kept(brief, silo.base, folder)


def frames_kept(brief: RoundBrief, base: BaseModel, folder: Path) -> FramesInUse:
    """Give the frames that this machine has: those of the pack in the folder, or random ones.

    Raises:
        AlignmentImpossible: the pack is not here, or is not one of this base model.
    """
    if brief.adapter.kind == "lora":
        return FramesInUse({}, None)
    if brief.alignment is None:
        return FramesInUse(random_frames(base, brief.adapter, brief.training.seed), None)
    file = folder / _PACK
    if not file.exists():
        raise AlignmentImpossible(f"{file} is missing; `tessera agent align` fetches it")
    body = file.read_bytes()
    return FramesInUse(Pack.from_body(body).frames(base), digest_of(body))


def drop_ended(base_model: str, api: CoordinatorApi, federation: str, folder: Path) -> bool:
    """Set the pack that this machine has aside if it ended; return whether it did.

    It did when the coordinator has another one, or says that ours does not count any more. One that the
    coordinator has merely lost is kept, and delivered again.
    """
    file = folder / _PACK
    if not file.exists():
        return False
    kept, packs = digest_of(file.read_bytes()), api.packs(federation)
    current = next((pack.digest for pack in packs.items if pack.base_model == base_model), None)
    is_voided = any((pack.base_model, pack.digest) == (base_model, kept) for pack in packs.voided)
    if current == kept or (current is None and not is_voided):
        return False
    log.warning("the alignment pack of %s does not count any more: begins anew under the next", base_model)
    move_aside(file, "an alignment pack that ended")
    return True


def deliver_kept(base_model: str, pivot: str, api: CoordinatorApi, federation: str, folder: Path) -> None:
    """Deliver the pack that this machine has once more: the coordinator has lost it.

    Raises:
        PivotPackAwaited: it has lost the pivot's as well, which another client delivers again.
        PackRefused: it has another one by now, or does not take ours.
    """
    try:
        api.put_pack(federation, base_model, (folder / _PACK).read_bytes())
    except CoordinatorRefused as refusal:
        if refusal.status == _UNKNOWN_CALLER:
            raise
        if refusal.slug == _PIVOT_PACK_MISSING:
            raise PivotPackAwaited(federation, pivot) from refusal
        raise PackRefused(base_model, refusal) from refusal


@dataclass(frozen=True, slots=True)
class _Making:
    """What making packs needs."""

    silo: Silo
    api: CoordinatorApi
    federation: str
    folder: Path
    adapter: AdapterPlan
    alignment: AlignmentPlan
    stop: Callable[[], bool]

    def our_pack(self) -> bytes:
        """Download our base model's pack; when there is none, make and deliver it."""
        slug = self.silo.base.slug
        stored = self.api.pack(self.federation, slug)
        if stored is not None:
            return stored.body
        if self.alignment.frames == "random":
            return self._deliver(
                slug, lambda: random_pack(self.silo.base, self.adapter, self.alignment, self.federation)
            )
        if slug == self.alignment.pivot:
            return self._pivot_pack()
        stored = self.api.pack(self.federation, self.alignment.pivot)
        if stored is None:
            raise PivotPackAwaited(self.federation, self.alignment.pivot)
        of_pivot = stored.body
        self._forget_misfit(slug, Pack.from_body(of_pivot).manifest.alignment_set)
        ours = self.silo.model_named(slug)  # dense: everybody with these weights will use the pack
        pivot = self.silo.model_named(self.alignment.pivot)
        anchors = self._anchors()
        return self._deliver(
            slug,
            lambda: aligned_pack(
                ours,
                pivot,
                Pack.from_body(of_pivot),
                anchors,
                self.adapter,
                self.alignment,
                self.federation,
                progress=self._progress(slug),
            ),
        )

    def _anchors(self) -> Sequence[Anchor]:
        return self.api.anchors(self.federation).anchors[: self.alignment.anchors]

    def _forget_misfit(self, slug: str, alignment_set: str) -> None:
        """Remove a pack of ours that was made on another pack of the pivot than the one that counts."""
        file = self._made(slug)
        if file.exists() and Pack.from_body(file.read_bytes()).manifest.alignment_set != alignment_set:
            file.unlink()

    def _made(self, base_model: str) -> Path:
        return self.folder / f"made-{base_model}.safetensors"

    def _pivot_pack(self) -> bytes:
        slug = self.alignment.pivot
        pivot, anchors = self.silo.model_named(slug), self._anchors()
        progress = self._progress(slug)
        return self._deliver(
            slug,
            lambda: pivot_pack(
                pivot, anchors, self.adapter, self.alignment, self.federation, progress=progress
            ),
        )

    def _deliver(self, base_model: str, make: Callable[[], Pack]) -> bytes:
        """Make a pack once and deliver it; give what is stored: ours, or that of a faster agent."""
        file = self._made(base_model)
        if not file.exists():
            log.info("making the alignment pack of %s", base_model)
            write_durably(file, make().to_body())
        body = file.read_bytes()
        try:
            self.api.put_pack(self.federation, base_model, body)
        except CoordinatorRefused as refusal:
            if refusal.status == _UNKNOWN_CALLER:  # nothing was said about the pack
                raise
            if refusal.slug == _PIVOT_PACK_MISSING or self._pivot_was_replaced(refusal, body):
                raise PivotPackAwaited(self.federation, self.alignment.pivot) from refusal
            stored = self.api.pack(self.federation, base_model) if refusal.status == _CONFLICT else None
            if stored is None:
                raise PackRefused(base_model, refusal) from refusal
            return stored.body
        file.unlink()
        return body

    def _pivot_was_replaced(self, refusal: CoordinatorRefused, body: bytes) -> bool:
        """Whether the pivot's pack is no longer the one that a refused pack was made on."""
        if refusal.status != _UNFIT or self.alignment.frames == "random":
            return False
        stored = self.api.pack(self.federation, self.alignment.pivot)
        if stored is None:
            return True
        made_on = Pack.from_body(body).manifest.alignment_set
        return Pack.from_body(stored.body).manifest.alignment_set != made_on

    def _progress(self, base_model: str) -> Callable[[str, int, int], None]:
        """Log a few lines per pass over the anchors, and look whether to stop."""

        def show(what: str, done: int, total: int) -> None:
            if self.stop():
                raise Stopped
            if done == total or done % max(1, total // 3) == 0:
                log.info("%s: %s, %d of %d", base_model, what, done, total)

        return show
