"""One client in one round: a list of steps whose results are files. Running the list again resumes it.

A step is done when its file exists; a sent body is sent again byte for byte, and never made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import safetensors.numpy

from client_agent.adapters.base import Adapter, Penalty, State
from client_agent.experts.probing import prober_of, with_probe_set
from client_agent.experts.routed import RoutedExperts
from client_agent.model.next_bytes import NextBytes
from client_agent.rounds.bank import experts_of, read_bank, read_index, store_experts
from client_agent.rounds.byte_budget import has_budget, require_affordable, require_allowed_size
from client_agent.rounds.delivery import report_scores
from client_agent.rounds.download import download_whole
from client_agent.rounds.encode_input import encode_input
from client_agent.rounds.joining import archive_trained, join_round, rejoin
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.outputs import public_texts, read_mixture, store_mixture
from client_agent.rounds.participant import Participant
from client_agent.rounds.plain_steps import encode_update, newcomer_body, push_update, sign
from client_agent.rounds.possible import require_round, require_suitable
from client_agent.rounds.private_training import leave_out_held_out, private_steps, require_private_steps
from client_agent.rounds.served_weights import load_served
from client_agent.rounds.step_runner import run_missing
from client_agent.rounds.step_tracking import step_reports
from client_agent.rounds.summed_steps import report_ready, run_sum
from client_agent.rounds.train import learning_rate, train_locally
from client_agent.rounds.work import Work
from client_agent.storage.base_delta import BaseDeltaMissing, read_served, require_whole
from client_agent.storage.round_folder import (
    BRIEF,
    FOLD,
    INPUT,
    OUTPUTS,
    READY,
    RECEIPT,
    SCORES_SENT,
    SIGNATURE,
    SUMMED,
    TRAINED,
    UPDATE,
    WEIGHTS,
)
from client_agent.training.distillation import pull_to_peers
from schemas.messages.rounds import RoundBrief
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)


def take_part(participant: Participant, brief: RoundBrief, *, until: str | None = None) -> bool:
    """Run the missing steps of a round, at most `until` the file of a step exists; False if there were none.

    Raises:
        Stopped: the agent was stopped; call again to resume.
        CoordinatorUnreachable, CoordinatorRefused: the connection failed.
        ManifestRefused: the coordinator has lost a round that this client joined.
        AgentError: model, data or plan do not work.
    """
    participant.session.manifests.hold_to_order(brief.round)
    rounds = participant.workspace.rounds
    folder = rounds.open(brief.round)
    if folder.finished:
        return folder.has(RECEIPT) and _deliver_again(Work(participant, OpenedBrief.of(brief), folder))
    if not folder.has(WEIGHTS):  # until then a newer brief may name other weights
        folder.write(BRIEF, brief.model_dump_json().encode())
    _run(Work(participant, OpenedBrief.read(folder), folder), until)
    rounds.forget_old(participant.workspace.keep_rounds)
    return True


def resume(participant: Participant) -> None:
    """Deliver the update, or finish the sum, that an earlier run made and perhaps did not deliver."""
    folder = next(participant.workspace.rounds.newest_first(), None)
    if folder is not None and (folder.has(UPDATE) or folder.has(INPUT)) and not folder.finished:
        log.info("round %d: resuming", folder.number)
        _run(Work(participant, OpenedBrief.read(folder), folder))


def _deliver_again(work: Work) -> bool:
    """Send an update again, the same bytes, whose receipt is here and which the coordinator asks for.

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
    require_suitable(trainer.silo, brief.adapter, work.opened.traits)
    if brief.alignment is not None and trainer.drop_ended_pack():
        archive_trained(work.rounds)
    require_round(work)
    if has_budget(work.opened):
        require_affordable(work.opened, trainer.layout(work.opened, work.earlier))
    require_allowed_size(work, lambda: trainer.layout(work.opened, work.earlier))
    trainer.silo.require_fit(brief.training.max_length)
    trainer.frames(brief)  # the coordinator must have the pack before a join: it determines the layout
    body = newcomer_body(work) if work.carries_sketch else None
    content = join_round(
        work,
        body,
        redeliver=lambda: trainer.redeliver_pack(brief),
        expert_layout=lambda: trainer.layout(work.opened, None),
    )
    store_mixture(work)
    return content


