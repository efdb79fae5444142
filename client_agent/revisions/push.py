"""Export new revisions into the folder that a server reads, move `current`, and run the owner's command.

Each step is found from what is on the disk, so that a killed agent continues at the first missing one:
export -> seal (one rename) -> point `current` -> run. A failure is a warning; training goes on, and the step
is tried again: at the next revision, at the next start, and after a pause that doubles.
"""

from __future__ import annotations

import logging
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import ValidationError

from client_agent.agent_entries import REVISIONS
from client_agent.errors import (
    AgentError,
    OutputUnwritable,
    RevisionMissing,
    ServedRevisionRefused,
    SettingsUnusable,
    Stopped,
)
from client_agent.revisions.owner_command import HookFailed, RunningCommand, run_hook
from client_agent.revisions.served_folder import (
    ServedFolder,
    ServedRevision,
    digests_below,
    label_of,
    parsed_label,
)
from client_agent.revisions.store import Revision, RevisionStore
from client_agent.storage.files import write_durably
from schemas.messages.base import Strict
from schemas.user_files import FileUnusable, complaint, is_blocked, is_full, require_writable_folder

if TYPE_CHECKING:
    from client_agent.export.facts import TrainingFacts
    from client_agent.rounds.checkpoints import AdapterWithOrigin
    from client_agent.settings import AgentSettings
    from client_agent.training.silo import Silo

log = logging.getLogger("tessera.agent")

_STATE = "serving.json"
_MODES: Final = {"owner": 0o600, "group": 0o640, "all": 0o644}
FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE = 3600.0

Step = Literal["export", "link", "run"]
_NAMES: Final[dict[Step, str]] = {
    "export": "the export",
    "link": "the move of the link `current`",
    "run": "the command of export.run",
}


class PushFailure(Strict):
    """A step that failed, and is tried again.

    Attributes:
        revision: the number of the revision.
        at: seconds since 1970 of the last try.
        tries: the number of tries so far.
    """

    step: Step
    revision: int
    reason: str
    at: float
    tries: int

    def sentence(self, *, is_over: bool = False) -> str:
        """Return what failed, how often, and when it is tried again; `is_over` after an agent's last run."""
        tries = f", {self.tries} times" if self.tries > 1 else ""
        again = (
            "`tessera agent run` tries it again"
            if is_over
            else f"next try after {datetime.fromtimestamp(self.next_try, UTC):%Y-%m-%d %H:%M:%S} UTC, at the "
            "next start or at the next revision"
        )
        return f"{_NAMES[self.step]} of revision {self.revision} failed{tries}; {again}: {self.reason}"

    @property
    def next_try(self) -> float:
        """Return the seconds since 1970 before which it is not tried again by itself."""
        return self.at + min(_LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.tries - 1, 10))


