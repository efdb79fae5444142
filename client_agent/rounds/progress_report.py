"""Record the steps of a training in the silo's trackers, and report to the coordinator how far it has come.

A report never delays training. Only two answers end a training: the key is revoked, or the round is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from types import TracebackType
from typing import Self

import httpx
from pydantic import ValidationError

from client_agent.errors import AgentError, CoordinatorRefused
from client_agent.rounds.failure_policy import outcome_of
from client_agent.rounds.local_steps import Report
from client_agent.rounds.step_runner import InputNotCounted
from client_agent.rounds.work import Work
from client_agent.training.loop import Step
from schemas.messages.progress import Progress
from schemas.trackers.trackers import Trackers

log = logging.getLogger(__name__)

SECONDS = 5.0
"""The least time between two reports."""
_LAST_SECONDS = 6.0
_LEAST_SECONDS = 1e-3
"""Of a rate: a clock may show none for the first step."""
_PASSING = frozenset({408, 425, 429})


class ProgressReports:
    """Send the newest step every few seconds, from a thread of its own.

    A report that fails is logged once, and the next one is tried all the same. A report that the coordinator
    refuses for good ends all, such as after the end of the round.

    Args:
        send: sends a report once, and raises CoordinatorRefused if it is refused.
        with_loss: whether the loss is reported.
        ended: returns how the round ended, as a slug; None = it accepts updates, or is unknown.

    Attributes:
        reason: why training for this round is in vain; None = it is not.
    """

    def __init__(
        self,
        send: Callable[[Progress], None],
        *,
        with_loss: bool,
        seconds: float = SECONDS,
        ended: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.reason: CoordinatorRefused | InputNotCounted | None = None
        self._send = send
        self._ended = ended
        self._with_loss = with_loss
        self._seconds = seconds
        self._newest: Progress | None = None
        self._wake = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._has_failed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._wake.set()
        # A little longer than a request takes, so that an ordinary end leaves no thread behind.
        self._thread.join(_LAST_SECONDS)

    def __call__(self, step: Step, done: int, total: int) -> None:
        """Report a step of a part of the round, before which `done` of `total` steps were finished."""
        number, pace = done + step.number, step.seconds / max(step.number, 1)
        try:
            self._newest = Progress(
                step=number,
                steps=total,
                # NaN and infinity are no JSON.
                loss=step.loss if self._with_loss and 0 <= step.loss < 1e9 else None,
                tokens_per_second=step.tokens / max(step.seconds, _LEAST_SECONDS),
                seconds_left=max(pace * (total - number), 0),
            )
        except ValidationError:  # a trainer of one's own counts as it likes
            self._failed("step without usable numbers")
            return
        self._wake.set()

    def _run(self) -> None:
        while not self._end.is_set():
            self._wake.wait()
            self._wake.clear()
            # Only the newest: older ones say nothing that it does not.
            report, self._newest = self._newest, None
            if report is not None and not self._end.is_set() and not self._sent(report):
                return
            self._end.wait(self._seconds)

    def _sent(self, report: Progress) -> bool:
        """Send a report; return whether to go on."""
        try:
            self._send(report)
        except CoordinatorRefused as refusal:
            return self._goes_on_after(refusal)
        except (httpx.HTTPError, AgentError) as error:
            self._failed(type(error).__name__)
        return True

    def _goes_on_after(self, refusal: CoordinatorRefused) -> bool:
        if refusal.status in _PASSING or refusal.status >= 500:
            return True
        # By slug: a clock that is off and a proxy answer 401 too, and must not cost the steps taken.
        if refusal.slug == "key-revoked":
            self.reason = refusal
            return False
        if refusal.slug == "round-closed" and (slug := self._end_of_round()) is not None:
            self.reason = InputNotCounted(slug, "the round ended during the training")
            return False
        self._failed(f"status {refusal.status}")
        return refusal.status == httpx.codes.UNAUTHORIZED

    def _end_of_round(self) -> str | None:
        try:
            return self._ended()
        except (httpx.HTTPError, AgentError):
            return None

    def _failed(self, reason: str) -> None:
        if not self._has_failed:
            log.info("the coordinator shows no progress of this round (%s); training continues", reason)
        self._has_failed = True


@dataclass(frozen=True, slots=True)
class StepReports:
    """The callback after each step of a round: it records the step, and reports it if `reports` is there."""

    track: Report
    reports: ProgressReports | None = None

    def __call__(self, step: Step, done: int, total: int) -> None:
        self.track(step, done, total)
        if self.reports is not None:
            self.reports(step, done, total)

    @property
    def reason(self) -> CoordinatorRefused | InputNotCounted | None:
        """Return why training for this round is in vain; None if nothing is known of that."""
        return self.reports.reason if self.reports is not None else None


@contextmanager
def step_reports(work: Work) -> Iterator[StepReports]:
    """Return the callback after each step of the round; it reports progress if the silo allows it.

    Private training reports nothing: losses and tokens of a step are those of the examples that were drawn.
    """
    session, number = work.session, work.brief.round
    track = step_tracking(session.trackers, number)
    is_wanted = work.trainer.reports_progress and session.policy.may_send("progress")
    # Losses and tokens of a private step would reveal which examples were drawn.
    if not is_wanted or work.private_training is not None:
        yield StepReports(track)
        return
    path = f"/v1/federations/{session.federation_id}/rounds/{number}/progress"
    with ProgressReports(
        lambda progress: session.api.put_once(path, progress.model_dump()),
        # In a sum the coordinator sees no loss of a single client.
        with_loss=work.sum_plan is None,
        ended=lambda: outcome_of(session, number),
    ) as reports:
        yield StepReports(track, reports)


def step_tracking(trackers: Trackers, round_number: int) -> Report:
    """Return the callback that records the steps of a round, counted over all rounds."""

    def track(step: Step, done: int, total: int) -> None:
        values = {"train/tokens_per_second": step.tokens / max(step.seconds, 1e-9)}
        if isfinite(step.loss):  # a private step may have drawn no example
            values["train/loss"] = step.loss
        if step.learning_rate is not None:
            values["train/learning_rate"] = step.learning_rate
        trackers.log("step", (round_number - 1) * total + done + step.number, values)

    return track
