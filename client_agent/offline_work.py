"""Train, sign and encode a round without a network, between two exchanges of `tessera agent sync`."""

from __future__ import annotations

import logging
from pathlib import Path

from client_agent.errors import PivotPackAwaited, SyncNeeded
from client_agent.rounds.final_weights import final_scores
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.pending_work import PendingWork
from client_agent.rounds.plain_steps import newcomer_body
from client_agent.rounds.private_training import different, leave_out_held_out, require_private_steps
from client_agent.rounds.steps import take_part
from client_agent.rounds.sync_steps import require_affordable_steps
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import INPUT, JOIN, UPDATE
from client_agent.storage.silo_facts import SiloFacts, write_silo_facts
from client_agent.training.silo import Silo
from schemas.messages.scores import as_text

log = logging.getLogger("tessera.agent")


def do_work(participant: Participant, pending: PendingWork) -> None:
    """Do one task; its results are files.

    Raises:
        Stopped: the agent was stopped, or its time is up; call again to resume.
        SyncNeeded: a file that the coordinator had sent was lost.
        AgentError: model, data or plan do not work.
    """
    opened = OpenedBrief.read(pending.folder)
    work = Work(participant, opened, pending.folder)
    if pending.task == "score":
        log.info("final weights: held-out %s", as_text(final_scores(participant, pending.folder).scores))
        participant.keep_revisions(participant)
    elif pending.task == "train":
        # Up to the file that the next exchange sends; masks of a sum need the network, so its input stays
        # unmasked here.
        take_part(participant, opened.brief, until=UPDATE if work.sum_plan is None else INPUT)
    else:
        prepare_join(work)


def prepare_join(work: Work) -> None:
    """Check the data, and make the alignment pack or a newcomer's sketch, which a join needs.

    Raises:
        TextTooLong, DataInvalid, TokenizerUnfit: the data do not fit.
        PivotMissing, AlignmentImpossible: the pack cannot be made on this machine.
        NotPrivateEnough, TooFewVoices: the plan is not within the silo's limits.
        NotPrivatelyTrained, TrainingBudgetSpent, TooFewRecords: see `require_affordable_steps`.
    """
    trainer, brief = work.trainer, work.brief
    work.session.check_brief(brief)
    leave_out_held_out(work)
    # Checked here as well as before training, because the next chance to tell a person is a round trip away.
    if (dp := work.private_training) is not None:
        require_private_steps(trainer.silo, work.opened.parts)
        require_affordable_steps(work, len(different(trainer.silo.data.train)), dp)
    trainer.silo.require_fit(brief.training.max_length)
    store_facts(trainer.silo, work.participant.workspace.folder, brief.training.max_length)
    try:
        trainer.frames(brief)
    except (SyncNeeded, PivotPackAwaited) as awaited:
        log.info("round %d: the alignment pack is next: %s", brief.round, awaited)
        return
    if work.carries_sketch and not work.folder.has(JOIN):
        work.folder.write(JOIN, newcomer_body(work))


def store_facts(silo: Silo, folder: Path, max_length: int | None = None) -> None:
    """Store what `tessera agent sync` needs to know of a silo's model and data, in the agent's folder."""
    records = len(different(silo.data.train))
    write_silo_facts(folder, SiloFacts(profile=silo.profile, max_length=max_length, records=records))
