"""Durable marks of the sums that a member has unmasked, one empty file per session: `000007-sum-NONCE`.

They outlive the folders of rounds. A coordinator restored from a backup runs a round again, and a second sum
of the same round over other members would reveal the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.storage.files import make_folder, write_durably
from schemas.messages.secure_sum import SumKind, SumTerms

ALL_KINDS: Final[tuple[SumKind, ...]] = ("counts", "sum")


@dataclass(frozen=True, slots=True)
class UnmaskMarks:
    """The marks of one federation; a nonce tells the secrets of a session from others for equal terms."""

    folder: Path

    def add(self, terms: SumTerms, nonce: str) -> None:
        """Record durably that a session is unmasked, before its step 4 is stored or sent."""
        make_folder(self.folder)
        # An empty file per mark: nothing has to be rewritten, so that no crash can lose an earlier mark.
        write_durably(self._file(terms.round, terms.kind, nonce), b"")

    def kinds(self, round_number: int, *, except_nonce: str | None) -> set[SumKind]:
        """Return the kinds of sums that sessions of a round unmasked, except the session of this nonce."""
        kinds: set[SumKind] = set()
        for kind in ALL_KINDS:
            own_mark = None if except_nonce is None else self._file(round_number, kind, except_nonce)
            marks = self.folder.glob(self._file(round_number, kind, "*").name)
            if any(mark != own_mark for mark in marks):
                kinds.add(kind)
        return kinds

    def _file(self, round_number: int, kind: SumKind, nonce: str) -> Path:
        return self.folder / f"{round_number:06d}-{kind}-{nonce}"
