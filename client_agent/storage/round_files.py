"""Read the JSON files of a round's folder. Needs no torch."""

from __future__ import annotations

from pydantic import ValidationError

from client_agent.errors import RoundUnreadable
from client_agent.storage.round_folder import BRIEF, SCORES_SENT, RoundFolder
from schemas.messages.faults import complaints
from schemas.messages.rounds import RoundBrief
from schemas.messages.scores import Scores


def read_brief(folder: RoundFolder) -> RoundBrief:
    """Read the brief of a round.

    Raises:
        RoundUnreadable: the file is damaged, or of another version.
    """
    try:
        return RoundBrief.model_validate_json(folder.read(BRIEF))
    except (OSError, ValidationError) as error:
        fault = complaints(error, RoundBrief) if isinstance(error, ValidationError) else str(error)
        raise RoundUnreadable(folder.path / BRIEF, fault) from error


def sent_scores(folder: RoundFolder) -> Scores | None:
    """Return the scores that were sent in a round; None before, or if their file cannot be read."""
    if not folder.has(SCORES_SENT):
        return None
    try:
        return Scores.model_validate_json(folder.read(SCORES_SENT))
    except ValidationError:
        return None
