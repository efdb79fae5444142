"""Get a federation's frames: from disk, from the coordinator, or by making the pack nobody made yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_agent.coordinator_api import CoordinatorApi
from client_agent.errors import AlignmentImpossible, CoordinatorRefused, PackRefused, Stopped
from client_agent.model.alignment import aligned_pack, pivot_pack, random_pack
from client_agent.model.frames import Frames, random_frames
from client_agent.model.loading import BaseModel
from client_agent.model.pack import Pack
from client_agent.round_folder import write_durably
from client_agent.silo import Silo
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.messages.rounds import RoundBrief
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_UNKNOWN_CALLER = 401
_CONFLICT = 409
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


def deliver_kept(base_model: str, api: CoordinatorApi, federation: str, folder: Path) -> None:
    """Deliver the pack that this machine has once more: the coordinator has lost it.

    Raises:
        PackRefused: it has another one by now, or does not take ours.
    """
    try:
        api.put_pack(federation, base_model, (folder / _PACK).read_bytes())
    except CoordinatorRefused as refusal:
        if refusal.status == _UNKNOWN_CALLER:
            raise
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
        ours = self.silo.model_named(slug)  # dense: everybody with these weights will use the pack
        anchors = self.api.anchors(self.federation).anchors[: self.alignment.anchors]
        of_pivot = self._pivot_pack(anchors)
        if slug == self.alignment.pivot:
            return of_pivot
        pivot = self.silo.model_named(self.alignment.pivot)
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

    def _pivot_pack(self, anchors: Sequence[Anchor]) -> bytes:
        slug = self.alignment.pivot
        stored = self.api.pack(self.federation, slug)
        if stored is not None:
            return stored.body
        pivot = self.silo.model_named(slug)
        progress = self._progress(slug)
        return self._deliver(
            slug,
            lambda: pivot_pack(
                pivot, anchors, self.adapter, self.alignment, self.federation, progress=progress
            ),
        )

    def _deliver(self, base_model: str, make: Callable[[], Pack]) -> bytes:
        """Make a pack once and deliver it; give what is stored: ours, or that of a faster agent."""
        file = self.folder / f"made-{base_model}.safetensors"
        if not file.exists():
            log.info("making the alignment pack of %s", base_model)
            write_durably(file, make().to_body())
        body = file.read_bytes()
        try:
            self.api.put_pack(self.federation, base_model, body)
        except CoordinatorRefused as refusal:
            if refusal.status == _UNKNOWN_CALLER:  # nothing was said about the pack
                raise
            stored = self.api.pack(self.federation, base_model) if refusal.status == _CONFLICT else None
            if stored is None:
                raise PackRefused(base_model, refusal) from refusal
            return stored.body
        file.unlink()
        return body

    def _progress(self, base_model: str) -> Callable[[str, int, int], None]:
        """Log a few lines per pass over the anchors, and look whether to stop."""

        def show(what: str, done: int, total: int) -> None:
            if self.stop():
                raise Stopped
            if done == total or done % max(1, total // 3) == 0:
                log.info("%s: %s, %d of %d", base_model, what, done, total)

        return show
