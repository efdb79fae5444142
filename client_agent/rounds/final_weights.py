"""The end of a federation: download the final weights, score them, and send their scores."""

from __future__ import annotations

import logging

from client_agent.errors import AgentError, DownloadDamaged, Stopped
from client_agent.rounds.bank import store_final_bank
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.download import download_whole
from client_agent.rounds.examine import Examiner
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import FinalScores, read_final_scores
from client_agent.storage.round_files import sent_scores
from client_agent.storage.round_folder import (
    BRIEF,
    FINAL_SCORES,
    FINAL_SCORES_SENT,
    FINAL_WEIGHTS,
    SCORES_SENT,
    WEIGHTS,
    RoundFolder,
)
from schemas.messages.rounds import FinishedBrief
from schemas.messages.scores import as_text

log = logging.getLogger(__name__)


def finish(participant: Participant, brief: FinishedBrief) -> None:
    """Download, store and score the final personalised weights, and send their scores. Safe to repeat.

    A failure to score or to send is logged, and repeated when the agent runs again.

    Raises:
        Stopped: the agent was stopped.
        DownloadDamaged: the body has another digest.
        ManifestRefused, ManifestExpired, RosterRefused: a check of the manifest fails.
    """
    if brief.weights is None:
        log.info("federation finished: this client has no update in it")
        return
    _store_weights(participant, brief, brief.weights.digest)
    newest = _newest(participant, WEIGHTS)
    if newest is None:
        log.info("final weights not scored: this client has no round on disk")
        return
    try:
        scores = _final_scores(participant, newest)
        log.info("final weights: held-out %s", as_text(scores.scores))
        _send(participant, scores, brief.round - 1)
    except Stopped:
        raise
    except AgentError as error:
        log.warning("scores of the final weights not sent (%s); the next run of the agent repeats it", error)


def _store_weights(participant: Participant, brief: FinishedBrief, expected: str) -> None:
    session, workspace = participant.session, participant.workspace
    session.accept_manifest(brief.manifest, round_number=brief.round, weights=expected, final=True)
    weights = session.api.weights(session.federation_id, brief.round)
    if weights.digest != expected:
        raise DownloadDamaged("the final weights")
    newest = _newest(participant, BRIEF)
    has_base_delta = newest is not None and OpenedBrief.read(newest).traits.base_delta
    # With the whole base delta the final weights need no earlier round.
    whole = download_whole(session, brief.round, weights.digest) if has_base_delta else None
    content = whole if whole is not None else weights.body
    if newest is not None:
        store_final_bank(session, OpenedBrief.read(newest), participant.trainer, content)
    file = workspace.home / FINAL_WEIGHTS
    if not file.is_file() or file.read_bytes() != content:
        (workspace.home / FINAL_SCORES).unlink(missing_ok=True)
        (workspace.home / FINAL_SCORES_SENT).unlink(missing_ok=True)
    write_durably(file, content)
    log.info("federation finished after %d rounds: final weights stored", brief.round - 1)


def _final_scores(participant: Participant, newest: RoundFolder) -> FinalScores:
    """Return the scores of the final weights; compute and store them once."""
    home, silo = participant.workspace.home, participant.trainer.silo
    if (stored := read_final_scores(home)) is not None:
        return stored
    brief = OpenedBrief.read(newest).brief
    with adapter_of_round(silo, home, None, "kept") as placed:
        exam = Examiner(silo, brief.scores, brief.training.max_length).examine(placed.adapter)
    scores = FinalScores(scores=exam.scores, validation_loss=exam.validation)
    write_durably(home / FINAL_SCORES, scores.model_dump_json().encode())
    return scores


def _send(participant: Participant, final: FinalScores, last_published: int) -> None:
    """Send the scores of the last round again, with those of the final weights, until it succeeded once."""
    session, record = participant.session, participant.workspace.home / FINAL_SCORES_SENT
    last = _newest(participant, SCORES_SENT)
    if record.is_file():
        return
    summed = session.manifests.plan.privacy.secure_sum
    if summed is not None and summed.scores == "summed":
        log.info("scores of the final weights not sent: this federation sums the scores of its clients")
        return
    earlier = sent_scores(last) if last is not None else None
    if last is None or earlier is None or last.number != last_published:
        log.info(
            "scores of the final weights not sent: they go with those of round %d, which this client has not "
            "sent",
            last_published,
        )
        return
    scores = earlier.model_copy(update={"final": final.scores})
    session.api.send_scores(session.federation_id, last.number, scores)
    write_durably(record, scores.model_dump_json().encode())


def _newest(participant: Participant, file: str) -> RoundFolder | None:
    return next((folder for folder in participant.workspace.rounds.newest_first() if folder.has(file)), None)
