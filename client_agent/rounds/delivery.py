"""Send the update and the scores of a round, the same bytes at every try. Needs no torch."""

from __future__ import annotations

import logging
import time

from client_agent.errors import CoordinatorRefused
from client_agent.rounds.opened_round import OpenedRound
from client_agent.storage.round_folder import BRIEF, REFERENCE, UPDATE
from schemas.messages.scores import LOSS, Scores, as_text
from schemas.trackers.trackers import Trackers

log = logging.getLogger(__name__)

_REFERENCE_MISMATCH = "reference-mismatch"


def deliver(work: OpenedRound) -> bytes:
    """Send the update, and return its receipt.

    Raises:
        PolicyRefused: it has more bytes than the silo allows.
        CoordinatorRefused: see `note_reference` for an update whose reference the coordinator lacks.
    """
    body = work.folder.read(UPDATE)
    # The exact bytes: the check before training was an upper bound.
    work.session.policy.require_body(body)
    receipt = work.session.api.push_update(work.session.federation_id, work.brief.round, body)
    log.info("round %d: update of %d bytes delivered", work.brief.round, len(body))
    return receipt.model_dump_json().encode()


def note_reference(work: OpenedRound, refusal: CoordinatorRefused) -> None:
    """Store the digest of the reference that the coordinator holds: the update is encoded again with it.

    If the coordinator holds none, or refuses twice, the file is empty, and the update is sent whole.

    Raises:
        CoordinatorRefused: the update is refused for another reason, or is whole already.
    """
    # An empty file marks a whole update: a refusal of that one is final.
    is_whole = work.folder.has(REFERENCE) and not work.folder.read(REFERENCE)
    if refusal.slug != _REFERENCE_MISMATCH or is_whole:
        raise refusal
    log.warning("round %d: the coordinator lacks the update's reference; encoding it again", work.brief.round)
    # A second refusal: do not try another reference, which could go on forever.
    stored_digest = "" if work.folder.has(REFERENCE) else refusal.expected or ""
    work.folder.write(REFERENCE, stored_digest.encode())


def report_scores(work: OpenedRound) -> bytes:
    """Send the scores of the round, unless they travel in the sum; return them."""
    scores = work.trained.of(work.folder).scores
    if not work.scores_are_summed:
        work.session.api.send_scores(work.session.federation_id, work.brief.round, scores)
    log.info(
        "round %d: held-out loss %.3f served, %.3f trained; %s kept: %s",
        work.brief.round,
        scores.served[LOSS].value,
        scores.trained[LOSS].value,
        scores.kept,
        as_text(scores.kept_scores),
    )
    track_round(work, scores)
    return scores.model_dump_json().encode()


def track_round(work: OpenedRound, scores: Scores) -> None:
    """Record a round's scores, the bytes of its update and its seconds since this client joined it."""
    values = {}
    update, brief = work.folder.path / UPDATE, work.folder.path / BRIEF
    if update.is_file():  # a summed round has none
        values["update/bytes"] = float(update.stat().st_size)
    if brief.is_file():
        # The brief is the first file of a round; its time outlives a restart of the agent.
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
