"""The end of a federation: download the final weights, score them, and send their scores."""

from __future__ import annotations

import logging

from client_agent.errors import AgentError, Stopped
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.examine import Examiner
from client_agent.rounds.final_exchange import newest_with, send_final_scores, store_final_weights
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import FinalScores, read_final_scores
from client_agent.storage.round_folder import FINAL_SCORES, TRAINED, WEIGHTS, RoundFolder, RoundFolders
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
    trainer = participant.trainer
    store_final_weights(participant, brief, brief.weights, lambda opened: trainer.layout(opened, None))
    newest = newest_with(participant, WEIGHTS)
    if newest is None:
        log.info("final weights not scored: this client has no round on disk")
        return
    try:
        scores = final_scores(participant, newest)
        log.info("final weights: held-out %s; %s", as_text(scores.scores), scores.choice)
        participant.keep_revisions(participant)
        send_final_scores(participant, scores)
    except Stopped:
        raise
    # The weights are stored, and are the result: a missing score does not stop the agent.
    except AgentError as error:
        log.warning("scores of the final weights not sent (%s); the next run of the agent sends them", error)


def _kept_loss(rounds: RoundFolders) -> float | None:
    """Return the validation loss of the model that the silo kept in its last round; None if unknown."""
    folder = rounds.newest_with(TRAINED)
    if folder is None:
        return None
    trained = TrainingResult.read(folder.path / TRAINED)
    return trained.validation.get(trained.scores.kept)


def final_scores(participant: Participant, newest: RoundFolder) -> FinalScores:
    """Return the scores of the final weights; compute and store them once."""
    home, silo = participant.workspace.home, participant.trainer.silo
    if (stored := read_final_scores(home)) is not None:
        return stored
    brief = OpenedBrief.read(newest).brief
    with adapter_of_round(silo, home, None, "final") as placed:
        exam = Examiner(silo, brief.scores, brief.training.max_length).examine(placed.adapter)
    scores = FinalScores(
        scores=exam.scores,
        validation_loss=exam.validation,
        earlier_loss=_kept_loss(participant.workspace.rounds),
        tasks=exam.tasks,
    )
    write_durably(home / FINAL_SCORES, scores.model_dump_json().encode())
    return scores
