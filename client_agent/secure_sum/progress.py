"""The progress of the sum of a round, as a file beside its results. Needs no torch."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ValidationError

from client_agent.storage.round_folder import SUM_PROGRESS, RoundFolder
from schemas.messages.base import Strict, UtcTime
from schemas.messages.secure_sum import SumStep


class SumProgress(Strict):
    """The progress of a member in the sum of a round.

    `members` is the number of members that have answered all steps before this one; `session`, `step` and
    `members` are null before the first session. `began` is when this step began, on the local clock, and
    `reason` why this member left the session or was left out of it.
    """

    session: int | None = None
    step: SumStep | None = None
    members: int | None = None
    began: UtcTime
    reason: str | None = None

    def __str__(self) -> str:
        if self.session is None:
            return "waiting for the sum to begin"
        if self.reason is not None:
            return f"not in session {self.session} of the sum: {self.reason}"
        members = f", {self.members} members" if self.members is not None else ""
        return f"session {self.session} of the sum, step {self.step}{members}"

    def seconds(self) -> float:
        """Return the seconds since the step began."""
        return max(0.0, (datetime.now(UTC) - self.began).total_seconds())

    @classmethod
    def now(
        cls, session: int | None, step: SumStep | None, members: int | None, reason: str | None = None
    ) -> SumProgress:
        return cls(session=session, step=step, members=members, began=datetime.now(UTC), reason=reason)


def read_progress(folder: RoundFolder) -> SumProgress | None:
    """Return the progress of a round's sum; None before it, or if the file cannot be read."""
    try:
        return SumProgress.model_validate_json(folder.read(SUM_PROGRESS))
    except (OSError, ValidationError):
        return None
