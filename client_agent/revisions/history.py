"""The revisions of an agent as a person reads them: which is the newest, the best, and the served one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_agent.identity.agent_folder import read_membership
from client_agent.revisions.push import Serving
from client_agent.revisions.served_folder import ServedFolder, label_of, parsed_label
from client_agent.revisions.store import Revision, RevisionStore
from schemas.user_files import complaint

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings

log = logging.getLogger("tessera.agent")


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A revision; `marks` are of `newest`, `best`, `served`, `pinned` and `exported`."""

    revision: Revision
    marks: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Return the row as `tessera agent history --json` prints it."""
        return {**self.revision.model_dump(mode="json"), "marks": list(self.marks)}


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """What a server is offered.

    Attributes:
        name: the label of the served revision, such as `aster@7`; None = none yet.
        newest: the number of the newest revision; None = none yet.
        pinned: whether a rollback holds the served revision.
        failure: the step that failed last and is tried again, as a sentence; None = none.
        unreadable: why the export folder cannot be read, so that `name` is not known; None = it can.
    """

    name: str | None
    newest: int | None
    pinned: bool
    failure: str | None
    unreadable: str | None = None

    def __str__(self) -> str:
        if self.unreadable is not None:
            return f"not known; the export folder cannot be read: {self.unreadable}"
        if self.name is None:
            return "nothing yet"
        number = (parsed_label(self.name) or ("", 0))[1]
        place = "the newest" if number == self.newest else f"the newest is {self.newest}"
        return f"{self.name}, pinned by a rollback; {place}" if self.pinned else f"{self.name}, {place}"


def read_history(settings: AgentSettings) -> list[HistoryRow]:
    """Return all revisions, newest first; an unreadable export folder leaves marks out.

    Raises:
        NotEnrolled: the agent's folder has no membership.
    """
    name, store = read_membership(settings.folder).name, RevisionStore(settings.folder)
    revisions, best, serving = store.all(), store.best(), Serving.read(settings.folder)
    served = ServedFolder(settings.export.folder)
    exported, current = list[int](), None
    try:
        exported, current = served.numbers(name), served.current()
    except OSError as error:
        log.warning("%s; which revisions are served and exported is not known", complaint(error))

    def marks(revision: Revision) -> tuple[str, ...]:
        is_marked = {
            "newest": revision == revisions[-1],
            "best": revision == best,
            "served": label_of(name, revision.number) == current,
            "pinned": revision.number == serving.pinned,
            "exported": revision.number in exported,
        }
        return tuple(mark for mark, is_true in is_marked.items() if is_true)

    return [HistoryRow(revision, marks(revision)) for revision in reversed(revisions)]


def serving_status(settings: AgentSettings, *, is_over: bool = False) -> ServingStatus | None:
    """Return what is served; None if silo.toml exports nothing. `is_over` after an agent's last run."""
    if settings.export.after_round is None:
        return None
    numbers, serving = RevisionStore(settings.folder).numbers(), Serving.read(settings.folder)
    name = unreadable = None
    try:
        name = ServedFolder(settings.export.folder).current()
    except OSError as error:
        unreadable = complaint(error)
    return ServingStatus(
        name=name,
        newest=max(numbers, default=None),
        pinned=serving.pinned is not None,
        failure=serving.failure.sentence(is_over=is_over) if serving.failure is not None else None,
        unreadable=unreadable,
    )
