"""Obtain a federation's frames: from disk, from the coordinator, or by building the base model's pack."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client_agent.adapters.frames import Frames, random_frames
from client_agent.alignment.fit_packs import aligned_pack, pivot_pack, random_pack
from client_agent.alignment.pack import Pack
from client_agent.alignment.pack_delivery import PACK, PackDelivery
from client_agent.alignment.pivot_wait import PivotWait
from client_agent.errors import (
    AgentError,
    AlignmentImpossible,
    PivotPackAwaited,
    Stopped,
)
from client_agent.model.loading import BaseModel
from client_agent.storage.files import write_durably
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.messages.rounds import RoundBrief
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_LOOK_SECONDS = 15.0
"""How often an agent that builds a pack asks whether another agent's is stored."""


@dataclass(frozen=True, slots=True)
class FramesInUse:
    """Frames, and the digest of their alignment pack; None without alignment."""

    frames: Frames
    pack_digest: str | None


def frames_for(
    brief: RoundBrief,
    silo: Silo,
    api: CoordinatorApi,
    federation_id: str,
    folder: Path,
    stop: Callable[[], bool],
    wait: PivotWait,
) -> FramesInUse:
    """Return the federation's frames, and make sure that the coordinator has this base model's pack.

    Clients of the pivot's base model build the pivot's pack; the first one that is stored is everybody's.

    Raises:
        PivotPackAwaited: the pivot's pack does not exist yet, and another client builds it.
        PivotMissing, AlignmentImpossible: the pack cannot be built on this machine.
        PackRefused: the coordinator refuses the built pack.
        Stopped: `stop` returned true; a finished pack is not built again.
    """
    # A stored pack is used to the end, since P and Q mean something in its frames only.
    if brief.alignment is not None and not (folder / PACK).exists():
        builder = _PackBuilder(silo, api, federation_id, folder, brief.adapter, brief.alignment, stop, wait)
        write_durably(folder / PACK, builder.fetch_or_build())
        if brief.alignment.require_passed and silo.base.slug != brief.alignment.pivot:
            log.warning(
                "alignment pack: the plan requires a passed test; until a client of this base model has run "
                "`tessera agent alignment-test`, it shares with the identical base model only"
            )
    return stored_frames(brief, silo.base, folder)


def stored_frames(brief: RoundBrief, base: BaseModel, folder: Path) -> FramesInUse:
    """Return the frames on this machine: those of the stored pack, or random ones without alignment.

    Raises:
        AlignmentImpossible: the pack is missing, or belongs to another base model.
    """
    if brief.adapter.kind == "lora":
        return FramesInUse({}, None)
    if brief.alignment is None:
        return FramesInUse(random_frames(base, brief.adapter, brief.training.seed), None)
    file = folder / PACK
    if not file.exists():
        raise AlignmentImpossible(f"{file} is missing; run `tessera agent align` to fetch it")
    body = file.read_bytes()
    return FramesInUse(Pack.from_body(body).frames(base), digest_of(body))