def _train(work: Work) -> bytes:
    require_suitable(work.trainer.silo, work.brief.adapter, work.opened.traits)
    if work.private_training is not None:
        require_private_steps(work.trainer.silo, work.opened.traits)
    trainer, opened, brief = work.trainer, work.opened, work.brief
    earlier, traits = work.trained.before(brief.round), work.opened.traits
    origin, silo = trainer.origin(opened), trainer.silo
    if traits.routing is not None:
        silo = with_probe_set(silo, traits.routing)
    with (
        step_reports(work) as report,
        trainer.injected(opened, work.earlier, _experts(work)) as adapter,
        trainer.followed(opened, work.earlier),
    ):
        rate = learning_rate(
            silo,
            adapter,
            brief.training,
            origin,
            work.participant.workspace.rates,
            trainer.stop,
            first=trainer.first_adapter(opened),
            traits=traits,
        )
        served = _load_served(work, adapter)
        if isinstance(adapter, RoutedExperts):
            memory, longest = work.expert_memory, brief.training.max_length
            adapter.probe_with(prober_of(silo, adapter.routing, longest, memory.losses), memory)
        if traits.gated:
            adapter.load_global(served)
        public = _public_texts(work)
        trained = train_locally(
            silo,
            adapter,
            brief.training,
            learning_rate=rate,
            origin=origin,
            round_number=brief.round,
            total_rounds=brief.total_rounds,
            start=opened.strategy.start(work.earlier, served, newcomer=earlier is None),
            earlier=earlier,
            federated=True,
            scores=brief.scores,
            surroundings=_surroundings(work),
            traits=traits,
            stop=trainer.stop,
            checkpoint=work.checkpoint,
            report=report,
            peers=_peers(work, public),
            private=private_steps(work, adapter),
        )
        if public is not None:
            work.folder.write(OUTPUTS, safetensors.numpy.save(public.outputs().tensors))
        return trained.to_bytes()


def _public_texts(work: Work) -> NextBytes | None:
    """Return the texts on which outputs are compared, in this model's tokens; None without distillation."""
    plan = work.opened.traits.distil
    if plan is None:
        return None
    texts = public_texts(work.session, plan.texts)
    return NextBytes(work.trainer.silo.base, texts, work.brief.training.max_length)


def _peers(work: Work, public: NextBytes | None) -> Penalty | None:
    """Return the pull to the outputs of peers' models, if the round began with any."""
    plan, mixture = work.opened.traits.distil, read_mixture(work.folder)
    if plan is None or public is None or mixture is None or len(mixture.bytes) != public.rows:
        return None
    return pull_to_peers(public, mixture, plan.factor)


def _experts(work: Work) -> tuple[int, ...]:
    """Return the experts of the round's bank; () by a strategy without one."""
    return experts_of(read_index(work.folder)) if work.opened.traits.routing is not None else ()


def _surroundings(work: Work) -> str:
    """Return the digest of what acts in the model beside the adapter: global branch and base delta."""
    folder, traits = work.folder, work.opened.traits
    files = [file for file, acts in ((WEIGHTS, traits.gated), (FOLD, traits.base_delta)) if acts]
    return " ".join(digest_of(folder.read(file)) for file in files)


def _load_served(work: Work, adapter: Adapter) -> State:
    """Read the served weights; download the whole base delta if earlier increments are missing here."""
    folder, traits, rounds = work.folder, work.opened.traits, work.rounds
    if isinstance(adapter, RoutedExperts):
        index, layout = read_index(folder), adapter.bank.expert_layout
        adapter.since = index.since
        store_experts(work.session, index, layout)  # a file may have been lost since the download
        return read_bank(work.session.home, folder, layout)
    try:
        return load_served(adapter, traits, rounds, folder)
    except BaseDeltaMissing:
        content = download_whole(work.session, folder.number, folder.base)
        if content is None:
            raise
    require_whole(read_served(content, adapter.layout, mixed_ranks=traits.mixed_ranks))
    log.warning("round %d: earlier base deltas are missing; downloaded the whole of it", folder.number)
    folder.write(WEIGHTS, content)
    return load_served(adapter, traits, rounds, folder)


_Step = tuple[str, Callable[[Work], bytes]]
_BEGIN: Final[tuple[_Step, ...]] = ((WEIGHTS, _pull), (TRAINED, _train))
_PLAIN: Final[tuple[_Step, ...]] = (
    (SIGNATURE, sign),
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
