"""Read the JSON files of a round's folder, those of earlier versions included. Needs no torch."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from client_agent.errors import RoundUnreadable
from client_agent.storage.round_folder import BRIEF, PLAN, SCORES_SENT, RoundFolder
from schemas.messages.faults import complaints
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief
from schemas.messages.scores import Scores
from schemas.messages.training import ScoresPlan

_OLD_NAMES = ("loss", "perplexity", "exact_match")


def read_brief(folder: RoundFolder) -> RoundBrief:
    """Read the brief of a round. What older briefs lack comes from the federation's plan, or is the default.

    Raises:
        RoundUnreadable: the file is damaged, or of another version.
    """
    try:
        fields = json.loads(folder.read(BRIEF))
        missing = {"scores": ScoresPlan().model_dump(), "total_rounds": _planned_rounds(folder)}
        return RoundBrief.model_validate_json(json.dumps(missing | fields))
    except (OSError, ValueError, TypeError) as error:
        fault = complaints(error, RoundBrief) if isinstance(error, ValidationError) else str(error)
        raise RoundUnreadable(folder.path / BRIEF, fault) from error


def sent_scores(folder: RoundFolder) -> Scores | None:
    """Return the scores that were sent in a round; None before, or if their file cannot be read."""
    if not folder.has(SCORES_SENT):
        return None
    try:
        return parse_scores(folder.read(SCORES_SENT))
    except (ValueError, KeyError, TypeError):
        return None


def parse_scores(content: str | bytes) -> Scores:
    """Parse stored scores, and those of earlier versions as migration 0018 of the coordinator turns them.

    Raises:
        ValueError, KeyError, TypeError: they are neither.
    """
    fields = json.loads(content)
    return Scores.model_validate_json(json.dumps(_named(fields) if "before" in fields else fields))


def _named(old: dict[str, Any]) -> dict[str, Any]:
    def named(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
        return {name: {"value": metrics[name], "count": old["examples"]} for name in _OLD_NAMES}

    return {"served": named(old["before"]), "trained": named(old["after"]), "kept": "trained"}


def _planned_rounds(folder: RoundFolder) -> int:
    """Return the number of rounds of the federation's plan; without a plan, this round's number."""
    file = folder.path.parent.parent / PLAN
    if not file.is_file():
        return folder.number
    return FederationPlan.model_validate_json(file.read_bytes(), extra="ignore").rounds.total
