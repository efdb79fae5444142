"""Record every step of a round's training in the silo's trackers, and report some to the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

from client_agent.rounds.local_steps import Report
from client_agent.rounds.progress_report import ProgressReports
from client_agent.rounds.work import Work
from client_agent.training.loop import Step
from schemas.trackers.trackers import Trackers


@contextmanager
def step_reports(work: Work) -> Iterator[Report]:
    """Return the callback after each step of the round; it reports progress if the silo allows it.

    Private training reports nothing: losses and tokens of a step are those of the examples that were drawn.
    """
    session, number = work.session, work.brief.round
    track = step_tracking(session.trackers, number)
    is_wanted = work.trainer.reports_progress and session.policy.may_send("progress")
    if not is_wanted or work.private_training is not None:
        yield track
        return
    path = f"/v1/federations/{session.federation_id}/rounds/{number}/progress"
    with_loss = work.sum_plan is None
    with ProgressReports(
        lambda progress: session.api.put_once(path, progress.model_dump()), with_loss=with_loss
    ) as reports:

        def report(step: Step, done: int, total: int) -> None:
            track(step, done, total)
            reports(step, done, total)

        yield report


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
