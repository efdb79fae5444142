"""Served weights that change the base model as well: FLoRA and FedEx-LoRA send a low-rank base delta."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.rounds.download import download_whole
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import Arrays, ServedForm, StoredWeights
from client_agent.storage.base_delta import (
    BaseDelta,
    BaseDeltaMissing,
    ServedDelta,
    apply_weights,
    newest_base_delta,
    read_served,
    require_applicable,
    require_whole,
    round_base_delta,
)
from client_agent.storage.round_folder import FOLD, WEIGHTS, RoundFolder
from schemas.maths.adapter import Layout
from schemas.wire.digests import digest_of

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.rounds.client import Session
    from client_agent.rounds.opened_round import OpenedRound

log = logging.getLogger(__name__)


class BaseDeltaPart(Part):
    """The weights of a round change the base model by a base delta."""

    action = "changes the base model by a base delta"
    excludes = frozenset({"a PEFT trainer", "torchrun"})


@dataclass(frozen=True, slots=True)
class BaseDeltaForm(ServedForm):
    """Weights with A and B, or without, and with the whole base delta or an increment of it."""

    def read(self, body: bytes, layout: Layout) -> Arrays:
        return self._served(body, layout).adapter

    def is_initial(self, body: bytes, layout: Layout) -> bool:
        return self._served(body, layout).manifest.initial

    def load_beside(self, adapter: Adapter, served: StoredWeights) -> None:
        """Set the base delta; download the whole of it where earlier increments are missing here."""
        try:
            adapter.load_base_delta(self._delta(served, adapter.layout).added)
        except BaseDeltaMissing:
            if served.session is None:
                raise
            whole = self._whole(served.session, served.folder.number, served.folder.base, adapter.layout)
            if whole is None:
                raise
            log.warning(
                "round %d: earlier base deltas are missing; downloaded the whole of it", served.folder.number
            )
            # In place of the increment, so that a restart does not need the missing ones again.
            served.folder.write(WEIGHTS, whole)
            adapter.load_base_delta(self._delta(served, adapter.layout).added)

    def complete(self, work: OpenedRound, content: bytes, layout: Callable[[], Layout]) -> bytes:
        """Return weights whose base delta can be computed with the files here, or the whole of it.

        Raises:
            BaseDeltaMissing: earlier increments are missing here, and the coordinator lacks the whole base
                delta.
        """
        try:
            earlier = newest_base_delta(work.rounds, before=work.brief.round)
            require_applicable(earlier, self._served(content, layout()))
        except BaseDeltaMissing:
            whole = self._whole(work.session, work.brief.round, work.folder.base, layout())
            if whole is None:
                raise
            return whole
        return content

    def complete_final(
        self, session: Session, round_number: int, digest: str, content: bytes, layout: Callable[[], Layout]
    ) -> bytes:
        """Return the final weights with the whole base delta, if the coordinator has it."""
        whole = download_whole(session, round_number, digest)
        return whole if whole is not None else content

    def reference_digest(self, folder: RoundFolder, content: bytes) -> str:
        # The weights may be stored here with the whole base delta, with the same A and B.
        return folder.base

    def surroundings(self, folder: RoundFolder) -> str:
        return digest_of(folder.read(FOLD))

    def _served(self, body: bytes, layout: Layout) -> ServedDelta:
        return read_served(body, layout, mixed_ranks=self.mixed_ranks)

    def _delta(self, served: StoredWeights, layout: Layout) -> BaseDelta:
        """Return the base delta after served weights; that of a round is stored beside them."""
        weights = self._served(served.body, layout)
        if served.is_final:
            # The final weights come after the last round, so they continue its base delta.
            return apply_weights(newest_base_delta(served.rounds, before=served.folder.number + 1), weights)
        return round_base_delta(served.rounds, served.folder, weights)

    def _whole(self, session: Session, round_number: int, digest: str, layout: Layout) -> bytes | None:
        """Download weights with the whole base delta; None = the coordinator does not have it.

        Raises:
            BaseDeltaMissing: it serves an increment instead.
        """
        whole = download_whole(session, round_number, digest)
        if whole is not None:
            require_whole(self._served(whole, layout))
        return whole
