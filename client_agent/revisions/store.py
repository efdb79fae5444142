"""Revisions: the states that a silo kept, numbered from 1, each a small copy of a federation's folder.

    revisions/000007/revision.json
    revisions/000007/rounds/000009/{brief.json, trained.safetensors, weights.safetensors, ...}

The files are those that `rounds/checkpoints` reads, so that a revision is exported and tried as a round is.
Most are hard links to the round's: all files of an agent are replaced by renames and never changed. Needs no
torch.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import ValidationError

from client_agent.agent_entries import EXPERTS, REVISIONS
from client_agent.alignment.pack_delivery import PACK
from client_agent.errors import AdapterUnreadable, RevisionMissing
from client_agent.revisions.served_folder import ServedFolder, parsed_label
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.files import fsync_folder, make_folder, write_durably
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_folder import (
    BANK,
    BASE,
    BRIEF,
    EXPERT_BODIES,
    FINAL_BANK,
    FINAL_REVISION,
    FINAL_SCORES,
    FINAL_WEIGHTS,
    FOLD,
    MANIFEST,
    PLAN,
    REVISION,
    TRAINED,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from schemas.messages.base import Strict
from schemas.wire.digests import digest_of

if TYPE_CHECKING:
    from client_agent.revisions.push import Push
    from client_agent.rounds.participant import Participant
    from client_agent.settings import AgentSettings

log = logging.getLogger("tessera.agent")

_RECORD = "revision.json"
_LOCK = ".lock"
_NUMBER = re.compile(r"[0-9]{6,}")
_OF_ROUND: Final = (BRIEF, WEIGHTS, BASE, FOLD, BANK)
_OF_FEDERATION: Final = (MANIFEST, PLAN, PACK, EXPERTS)
_OF_END: Final = (FINAL_WEIGHTS, FINAL_BANK, FINAL_SCORES)


class Revision(Strict):
    """A state that the silo kept.

    Attributes:
        round: the round in which it was kept.
        variant: `served` or `trained`, the weights before or after the round's local steps, or `final`.
        digest: that of the file with its tensors.
        validation_loss: None with fewer than 16 validation examples.
        base_model: the slug of the base model.
        plan: the digest of the federation's plan; None before one is signed.
        at: the time, in ISO 8601.
    """

    number: int
    round: int
    variant: Literal["served", "trained", "final"]
    digest: str
    validation_loss: float | None
    base_model: str
    plan: str | None
    federation: str
    at: str

    @property
    def origin(self) -> str:
        """Return where the state comes from, in words."""
        return "final weights" if self.variant == "final" else f"round {self.round}, {self.variant}"


@dataclass(frozen=True, slots=True)
class RevisionStore:
    """The revisions in an agent's folder."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / REVISIONS

    def all(self) -> list[Revision]:
        """Return all revisions, oldest first; a damaged one is left out with a warning."""
        revisions = []
        for number in self.numbers():
            try:
                revisions.append(Revision.model_validate_json((self.home(number) / _RECORD).read_bytes()))
            except (OSError, ValidationError) as error:
                log.warning("%s: damaged and ignored (%s)", self.home(number), type(error).__name__)
        return revisions

    def numbers(self) -> list[int]:
        """Return the numbers of all revisions, damaged ones included, in ascending order."""
        if not self.path.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.path.iterdir() if _NUMBER.fullmatch(entry.name))

    def home(self, number: int) -> Path:
        """Return the folder of a revision, which is read like the folder of a federation."""
        return self.path / f"{number:06d}"

    def find(self, number: int) -> Revision:
        """Return a revision.

        Raises:
            RevisionMissing: there is none with this number.
        """
        revisions = self.all()
        for revision in revisions:
            if revision.number == number:
                return revision
        present = ", ".join(str(revision.number) for revision in revisions) or "none"
        raise RevisionMissing(
            f"revision {number} is not in {self.path}, which has {present}; `tessera agent history` lists "
            "them, and keep_revisions and revisions_mib set how many stay"
        )

    def checked(self, number: int) -> Revision:
        """Return a revision whose tensors are those that were kept.

        Raises:
            RevisionMissing: there is none with this number.
            AdapterUnreadable: its file is damaged or was replaced.
        """
        revision = self.find(number)
        file = self._tensors(revision)
        try:
            digest = digest_of(file.read_bytes())
        except OSError as error:
            raise AdapterUnreadable(
                f"{file} cannot be read ({error.strerror}); use another revision"
            ) from error
        if digest != revision.digest:
            raise AdapterUnreadable(f"{file} is damaged or was replaced; use another revision")
        return revision

    def best(self) -> Revision | None:
        """Return the revision with the lowest validation loss of those like the newest; None = unknown."""
        revisions = self.all()
        if not revisions:
            return None
        # Losses of other base models or plans are of other tokens, or of other lengths.
        of_newest = (revisions[-1].base_model, revisions[-1].plan)
        losses = [
            (revision.validation_loss, revision.number, revision)
            for revision in revisions
            if revision.validation_loss is not None and (revision.base_model, revision.plan) == of_newest
        ]
        return min(losses, key=lambda entry: entry[:2])[2] if losses else None

    def size(self) -> int:
        """Return the bytes on the disk of all revisions; a file in several counts once."""
        return sum(self._sizes(self.numbers()).values())

    @contextmanager
    def locked(self, awaited: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Lock the store; `awaited` is called before a wait, if another process adds or exports revisions."""
        make_folder(self.path)
        with (self.path / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                awaited()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def add_states(self, home: Path, *, above: int = 0) -> list[Revision]:
        """Add each state in a federation's folder that the silo kept and that is no revision yet.

        Killed at any point, the next call completes it.

        Args:
            above: the largest number that is in use elsewhere, such as in an export folder.

        Raises:
            OSError: the disk is full; nothing is lost.
            AdapterUnreadable: a round's file is damaged.
        """
        states = _unrecorded(home)
        if not states:
            return []
        added = []
        with self.locked():
            self._sweep()
            for folder, is_final in states:
                revision = self._added(home, folder, above, is_final=is_final)
                marker, source = _marker(home, folder, is_final=is_final)
                # Last: without the marker the state is looked at again, and found by its digest.
                write_durably(marker, _marked(source, revision.number))
                added.append(revision)
        return added

    def prune(self, keep: int, most_bytes: int, protected: Collection[int]) -> list[int]:
        """Delete the oldest revisions beyond a count and a size; return their numbers.

        The newest, the best and the `protected` ones stay.
        """
        numbers, best = self.numbers(), self.best()
        safe = {*protected, *numbers[-1:], *([best.number] if best is not None else [])}
        deleted = []
        for number in numbers:
            remaining = [n for n in numbers if n not in deleted]
            if len(remaining) <= keep and sum(self._sizes(remaining).values()) <= most_bytes:
                break
            if number not in safe:
                hidden = self.path / f".{number:06d}.old"
                # A rename first: half of a revision must not look like one.
                os.rename(self.home(number), hidden)
                shutil.rmtree(hidden, ignore_errors=True)
                deleted.append(number)
        return deleted

    def _added(self, home: Path, folder: RoundFolder, above: int, *, is_final: bool) -> Revision:
        trained = TrainingResult.read(folder.path / TRAINED)
        content = _reduced(trained, is_final=is_final).to_bytes()
        variant: Literal["served", "trained", "final"] = "final" if is_final else trained.scores.kept
        digest = digest_of((home / FINAL_WEIGHTS).read_bytes() if is_final else content)
        state = (home.name, folder.number, variant, digest)
        revisions = self.all()
        for revision in reversed(revisions):
            if (revision.federation, revision.round, revision.variant, revision.digest) == state:
                return revision
        final = read_final_scores(home) if is_final else None
        revision = Revision(
            number=max(above, 0, *self.numbers()) + 1,
            round=folder.number,
            variant=variant,
            digest=digest,
            validation_loss=final.validation_loss if final is not None else trained.validation.get(variant),
            base_model=trained.origin.base_model,
            plan=_plan(home),
            federation=home.name,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._write(revision, home, folder, content)
        log.info(
            "revision %d: %s%s",
            revision.number,
            revision.origin,
            f", validation loss {revision.validation_loss:.4f}"
            if revision.validation_loss is not None
            else "",
        )
        return revision

    def _write(self, revision: Revision, home: Path, folder: RoundFolder, trained: bytes) -> None:
        """Write the files of a revision; it appears by one rename."""
        hidden = Path(tempfile.mkdtemp(dir=self.path, prefix=f".{revision.number:06d}.", suffix=".new"))
        try:
            round_path = hidden / "rounds" / folder.path.name
            round_path.mkdir(parents=True)
            write_durably(round_path / TRAINED, trained)
            for name in _OF_ROUND:
                _link(folder.path / name, round_path / name)
            names = (*_OF_FEDERATION, *(_OF_END if revision.variant == "final" else ()))
            for name in names:
                _link(home / name, hidden / name)
            if (folder.path / BANK).is_file():
                (hidden / EXPERT_BODIES).mkdir()
                # In its first round a client has fetched none: experts begin at the common start.
                fetched = home / EXPERT_BODIES
                for body in fetched.iterdir() if fetched.is_dir() else ():
                    _link(body, hidden / EXPERT_BODIES / body.name)
                fsync_folder(hidden / EXPERT_BODIES)
            write_durably(hidden / _RECORD, f"{revision.model_dump_json(indent=1)}\n".encode())
            for path in (round_path, round_path.parent, hidden):
                fsync_folder(path)
            os.rename(hidden, self.home(revision.number))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        fsync_folder(self.path)

    def _tensors(self, revision: Revision) -> Path:
        home = self.home(revision.number)
        if revision.variant == "final":
            return home / FINAL_WEIGHTS
        return home / "rounds" / f"{revision.round:06d}" / TRAINED

    def _sizes(self, numbers: Collection[int]) -> dict[tuple[int, int], int]:
        """Return the size of each file of these revisions, by its device and inode."""
        sizes = {}
        for number in numbers:
            for path in self.home(number).rglob("*"):
                with suppress(FileNotFoundError):
                    if path.is_file():
                        status = path.stat()
                        sizes[status.st_dev, status.st_ino] = status.st_size
        return sizes

    def _sweep(self) -> None:
        """Delete what a killed process left; the store is locked."""
        for entry in self.path.iterdir():
            if entry.is_dir() and entry.name.startswith("."):
                shutil.rmtree(entry, ignore_errors=True)


def _unrecorded(home: Path) -> list[tuple[RoundFolder, bool]]:
    """Return rounds whose kept state is no revision yet, oldest first, and the last one for final weights."""
    trained = [folder for folder in RoundFolders(home / "rounds").newest_first() if folder.has(TRAINED)]
    states = [(folder, False) for folder in reversed(trained)]
    final = read_final_scores(home) if trained and (home / FINAL_WEIGHTS).is_file() else None
    if final is not None and final.are_kept:
        states.append((trained[0], True))
    return [state for state in states if not _is_marked(home, state[0], is_final=state[1])]


def _marker(home: Path, folder: RoundFolder, *, is_final: bool) -> tuple[Path, Path]:
    """Return the file that records a state's revision, and the file with the state."""
    if is_final:
        return home / FINAL_REVISION, home / FINAL_WEIGHTS
    return folder.path / REVISION, folder.path / TRAINED


def _marked(source: Path, number: int) -> bytes:
    # With the time of the file: a coordinator that was set back serves other final weights.
    return json.dumps({"revision": number, "changed": source.stat().st_mtime_ns}).encode()


def _is_marked(home: Path, folder: RoundFolder, *, is_final: bool) -> bool:
    marker, source = _marker(home, folder, is_final=is_final)
    try:
        return bool(json.loads(marker.read_bytes())["changed"] == source.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _reduced(trained: TrainingResult, *, is_final: bool) -> TrainingResult:
    """Return what a revision needs of a training: the kept side, without the optimiser's state.

    Final weights need the tensors of the last local steps that are never sent.
    """
    smaller = replace(trained, optimiser={}, texts={}, test_digest="")
    if is_final or trained.scores.kept == "trained":
        return replace(smaller, start={}, start_private={})
    return replace(smaller, adapter={}, private={})


def _link(source: Path, target: Path) -> None:
    """Make a file available under a second name; copy it where the file system has no links."""
    if not source.is_file():
        return
    try:
        os.link(source, target)
    except OSError:
        write_durably(target, source.read_bytes())


def _plan(home: Path) -> str | None:
    """Return the digest of the federation's plan; None before it is stored."""
    file = home / PLAN
    return digest_of(file.read_bytes()) if file.is_file() else None


@dataclass(slots=True)
class RevisionKeeper:
    """Adds revisions as an agent goes on, and exports them if silo.toml asks for that.

    Attributes:
        name: the client's name, under which a server offers its revisions.
    """

    settings: AgentSettings
    name: str
    _push: Push | None = None

    def __call__(self, participant: Participant) -> float | None:
        """Add the states that were kept since the last call, and export them; cheap if there are none.

        Returns:
            The seconds until a step that failed is tried again by another call; None = all succeeded.

        Raises:
            Stopped: the agent was stopped; the next start continues.
            OSError: the disk is full.
            AdapterUnreadable: a round's file is damaged.
        """
        store, table = RevisionStore(self.settings.folder), self.settings.export
        served = ServedFolder(table.folder)
        if table.after_round is None:
            if store.add_states(participant.workspace.home):
                self._prune(store, served)
            return None
        from client_agent.revisions.push import FIRST_PAUSE, Push

        try:
            # An agent's folder may be older than the export folder, after a restored backup.
            above = max(served.numbers(self.name), default=0)
        except OSError as error:
            # A number might be used twice. Training goes on, and the next call adds what this one does not.
            log.warning("export.folder: %s cannot be read (%s); trying again", table.folder, error.strerror)
            return FIRST_PAUSE
        added = store.add_states(participant.workspace.home, above=above)
        if self._push is None:
            self._push = Push(self.settings, self.name)
        self._push.follow(store, participant.trainer.silo, participant.trainer.stop)
        if added:
            self._prune(store, served)
        return self._push.pause(store)

    def _prune(self, store: RevisionStore, served: ServedFolder) -> None:
        """Delete the oldest revisions, here and in the export folder, except a served or pinned one."""
        from client_agent.revisions.push import Serving

        settings = self.settings
        with store.locked():
            # Under the lock: a rollback may have waited for it, and changes both.
            protected = {Serving.read(store.folder).pinned}
            with suppress(OSError):
                current = parsed_label(served.current() or "")
                protected.add(current[1] if current is not None and current[0] == self.name else None)
            numbers = {number for number in protected if number is not None}
            pruned = store.prune(settings.keep_revisions, settings.revisions_mib << 20, numbers)
            if settings.export.after_round is None or not pruned:
                return
            try:
                # Not all that the store lacks: after a restored backup nothing could write those again.
                served.remove_numbers(self.name, pruned)
            except OSError as error:
                log.warning("export.folder: old revisions cannot be deleted (%s)", error.strerror)