class Serving(Strict):
    """What is served beside the link `current`, which is the truth of what is.

    Attributes:
        pinned: the number of a revision to which a person rolled back; newer ones do not replace it.
        notified: the label for which the command of `export.run` last succeeded.
        failure: the step that failed last; None if all succeeded since.
        running: the command of `export.run` while it runs; that of a killed agent until the next start.
    """

    pinned: int | None = None
    notified: str | None = None
    failure: PushFailure | None = None
    running: RunningCommand | None = None

    @classmethod
    def read(cls, folder: Path) -> Serving:
        """Read the file in an agent's folder; a missing or damaged one is that of a new agent."""
        file = folder / REVISIONS / _STATE
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            log.warning("%s: damaged and ignored (%s)", file, type(error).__name__)
            return cls()

    def write(self, folder: Path) -> None:
        write_durably(folder / REVISIONS / _STATE, self.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class RevisionAdapter:
    """The adapter of a revision, for an export or a trial.

    Attributes:
        home: the folder of the revision.
    """

    home: Path
    revision: Revision

    def attach(self, silo: Silo) -> AbstractContextManager[AdapterWithOrigin]:
        from client_agent.rounds.checkpoints import adapter_of_round

        return adapter_of_round(silo, self.home, None, "kept")

    def facts(self) -> TrainingFacts:
        from client_agent.export.facts import facts_of_round

        # The folder is named by the number of the revision, and not by the federation.
        return replace(facts_of_round(self.home, None, "kept"), federation=self.revision.federation)


def revision_adapter(folder: Path, number: int) -> RevisionAdapter:
    """Return the adapter of a revision in an agent's folder.

    Raises:
        RevisionMissing: there is none with this number.
        AdapterUnreadable: its file is damaged or was replaced.
    """
    store = RevisionStore(folder)
    return RevisionAdapter(store.home(number), store.checked(number))


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback serves.

    Attributes:
        passed_over: the numbers of newer revisions that cannot be exported, and why, newest first.
    """

    record: ServedRevision
    passed_over: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class Push:
    """The export of revisions by one agent.

    Attributes:
        name: the client's name.
        clock: seconds since 1970.
    """

    settings: AgentSettings
    name: str
    clock: Callable[[], float] = time.time
    _is_first: bool = field(default=True, init=False)
    _newest: int = field(default=0, init=False)

    @property
    def served(self) -> ServedFolder:
        return ServedFolder(self.settings.export.folder)

    def follow(self, store: RevisionStore, silo: Silo, stop: Callable[[], bool]) -> None:
        """Export the revisions that are not in the folder yet, and serve the newest or the pinned one.

        Does nothing if no step is missing and no failed one is due. A failure is logged and recorded.

        Raises:
            Stopped: the agent was stopped.
        """
        newest, failure = max(store.numbers(), default=0), Serving.read(store.folder).failure
        is_due = failure is not None and self.clock() >= failure.next_try
        # At the start everything is looked at: an earlier process may have been killed between two steps.
        if newest == 0 or not (self._is_first or newest > self._newest or is_due):
            return
        with store.locked():
            before = self._begin(store)
            serving, failures = before, list[PushFailure]()
            with self._noted("export", newest, before, failures):
                self.served.sweep()
                self._export_missing(store, silo)
            target: int | None = None
            with self._noted("link", newest, before, failures):
                target = self._target(before)
            if target is not None:
                with self._noted("link", target, before, failures):
                    serving = before = self._before_link(store, before, target)
                    self._point(target, pinned=before.pinned is not None)
                with self._noted("run", target, before, failures):
                    serving = self._notified(store, serving, target, stop)
            serving = serving.model_copy(update={"failure": failures[0] if failures else None})
            if serving != before:
                serving.write(store.folder)
        self._is_first, self._newest = False, newest

    def roll_back(
        self, store: RevisionStore, number: int | None, silo: Callable[[], Silo], awaited: Callable[[], None]
    ) -> RolledBack:
        """Serve a revision until the next rollback.

        Args:
            number: the revision to serve; None = the newest that can be exported, and from then on each later
                revision.
            silo: opens the silo's model, for a revision that is no longer in the export folder.
            awaited: called before a wait, if a running agent is exporting.

        Raises:
            RevisionMissing: there is no such revision.
            ServedRevisionRefused: its folder is not what was exported, or `current` is of another agent.
            HookFailed: the revision is served, and the command of `export.run` failed.
            AgentError: the revision cannot be exported; for None, no revision can.
        """
        with store.locked(awaited):
            self._begin(store)
            self.served.sweep()
            if number is None:
                target, passed_over = self._newest_exported(store, silo)
            else:
                target, passed_over = store.find(number).number, ()
                if target not in self.served.numbers(self.name):
                    self._export(store, target, silo())
            record, _ = self.served.read(label_of(self.name, target))
            self.served.verify(record)
            # Before the link: an agent that starts after a kill here points it at the same revision.
            serving = Serving.read(store.folder).model_copy(update={"pinned": number})
            serving.write(store.folder)
            serving = self._before_link(store, serving, target)
            self._point(target, pinned=number is not None)
            try:
                notified = self._notified(store, serving, target, lambda: False)
            except HookFailed as error:
                failure = self._failure("run", target, serving.failure, str(error))
                serving.model_copy(update={"failure": failure}).write(store.folder)
                raise
            # A newer revision that could not be exported is still tried again.
            is_other = serving.failure is not None and serving.failure.step == "export"
            notified.model_copy(update={"failure": serving.failure if is_other else None}).write(store.folder)
        return RolledBack(record, passed_over)

    def pause(self, store: RevisionStore) -> float | None:
        """Return the seconds until a step that failed is tried again; None = all succeeded."""
        failure = Serving.read(store.folder).failure
        return max(0.0, failure.next_try - self.clock()) if failure is not None else None

    def _begin(self, store: RevisionStore) -> Serving:
        """Read what is served, and end the command that a killed agent left; the store is locked."""
        serving = Serving.read(store.folder)
        if serving.running is None:
            return serving
        # Nobody knows whether it succeeds. Beside the next one, it might make a server load this one later.
        serving.running.end()
        ended = serving.model_copy(update={"running": None})
        ended.write(store.folder)
        return ended

    def _newest_exported(
        self, store: RevisionStore, silo: Callable[[], Silo]
    ) -> tuple[int, tuple[tuple[int, str], ...]]:
        """Export the newest revision that can be exported, unless it is in the folder already.

        Returns:
            Its number, and those of newer ones with the reasons why they cannot be exported.

        Raises:
            RevisionMissing: there are no revisions.
            ServedRevisionRefused: none can be exported.
        """
        exported, passed_over = self.served.numbers(self.name), list[tuple[int, str]]()
        for revision in reversed(store.all()):
            if revision.number not in exported:
                try:
                    self._export(store, revision.number, silo())
                # These are no faults of the revision, so that an older one would fail, too.
                except (SettingsUnusable, OutputUnwritable, Stopped):
                    raise
                except AgentError as error:
                    passed_over.append((revision.number, str(error)))
                    continue
            return revision.number, tuple(passed_over)
        if not passed_over:
            raise RevisionMissing(
                f"{store.path} has no revisions; `tessera agent run` adds one after each round"
            )
        number, reason = passed_over[0]
        raise ServedRevisionRefused(
            f"none of {len(passed_over)} revisions can be exported for {self.settings.export.after_round}; "
            "set another export.after_round in silo.toml, or wait for the next revision. Revision "
            f"{number}: {reason}"
        )

    def _before_link(self, store: RevisionStore, serving: Serving, number: int) -> Serving:
        """Clear `notified`, the label for which the command succeeded, if the link moves to another revision.

        Example: the command succeeded for revision 6, and failed for 7 after the server had loaded 7. A
        rollback to 6 must run the command again.
        """
        if serving.notified in (None, label_of(self.name, number)):
            return serving
        cleared = serving.model_copy(update={"notified": None})
        cleared.write(store.folder)
        return cleared

    def _target(self, serving: Serving) -> int | None:
        """Return the number of the revision to serve: the pinned or the newest exported one."""
        exported = self.served.numbers(self.name)
        return serving.pinned if serving.pinned is not None else max(exported, default=None)

    def _export_missing(self, store: RevisionStore, silo: Silo) -> None:
        """Export all revisions after the newest exported one; before the first export, only the newest.

        Raises:
            Exception: the error of the newest revision that could not be exported.
        """
        numbers = [r.number for r in store.all() if r.base_model == silo.base.slug]
        exported = self.served.numbers(self.name)
        missing = [n for n in numbers if n > max(exported)] if exported else numbers[-1:]
        failure: Exception | None = None
        for number in missing:
            try:
                self._export(store, number, silo)
                failure = None
            # A state that a format cannot hold says nothing about the next one.
            except AgentError as error:
                failure = error
        if failure is not None:
            raise failure

    def _export(self, store: RevisionStore, number: int, silo: Silo) -> None:
        from client_agent.export.job import export_adapter
        from client_agent.export.silo_export import FolderFinisher, artefact_of_silo

        settings, table, label = self.settings, self.settings.export, label_of(self.name, number)
        target = table.after_round
        if target is None:
            raise SettingsUnusable(
                "export.after_round is not set, so nothing is served from a folder; set it in silo.toml, or "
                f"write the revision with `tessera agent export --revision {number} --out FOLDER`"
            )
        require_writable_folder(table.folder, "export.folder")
        self._make_folder()
        source = revision_adapter(store.folder, number)
        facts, revision = source.facts(), source.revision
        gguf = Path(settings.model).resolve() if settings.model.lower().endswith(".gguf") else None
        artefact = artefact_of_silo(target, label, settings, gguf, silo, None)
        finish = FolderFinisher(silo, facts, artefact, settings, routed=False)
        hidden = table.folder / f".{label}.new"
        shutil.rmtree(hidden, ignore_errors=True)
        log.info("%s: exporting for %s into %s", label, target, table.folder)
        try:
            written, _ = export_adapter(silo, source, facts, artefact, hidden, finish, flat=table.flat)
            record = ServedRevision(
                name=self.name,
                revision=number,
                round=revision.round,
                digest=revision.digest,
                base_model=revision.base_model,
                base_name=artefact.base_name,
                format=target,
                validation_loss=revision.validation_loss,
                plan=revision.plan,
                federation=revision.federation,
                files=digests_below(hidden),
            )
            self.served.seal(hidden, record, _MODES[table.readers])
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        log.info("%s: exported, held-out loss %.4f", label, written.losses.export)

    def _make_folder(self) -> None:
        folder, mode = self.settings.export.folder, _MODES[self.settings.export.readers]
        folder.mkdir(parents=True, exist_ok=True)
        # Who may read the files may list the folder, whatever the umask of this process. Rights that its
        # owner gave are kept.
        before = stat.S_IMODE(folder.stat().st_mode)
        after = before | 0o700 | mode | (mode & 0o044) >> 2
        if after != before:
            folder.chmod(after)

    def _point(self, number: int, *, pinned: bool) -> None:
        label, current = label_of(self.name, number), self.served.current()
        parsed = parsed_label(current or "")
        if parsed is not None and parsed[0] != self.name:
            raise ServedRevisionRefused(
                f"{self.settings.export.folder} serves {current}: another agent exports there; set another "
                "export.folder, or delete the link `current` if that agent is gone"
            )
        if number not in self.served.numbers(self.name):
            raise ServedRevisionRefused(
                f"{self.settings.export.folder} has no {label}, which is pinned; run `tessera agent rollback "
                f"{number}` to export it again, or `tessera agent rollback newest`"
            )
        if self.served.point(label):
            log.info("%s is served, %s", label, "as pinned by a rollback" if pinned else f"as {self.name}")
        elif pinned and (newest := max(self.served.numbers(self.name))) != number:
            log.info(
                "%s stays served, as pinned by a rollback; %s is exported beside it",
                label,
                label_of(self.name, newest),
            )

    def _notified(
        self, store: RevisionStore, serving: Serving, number: int, stop: Callable[[], bool]
    ) -> Serving:
        """Run the owner's command unless it has succeeded for this revision.

        It runs in the export folder, and not in that of the revision: a file that it leaves there would not
        be of the export, and resolvers would refuse the revision.

        Raises:
            HookFailed: it failed.
            Stopped: the agent was stopped.
        """
        table, label = self.settings.export, label_of(self.name, number)
        # Only for what is served: the link may have failed.
        if not table.run or serving.notified == label or self.served.current() != label:
            return serving
        record, _ = self.served.read(label)
        variables = {
            "TESSERA_ADAPTER": self.name,
            "TESSERA_REVISION": str(number),
            "TESSERA_REVISION_NAME": label,
            "TESSERA_REVISION_FOLDER": str((table.folder / label).absolute()),
            "TESSERA_EXPORT_FOLDER": str(table.folder.absolute()),
            "TESSERA_ROUND": str(record.round),
            "TESSERA_DIGEST": record.digest,
        }

        def started(command: RunningCommand) -> None:
            serving.model_copy(update={"running": command}).write(store.folder)

        run_hook(table.run, variables, table.run_seconds, stop, folder=table.folder, started=started)
        log.info("%s: %s succeeded", label, table.run[0])
        return serving.model_copy(update={"notified": label})

    @contextmanager
    def _noted(
        self, step: Step, number: int, serving: Serving, failures: list[PushFailure]
    ) -> Iterator[None]:
        """Log and record the failure of a step; only a stop passes."""
        try:
            yield
        except Stopped:
            raise
        # Whatever it is: what is served must not stop what is trained.
        except Exception as error:
            reason = _reason(error, self.settings.export.folder)
            failures.append(self._failure(step, number, serving.failure, reason))
            log.warning(
                "%s: %s failed and is tried again: %s",
                label_of(self.name, number),
                _NAMES[step],
                reason,
                exc_info=None if isinstance(error, (AgentError, FileUnusable, OSError)) else error,
            )

    def _failure(self, step: Step, number: int, last: PushFailure | None, reason: str) -> PushFailure:
        repeated = last is not None and (last.step, last.revision) == (step, number)
        tries = last.tries + 1 if repeated and last is not None else 1
        return PushFailure(step=step, revision=number, reason=reason, at=self.clock(), tries=tries)


def _reason(error: Exception, folder: Path) -> str:
    if is_full(error) or "No space left on device" in str(error):
        return f"the disk of {folder} is full; free space there"
    if isinstance(error, OSError) and is_blocked(error):
        return complaint(error)
    return str(error) or type(error).__name__
