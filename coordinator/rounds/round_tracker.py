"""Record published rounds in the operator's trackers: counts, bytes, seconds, and members' mean scores.

Scores arrive after a round is published, so it is read again until all are there, or ten minutes have passed.
What this process has not recorded when it dies is missing: a tracker shows rounds, and is no record of them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import RoundRow
from coordinator.federations.store import federation, plan_of
from coordinator.rounds import member_views, views
from coordinator.rounds.store import get_round
from schemas.trackers.options import TrackerOptions
from schemas.trackers.tracker import Facts, TrackedRun
from schemas.trackers.trackers import Trackers

_SCORES_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _UnscoredRound:
    federation_id: str
    number: int
    until: float


class RoundTracker:
    """The runs of the federations whose rounds this process publishes; one run per federation."""

    def __init__(self, database: Database, options: TrackerOptions, project: str) -> None:
        self._database = database
        self._options = options
        self._project = project
        self._lock = threading.Lock()
        self._published: list[tuple[str, int]] = []
        self._awaited: list[_UnscoredRound] = []
        self._runs: dict[str, Trackers] = {}

    def published(self, federation_id: str, number: int) -> None:
        """Note a round that was published; `record` records it."""
        with self._lock:
            self._published.append((federation_id, number))

    def record(self) -> None:
        """Record new rounds, and the scores of earlier ones that are complete now."""
        with self._lock:
            # Taken under the lock, recorded outside of it: aggregation must not wait for a tracker.
            published, self._published = self._published, []
        if not published and not self._awaited:
            return
        with self._database.read() as session:
            for federation_id, number in published:
                self._record_round(session, federation_id, number)
                self._awaited.append(
                    _UnscoredRound(federation_id, number, time.monotonic() + _SCORES_SECONDS)
                )
            self._awaited = [
                awaited
                for awaited in self._awaited
                if not self._record_scores(session, awaited) and time.monotonic() < awaited.until
            ]

    def close(self) -> None:
        """End all runs."""
        self.record()
        for run in self._runs.values():
            run.close()

    def _record_round(self, session: Session, federation_id: str, number: int) -> None:
        row = get_round(session, federation_id, number)
        shown = views.summary(session, row, database_time(session))
        values = {f"members/{name}": float(count) for name, count in shown.counts.model_dump().items()}
        values |= {f"seconds/{phase}": seconds for phase, seconds in shown.seconds.items()}
        values |= {"bytes/up": float(shown.bytes.up), "bytes/down": float(shown.bytes.down)}
        self._run(session, row).log("round", number, values)

    def _record_scores(self, session: Session, awaited: _UnscoredRound) -> bool:
        """Record a round's mean scores once members see them; return whether they do."""
        row = get_round(session, awaited.federation_id, awaited.number)
        scores = member_views.public_scores(session, row, database_time(session))
        if scores is None:
            return False
        values = {f"scores/{name}": score.value for name, score in scores.mean.items()}
        self._run(session, row).log("round", awaited.number, values)
        return True

    def _run(self, session: Session, row: RoundRow) -> Trackers:
        if row.federation_id not in self._runs:
            plan = plan_of(federation(session, row.federation_id))
            facts: Facts = {
                "federation": plan.name,
                "strategy": plan.strategy.name,
                "rounds": plan.rounds.total,
            }
            run = TrackedRun(self._project, row.federation_id, row.federation_id, facts)
            self._runs[row.federation_id] = self._options.open(run)
        return self._runs[row.federation_id]
