"""Where a client keeps what it did: one folder per round, one file per finished step.

A file is there whole or not at all, so the first missing file of a round is where the round resumes.
Knows neither what is in the files nor who asks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from client_agent.storage.files import fsync_folder, write_durably
from schemas.wire.digests import digest_of

_ROUND = re.compile(r"^\d{6}$")

BRIEF = "brief.json"
WEIGHTS = "weights.safetensors"
BASE = "base.txt"
FOLD = "fold.safetensors"
TRAINED = "trained.safetensors"
SIGNATURE = "signature.safetensors"
SENT = "sent.safetensors"
RESIDUAL = "residual.safetensors"
MEASURES = "ca_pfl.json"
UPDATE = "update.body"
RECEIPT = "receipt.json"
SCORES_SENT = "scores_sent.json"
CLOSED = "closed.json"
# Of the federation: beside the rounds, not in one.
FINAL_WEIGHTS = "final_weights.safetensors"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class RoundFolder:
    """The files of one round."""

    path: Path
    number: int

    def has(self, name: str) -> bool:
        """Say whether a step's result is there."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """Read a step's result."""
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Keep a step's result: after this returns it survives a crash, and never half of it is there."""
        write_durably(self.path / name, content)

    def forget(self, *names: str) -> None:
        """Remove steps' results, one after the other: these steps are to be done again."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        fsync_folder(self.path)

    @property
    def base(self) -> str:
        """What the coordinator calls the weights that training began from, in whatever form they came."""
        return self.read(BASE).decode() if self.has(BASE) else digest_of(self.read(WEIGHTS))

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do in this round."""
        return self.has(SCORES_SENT) or self.has(CLOSED)


class RoundFolders:
    """All rounds of one federation, below one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, number: int) -> RoundFolder:
        """Give a round's folder, making it if needed.

        Who was killed may have left files whose names are not on disk yet; now they are.
        """
        path = self._path / f"{number:06d}"
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path, self._path):
            fsync_folder(folder)
        return RoundFolder(path, number)

    def newest_first(self) -> Iterator[RoundFolder]:
        """Give the rounds on disk, newest first."""
        if not self._path.is_dir():
            return
        for path in sorted((p for p in self._path.iterdir() if _ROUND.match(p.name)), reverse=True):
            yield RoundFolder(path, int(path.name))

    def newest_with(self, name: str, *, before: int) -> RoundFolder | None:
        """Find the last earlier round that got as far as this file."""
        return next((f for f in self.newest_first() if f.number < before and f.has(name)), None)

    def forget_old(self, keep: int) -> None:
        """Delete finished rounds but the newest `keep` that hold a trained adapter, and all newer ones."""
        trained = [folder.number for folder in self.newest_first() if folder.has(TRAINED)]
        if len(trained) <= keep:
            return
        for folder in self.newest_first():
            if folder.number < trained[keep - 1]:
                shutil.rmtree(folder.path, ignore_errors=True)