@dataclass(frozen=True, slots=True)
class _PackBuilder:
    """Builds and delivers this base model's alignment pack."""

    silo: Silo
    api: CoordinatorApi
    federation: str
    folder: Path
    adapter: AdapterPlan
    alignment: AlignmentPlan
    stop: Callable[[], bool]
    wait: PivotWait

    def fetch_or_build(self) -> bytes:
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
        pivots_pack = self._awaited_pivot_pack()
        # A pack built before a restart may be fitted to a pivot's pack that was voided meanwhile.
        self._delete_outdated(slug, Pack.from_body(pivots_pack).manifest.alignment_set)
        base = self.silo.model_named(slug)  # dense, since all clients with these weights use the pack
        pivot = self.silo.model_named(self.alignment.pivot)
        anchors = self._anchors()
        return self._deliver(
            slug,
            lambda: aligned_pack(
                base,
                pivot,
                Pack.from_body(pivots_pack),
                anchors,
                self.adapter,
                self.alignment,
                self.federation,
                progress=self._progress(slug),
            ),
        )

    def _awaited_pivot_pack(self) -> bytes:
        """Return the pivot's pack, built here only if the plan allows that and the wait is over.

        Raises:
            PivotPackAwaited: it is not stored, and another client or an operator makes it.
        """
        pivot = self.alignment.pivot
        stored = self.api.pack(self.federation, pivot)
        # Clients of the pivot have its model loaded; others would have to download a second model.
        if stored is None and not (self.alignment.pivot_pack_by_any_client and self.wait.is_over):
            raise PivotPackAwaited(self.federation, pivot)
        if stored is None:
            log.warning("alignment pack: no client made the pivot's in time; this agent makes it")
        body = stored.body if stored is not None else self._pivot_pack()
        self.wait.ended()
        return body

    def _anchors(self) -> Sequence[Anchor]:
        return self.api.anchors(self.federation).anchors[: self.alignment.anchors]

    def _delete_outdated(self, slug: str, alignment_set: str) -> None:
        """Delete a built pack that was fitted to another pack of the pivot than the current one."""
        file = self._delivery.built_file(slug)
        if file.exists() and Pack.from_body(file.read_bytes()).manifest.alignment_set != alignment_set:
            file.unlink()

    @property
    def _delivery(self) -> PackDelivery:
        return PackDelivery(self.api, self.federation, self.folder, self.alignment)

    def _pivot_pack(self) -> bytes:
        slug = self.alignment.pivot
        pivot, anchors = self.silo.model_named(slug), self._anchors()
        report = self._progress(slug)

        def make() -> Pack:
            return pivot_pack(pivot, anchors, self.adapter, self.alignment, self.federation, progress=report)

        return self._deliver(slug, make)

    def _deliver(self, base_model: str, make: Callable[[], Pack]) -> bytes:
        """Build a pack once and deliver it; return the stored body, which may be another agent's."""
        file = self._delivery.built_file(base_model)
        if not file.exists():
            log.info("alignment pack: building (%s)", base_model)
            try:
                # Durable before it is sent, since building takes minutes to hours.
                write_durably(file, make().to_body())
            except _PackAlreadyStored as stored_pack:
                log.info("alignment pack: another client's is stored and used instead (%s)", base_model)
                return stored_pack.body
        return self._delivery.deliver(base_model)

    def _progress(self, base_model: str) -> Callable[[str, int, int], None]:
        """Return a callback that logs progress, and ends the work on a stop or when it is not needed."""
        look = _StoredPackCheck(self.api, self.federation, base_model)

        def show(stage: str, done: int, total: int) -> None:
            if self.stop():
                raise Stopped
            look.raise_if_stored()
            # About four lines per pass; a line per batch would fill the log.
            if done == total or done % max(1, total // 3) == 0:
                log.info("alignment pack of %s: %s (%d of %d)", base_model, stage, done, total)

        return show


class _PackAlreadyStored(Exception):
    """Another agent's pack was stored while this one was built."""

    def __init__(self, body: bytes) -> None:
        self.body = body


@dataclass(slots=True)
class _StoredPackCheck:
    """Looks every `_LOOK_SECONDS` for another agent's pack, until the coordinator cannot be asked."""

    api: CoordinatorApi
    federation: str
    base_model: str
    _next: float | None = field(default_factory=lambda: time.monotonic() + _LOOK_SECONDS)

    def raise_if_stored(self) -> None:
        """Raise _PackAlreadyStored if it is time to look, and a pack is stored."""
        if self._next is None or time.monotonic() < self._next:
            return
        try:
            stored = self.api.pack(self.federation, self.base_model)
        except Stopped:
            raise
        except AgentError as trouble:  # building does not need the coordinator; delivering reports the error
            log.warning("alignment pack: building continues without the coordinator (%s)", trouble)
            self._next = None
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        if stored is not None:
            raise _PackAlreadyStored(stored.body)
