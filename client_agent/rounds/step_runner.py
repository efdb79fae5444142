"""Run the steps of a round whose files are missing, and close rounds that cannot continue. No torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from client_agent.errors import AgentError
from client_agent.rounds.delivery import report_scores
from client_agent.rounds.failure_policy import RECEIPT_LOST, TROUBLE, closing_reason
from client_agent.rounds.opened_round import OpenedRound
from client_agent.storage.round_folder import CLOSED, RECEIPT, SCORES_SENT, SUMMED

log = logging.getLogger(__name__)

R = TypeVar("R", bound=OpenedRound)


_CONFLICT = "upload-conflict"
_COPIED = (
    "Another process has sent another update of this round with this client's key: a copy of the agent's "
    "folder runs elsewhere. Stop one of the two; a second client needs its own enrolment and `folder`"
)


class InputNotCounted(AgentError):
    """A round, or its sum, ended without this client's input; `reason` is a slug."""

    def __init__(self, reason: str, explanation: str) -> None:
        super().__init__(explanation)
        self.reason = reason


def run_missing(work: R, steps: Sequence[tuple[str, Callable[[R], bytes]]], until: str | None = None) -> None:
    """Run each step whose file is missing, in order; stop once the file `until` exists.

    Raises:
        CoordinatorUnreachable, CoordinatorRefused, AnswerUnreadable, RequestTooSlow: the step may be tried
            again; otherwise the round is closed.
    """
    for file, step in steps:
        if work.folder.finished or (until is not None and work.folder.has(until)):
            return
        if work.folder.has(file):
            continue
        try:
            work.folder.write(file, step(work))
        except TROUBLE as trouble:
            reason = closing_reason(work.session, work.folder, file, trouble)
            if reason is None:
                raise
            _close(work, file, reason, trouble)
        except InputNotCounted as outcome:
            _close(work, file, outcome.reason, outcome)


def _close(work: OpenedRound, file: str, reason: str, trouble: Exception) -> None:
    # The update was counted, and only the answer was lost: the round is a success.
    if reason == RECEIPT_LOST:
        log.warning("round %d: receipt lost (the update was counted)", work.brief.round)
    else:
        copied = f". {_COPIED}" if reason == _CONFLICT else ""
        log.warning(
            "round %d: update not counted (%s%s); continuing with the next round",
            work.brief.round,
            trouble,
            copied,
        )
    if file in (RECEIPT, SUMMED):
        try:
            # Scores are taken after the round closed, too, and the silo has them.
            work.folder.write(SCORES_SENT, report_scores(work))
        except TROUBLE as error:
            log.info("round %d: scores not accepted (%s)", work.brief.round, error)
    work.folder.write(CLOSED, json.dumps({"reason": reason}).encode())
