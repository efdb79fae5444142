"""Round folders: one folder per round, one file per finished step. Needs no torch.

Files are written atomically, so that a round resumes at its first missing file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from client_agent.errors import RoundUnreadable
from client_agent.storage.files import fsync_folder, write_durably
from schemas.messages.faults import complaints

if TYPE_CHECKING:
    from schemas.messages.rounds import RoundBrief
    from schemas.messages.scores import Scores

_ROUND = re.compile(r"^\d{6}$")

BRIEF = "brief.json"
WEIGHTS = "weights.safetensors"
BANK = "bank.json"
BASE = "base.txt"
FOLD = "fold.safetensors"
PARTIAL = "partial.safetensors"
PARTIAL_COMMON = "partial_common.safetensors"
TRAINED = "trained.safetensors"
SKETCH = "signature.safetensors"
MIXTURE = "mixture.body"
OUTPUTS = "outputs.safetensors"
SENT = "sent.safetensors"
RESIDUAL = "residual.safetensors"
MEASURES = "ca_pfl.json"
UPDATE = "update.body"
REFERENCE = "reference.txt"
JOIN = "join.body"
INPUT = "input.safetensors"
READY = "ready.json"
SUMMED = "summed.json"
SUM_PROGRESS = "sum_progress.json"
RECEIPT = "receipt.json"
SCORES_SENT = "scores_sent.json"
CLOSED = "closed.json"
# The number of the revision that holds the state that this round kept.
REVISION = "revision.json"
# The files of a trainer of the silo's own, until the round is trained.
TRAINER = "trainer"
# The secrets and messages of a round's secure sums; no copy of a round's folder has them.
SECURE = "secure"
# Files of the federation, beside the round folders.
FINAL_WEIGHTS = "final_weights.safetensors"
FINAL_BANK = "final_bank.json"
FINAL_SCORES = "final_scores.json"
FINAL_SCORES_SENT = "final_scores_sent.json"
FINAL_REVISION = "final_revision.json"
# The folder of the experts of a bank, by their digests.
EXPERT_BODIES = "experts"
MANIFEST = "manifest.json"
PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class RoundFolder:
    """The files of one round."""

    path: Path
    number: int

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Store a step's result, atomically and durably."""
        write_durably(self.path / name, content)

    def forget(self, *names: str) -> None:
        """Remove results in order, so that their steps are repeated."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        # A removed result must not come back after a crash, when later files do not fit it any more.
        fsync_folder(self.path)

    def forget_training(self) -> None:
        """Remove the positions of a training whose result is stored."""
        self.forget(PARTIAL, PARTIAL_COMMON)
        shutil.rmtree(self.path / TRAINER, ignore_errors=True)

    @property
    def base(self) -> str:
        """The coordinator's digest of the weights before training, whatever their encoding."""
        return self.read(BASE).decode()

    @property
    def finished(self) -> bool:
        return self.has(SCORES_SENT) or self.has(CLOSED)


class RoundFolders:
    """All rounds of one federation, below one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, round_number: int) -> RoundFolder:
        """Return a round's folder; create it if missing.

        Syncs the folder, because a killed process may have left renames that are not on disk yet.
        """
        path = self._path / f"{round_number:06d}"
        # A killed process may have left renames that are not on disk yet. Later steps rely on these files.
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path, self._path):
            fsync_folder(folder)
        return RoundFolder(path, round_number)

    def newest_first(self) -> Iterator[RoundFolder]:
        if not self._path.is_dir():
            return
        for path in sorted((p for p in self._path.iterdir() if _ROUND.match(p.name)), reverse=True):
            yield RoundFolder(path, int(path.name))

    def newest_with(self, name: str, *, before: int | None = None) -> RoundFolder | None:
        """Return the newest round, before `before` if it is given, that has a file; None if there is none."""
        newest_first = (f for f in self.newest_first() if before is None or f.number < before)
        return next((folder for folder in newest_first if folder.has(name)), None)

    def forget_old(self, keep: int) -> None:
        """Delete all rounds older than the newest `keep` with a trained adapter."""
        # Rounds without a trained adapter do not count: the last adapters are what a silo keeps.
        trained = [folder.number for folder in self.newest_first() if folder.has(TRAINED)]
        if len(trained) <= keep:
            return
        for folder in self.newest_first():
            if folder.number < trained[keep - 1]:
                shutil.rmtree(folder.path, ignore_errors=True)


def awaits_exchange(home: Path) -> bool:
    """Whether the names of files show that the model waits for an exchange with the coordinator."""
    newest = next(
        (folder for folder in RoundFolders(home / "rounds").newest_first() if folder.has(BRIEF)), None
    )
    if newest is None or (home / FINAL_WEIGHTS).is_file():
        return newest is None or (home / FINAL_SCORES).is_file()
    return newest.finished or newest.has(UPDATE) or newest.has(INPUT)


def read_brief(folder: RoundFolder) -> RoundBrief:
    """Read the brief of a round.

    Raises:
        RoundUnreadable: the file is damaged, or of another version.
    """
    # Not at the top: `agent work` with nothing to do reads names of files, and messages take half a second.
    from schemas.messages.rounds import RoundBrief

    try:
        return RoundBrief.model_validate_json(folder.read(BRIEF))
    except (OSError, ValidationError) as error:
        fault = complaints(error, RoundBrief) if isinstance(error, ValidationError) else str(error)
        raise RoundUnreadable(folder.path / BRIEF, fault) from error


def sent_scores(folder: RoundFolder) -> Scores | None:
    """Return the scores that were sent in a round; None before, or if their file cannot be read."""
    if not folder.has(SCORES_SENT):
        return None
    from schemas.messages.scores import Scores

    try:
        return Scores.model_validate_json(folder.read(SCORES_SENT))
    except ValidationError:
        return None
