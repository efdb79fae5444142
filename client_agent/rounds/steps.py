"""One client in one round: a list of steps whose results are files. Running the list again resumes it.

A step is done when its file exists; a sent body is sent again byte for byte, and never made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from client_agent.errors import Stopped
from client_agent.rounds.adapter_in_place import prepare, put_in_place
from client_agent.rounds.byte_budget import has_budget, require_affordable, require_allowed_size
from client_agent.rounds.delivery import report_scores
from client_agent.rounds.join import archive_trained, join_round, rejoin
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.plain_steps import encode_sketch, encode_update, newcomer_body, push_update
from client_agent.rounds.plan_checks import require_round, require_suitable
from client_agent.rounds.private_training import leave_out_held_out, private_steps, require_private_steps
from client_agent.rounds.progress_report import step_reports
from client_agent.rounds.served_weights import StoredWeights
from client_agent.rounds.step_runner import run_missing
from client_agent.rounds.summed_steps import encode_input, report_ready, run_sum
from client_agent.rounds.train import LocalTraining, learning_rate, train_locally
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import (
    BRIEF,
    INPUT,
    PARTIAL,
    READY,
    RECEIPT,
    SCORES_SENT,
    SKETCH,
    SUMMED,
    TRAINED,
    UPDATE,
    WEIGHTS,
)
from schemas.messages.rounds import RoundBrief

log = logging.getLogger(__name__)


def take_part(participant: Participant, brief: RoundBrief, *, until: str | None = None) -> bool:
    """Run the missing steps of a round; stop once the file `until` exists. Return False if none was missing.

    Raises:
        Stopped: the agent was stopped; call again to resume.
        CoordinatorUnreachable, CoordinatorRefused: the connection failed, or the key was revoked.
        ManifestRefused: the coordinator has lost a round that this client joined.
        AgentError: model, data or plan do not work.
    """
    participant.session.manifests.hold_to_order(brief.round)
    rounds = participant.workspace.rounds
    folder = rounds.open(brief.round)
    if folder.finished:
        return folder.has(RECEIPT) and _deliver_again(Work(participant, OpenedBrief.of(brief), folder))
    if folder.has(WEIGHTS) and not folder.has(TRAINED) and not folder.has(PARTIAL):
        log.info("round %d: training begins again after a stop", folder.number)
    if not folder.has(WEIGHTS):  # until then a newer brief may name other weights
        # First of all: the machine with the model finds its next task by this file.
        folder.write(BRIEF, brief.model_dump_json().encode())
    _run(Work(participant, OpenedBrief.read(folder), folder), until)
    participant.keep_revisions(participant)
    # After the round, so that a failure in it leaves the earlier adapters.
    rounds.forget_old(participant.workspace.keep_rounds)
    return True


def resume(participant: Participant) -> None:
    """Finish the delivery or the sum of an earlier run that was interrupted, and the export of revisions."""
    folder = next(participant.workspace.rounds.newest_first(), None)
    if folder is not None and (folder.has(UPDATE) or folder.has(INPUT)) and not folder.finished:
        log.info("round %d: resuming", folder.number)
        _run(Work(participant, OpenedBrief.read(folder), folder))
    participant.keep_revisions(participant)


def _deliver_again(work: Work) -> bool:
    """Send the same update again if the coordinator asks for one whose receipt is here.

    Raises:
        ManifestRefused: the coordinator has lost this client's join, too.
    """
    rejoin(work)
    _run(work)
    return True


def _run(work: Work, until: str | None = None) -> None:
    work.session.check_brief(work.brief)  # a newcomer's join carries a sketch, before any manifest
    leave_out_held_out(work)
    run_missing(work, (*_BEGIN, *(_PLAIN if work.sum_plan is None else _SUMMED)), until)


def _pull(work: Work) -> bytes:
    trainer, brief = work.trainer, work.brief
    require_suitable(trainer.silo, brief.adapter, work.opened.parts)
    if brief.alignment is not None and trainer.drop_ended_pack():
        archive_trained(work.rounds)
    # After an ended pack is archived: the layout, and with it the price, may be another.
    require_round(work)
    if has_budget(work.opened):
        require_affordable(work.opened, trainer.layout(work.opened, work.earlier))
    require_allowed_size(work, lambda: trainer.layout(work.opened, work.earlier))
    trainer.silo.require_fit(brief.training.max_length)
    trainer.frames(brief)  # the coordinator must have the pack before a join: it determines the layout
    # The last local work before the join, since a private sketch is paid for.
    body = newcomer_body(work) if work.carries_sketch else None
    return join_round(
        work,
        body,
        redeliver=lambda: trainer.redeliver_pack(brief),
        layout=lambda: trainer.layout(work.opened, work.earlier),
    )


def _train(work: Work) -> bytes:
    trainer, opened, brief, form = work.trainer, work.opened, work.brief, work.opened.strategy.served
    # Again: silo.toml may have changed since the join.
    require_suitable(trainer.silo, brief.adapter, opened.parts)
    if work.private_training is not None:
        require_private_steps(trainer.silo, opened.parts)
    earlier, origin = work.trained.before(brief.round), trainer.origin(opened)
    served = StoredWeights(work.session.home, work.folder, session=work.session)
    setting = trainer.setting(opened, work.earlier, served)
    for part in opened.parts:
        setting = replace(setting, silo=part.silo(setting.silo))
    with (
        step_reports(work) as report,
        put_in_place(setting, opened.parts, gated=opened.strategy.options.gated) as adapter,
        trainer.followed(opened, work.earlier),
    ):
        rate = learning_rate(
            setting.silo,
            adapter,
            brief.training,
            origin,
            work.participant.workspace.rates,
            trainer.stop,
            first=trainer.first_adapter(opened),
            parts=opened.parts,
        )
        prepare(adapter, setting, opened.parts)
        form.load_beside(adapter, served)
        values = form.values(adapter, served)
        training = LocalTraining(
            silo=setting.silo,
            adapter=adapter,
            plan=brief.training,
            scores=brief.scores,
            origin=origin,
            learning_rate=rate,
            round_number=brief.round,
            total_rounds=brief.total_rounds,
            start=opened.strategy.start(work.earlier, values, newcomer=earlier is None),
            earlier=earlier,
            stop=lambda: trainer.stop() or report.reason is not None,
            parts=opened.parts,
            work=work,
            is_federated=True,
            declines=opened.strategy.declines,
            surroundings=form.surroundings(work.folder),
            restarts=opened.strategy.options.restarts,
            private=private_steps(work, adapter),
            checkpoint=work.checkpoint,
            report=report,
        )
        try:
            return train_locally(training).to_bytes()
        except Stopped:
            if report.reason is not None:
                raise report.reason from None
            raise


_Step = tuple[str, Callable[[Work], bytes]]
_BEGIN: Final[tuple[_Step, ...]] = ((WEIGHTS, _pull), (TRAINED, _train))
_PLAIN: Final[tuple[_Step, ...]] = (
    (SKETCH, encode_sketch),
    (UPDATE, encode_update),
    (RECEIPT, push_update),
    (SCORES_SENT, report_scores),
)
_SUMMED: Final[tuple[_Step, ...]] = (
    (INPUT, encode_input),
    (READY, report_ready),
    (SUMMED, run_sum),
    (SCORES_SENT, report_scores),
)
