"""The values of a round that the silo's trackers record. Needs no torch."""

from __future__ import annotations

import time

from client_agent.rounds.opened_round import OpenedRound
from client_agent.storage.round_folder import BRIEF, UPDATE
from schemas.messages.scores import Scores
from schemas.trackers.trackers import Trackers


def track_round(work: OpenedRound, scores: Scores) -> None:
    """Record a round's scores, the bytes of its update and its seconds since this client joined it."""
    values = {}
    update, brief = work.folder.path / UPDATE, work.folder.path / BRIEF
    if update.is_file():  # a summed round has none
        values["update/bytes"] = float(update.stat().st_size)
    if brief.is_file():
        values["round/seconds"] = max(0.0, time.time() - brief.stat().st_mtime)
    trackers = work.session.trackers
    trackers.log("round", work.brief.round, values)
    track_scores(trackers, work.brief.round, scores)


def track_scores(trackers: Trackers, round_number: int, scores: Scores) -> None:
    """Record the scores before and after a round's local steps, such as `served/loss` and `trained/loss`."""
    sides = {"served": scores.served, "trained": scores.trained}
    values = {
        f"{side}/{name}": score.value for side, by_name in sides.items() for name, score in by_name.items()
    }
    trackers.log("round", round_number, values)
