"""Progress reports of a round's training: sent beside it, without delay or failure of the training."""

from __future__ import annotations

import logging
import threading

import httpx
import pytest

from client_agent.errors import CoordinatorRefused
from client_agent.rounds.progress_report import ProgressReports
from client_agent.training.loop import Step
from schemas.messages.progress import Progress
from tests.scene.waiting import wait_until

STEP = Step(number=2, total=4, loss=1.5, tokens=200, seconds=4.0)


def test_progress_report_sends_newest_step_of_whole_round() -> None:
    sent: list[Progress] = []

    def send(report: Progress) -> None:
        sent.append(report)

    with ProgressReports(send, with_loss=True, seconds=0.01) as reports:
        reports(STEP, 4, 8)
        wait_until(lambda: bool(sent), event="a report")
    assert sent[0] == Progress(step=6, steps=8, loss=1.5, tokens_per_second=50.0, seconds_left=4.0)
    with ProgressReports(send, with_loss=False, seconds=0.01) as reports:
        reports(STEP, 0, 4)
        wait_until(lambda: len(sent) > 1, event="a report")
    assert sent[-1].loss is None


def test_training_neither_waits_for_reports_nor_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    is_asked, may_answer, calls = threading.Event(), threading.Event(), []

    def send(report: Progress) -> None:
        calls.append(report.step)
        is_asked.set()
        may_answer.wait(10)
        if len(calls) < 3:
            raise httpx.ConnectError("down")
        raise CoordinatorRefused(404, "", "Not Found", "/progress")

    with ProgressReports(send, with_loss=True, seconds=0.001) as reports:
        for number in range(1, 4):
            reports(Step(number, 9, 1.0, 100, 1.0), 0, 9)
        assert is_asked.wait(5)
        may_answer.set()
        for number in range(4, 10):
            before = len(calls)
            reports(Step(number, 9, 1.0, 100, 1.0), 0, 9)
            wait_until(lambda before=before: len(calls) > min(before, 2), event="a try")
    assert len(calls) == 3, "a refusal for good ends the reports"
    assert caplog.text.count("shows no progress of this round") == 1


@pytest.mark.parametrize("slug", ["", "signature-invalid", "clock-skew", "replayed", "credential-invalid"])
def test_unclear_refusal_of_a_report_ends_nothing(slug: str) -> None:
    calls: list[int] = []

    def send(report: Progress) -> None:
        calls.append(report.step)
        raise CoordinatorRefused(401, slug, "refused", "/progress")

    with ProgressReports(send, with_loss=True, seconds=0.001, ended=lambda: "round-closed") as reports:
        for number in range(1, 4):
            reports(Step(number, 9, 1.0, 100, 1.0), 0, 9)
            wait_until(lambda number=number: number in calls, event="a try")
    assert reports.reason is None


@pytest.mark.parametrize(
    "step",
    [
        Step(1, 4, 1.0, 100, 0.0),
        Step(1, 4, 1.0, 100, 1e-8),
        Step(1, 4, 1.0, -5, 1.0),
        Step(1, 4, 1.0, 100, 1e12),
        Step(0, 4, 1.0, 100, 1.0),
        Step(1, 4, float("nan"), 100, float("nan")),
    ],
)
def test_unusable_numbers_of_a_trainer_are_skipped(step: Step) -> None:
    sent: list[Progress] = []

    def send(report: Progress) -> None:
        sent.append(report)

    with ProgressReports(send, with_loss=True, seconds=0.001) as reports:
        reports(step, 0, 4)
        reports(STEP, 0, 4)
        wait_until(lambda: bool(sent) and sent[-1].step == STEP.number, event="the usable report")
    assert {report.step for report in sent} == {STEP.number}
