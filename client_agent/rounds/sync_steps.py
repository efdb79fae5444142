"""The steps of a round that need the coordinator, without the model. Needs no torch.

A join needs facts of the model, which `tessera agent work` has written to files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_agent.alignment.pack import Pack
from client_agent.alignment.pack_delivery import PACK, PackDelivery, archive_voided_pack, redeliver_pack
from client_agent.errors import CoordinatorRefused, PivotPackAwaited, WorkNeeded
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.training import training_mechanism
from client_agent.rounds.byte_budget import has_budget, require_affordable, require_allowed_size
from client_agent.rounds.client import Session, Workspace
from client_agent.rounds.delivery import deliver, note_reference, report_scores
from client_agent.rounds.join import archive_trained, join_round
from client_agent.rounds.opened_round import OpenedRound, sent_layout
from client_agent.rounds.step_runner import run_missing
from client_agent.rounds.stored_answers import has_anchors, has_pack, store_anchors, store_pack
from client_agent.rounds.summed_steps import report_ready, run_sum
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import (
    INPUT,
    JOIN,
    READY,
    RECEIPT,
    SCORES_SENT,
    SUMMED,
    UPDATE,
    WEIGHTS,
)
from client_agent.storage.silo_facts import SiloFacts, read_silo_facts
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.messages.private_training import PrivateTrainingPlan


@dataclass(frozen=True, slots=True)
class SyncClient:
    """A client without its model; `lora_rank` is the silo's first rank under mixed ranks.

    `sleep` waits, and raises `Stopped` if the agent is stopped or its time is up.
    """

    session: Session
    workspace: Workspace
    sleep: Callable[[float], None]
    lora_rank: int | None = None


@dataclass
class SyncRound(OpenedRound):
    """A round in progress of a client without its model."""

    participant: SyncClient

    @property
    def encoded(self) -> str:
        """The file of what this client sends of its training."""
        return UPDATE if self.sum_plan is None else INPUT


def sync_round(work: SyncRound) -> None:
    """Join a round and download its weights, or send what was made in it.

    Raises:
        WorkNeeded: the model is needed before the next request.
        PivotPackAwaited: the pivot's alignment pack is not stored yet.
        TrainingBudgetSpent, TooFewRecords, LedgerDamaged: see `require_affordable_steps`.
        CoordinatorUnreachable, CoordinatorRefused: the connection failed.
    """
    # A join may carry a sketch, before any manifest is seen.
    work.session.check_brief(work.brief)
    run_missing(work, ((WEIGHTS, _pull),))
    if not work.folder.finished and work.folder.has(work.encoded):
        run_missing(work, _PLAIN if work.sum_plan is None else _SUMMED)


def missing_for_join(work: OpenedRound, prepared: SiloFacts | None) -> str | None:
    """Return the work for which a join of a round waits; None if no work is possible now, or needed."""
    brief, home = work.brief, work.session.home
    if prepared is None or prepared.max_length != brief.training.max_length:
        return f"the data were not checked for texts of {brief.training.max_length} tokens yet"
    if brief.alignment is not None and not (home / PACK).exists():
        if _delivery(work, prepared).built_file(prepared.profile.base_model).exists():
            return None
        return "the alignment pack is not made yet" if _can_build_pack(work, prepared) else None
    if work.carries_sketch and not work.folder.has(JOIN):
        return "the gradient sketch of a newcomer is not made yet"
    return None


def layout_of_silo(work: SyncRound, state: State | None) -> Layout:
    """Return the layout of what this client sends; see `sent_layout`.

    Raises:
        WorkNeeded: the model is not known here yet.
    """
    framed = None
    if work.brief.adapter.kind == "pq" and work.brief.alignment is not None:
        framed = Pack.from_body((work.session.home / PACK).read_bytes()).manifest.selected
    return sent_layout(work.opened, _prepared(work).profile, framed, state, work.participant.lora_rank)


def _prepared(work: SyncRound) -> SiloFacts:
    prepared = read_silo_facts(work.participant.workspace.folder)
    if prepared is None:
        raise WorkNeeded("the facts of this silo's model are missing")
    return prepared


def _pull(work: SyncRound) -> bytes:
    brief, session = work.brief, work.session
    facts = read_silo_facts(work.participant.workspace.folder)
    _fetch_for_work(work, facts.profile.base_model if facts is not None else None)
    prepared = _prepared(work)
    _require_prepared(work, prepared)
    slug, pivot = prepared.profile.base_model, brief.alignment.pivot if brief.alignment is not None else ""
    if brief.alignment is not None and not (session.home / PACK).exists():
        _deliver_pack(work, prepared)
        _require_prepared(work, prepared)  # a newcomer's sketch names the pack
    if has_budget(work.opened):
        require_affordable(work.opened, layout_of_silo(work, work.earlier))
    require_allowed_size(work, lambda: layout_of_silo(work, work.earlier))
    if (dp := session.manifests.plan.privacy.training) is not None:
        require_affordable_steps(work, prepared.records, dp)
    return join_round(
        work,
        work.folder.read(JOIN) if work.carries_sketch else None,
        redeliver=lambda: redeliver_pack(slug, pivot, session.api, session.federation_id, session.home),
        layout=lambda: layout_of_silo(work, work.earlier),
    )


def _require_prepared(work: SyncRound, prepared: SiloFacts) -> None:
    if (task := missing_for_join(work, prepared)) is not None:
        raise WorkNeeded(task)


def _fetch_for_work(work: SyncRound, base_model: str | None) -> None:
    """Store what the model's machine needs of the coordinator: pack, pivot's pack and anchors."""
    session, brief = work.session, work.brief
    api, federation_id, home = session.api, session.federation_id, session.home
    alignment, builds = brief.alignment, False
    if alignment is not None:
        if base_model is not None and archive_voided_pack(base_model, api, federation_id, home):
            archive_trained(work.rounds)
        stored = (home / PACK).exists()
        if not stored and base_model is not None and (body := api.pack(federation_id, base_model)):
            write_durably(home / PACK, body.body)
            stored = True
        builds = not stored and alignment.frames != "random"
        # The other machine fits its frames to the pivot's pack.
        if builds and base_model != alignment.pivot and (pivot := api.pack(federation_id, alignment.pivot)):
            store_pack(home, alignment.pivot, pivot.body)
    reads = any(part.reads_anchors for part in work.opened.parts)
    if (builds or reads) and not has_anchors(home):
        store_anchors(home, api.anchors(federation_id))


def _can_build_pack(work: OpenedRound, prepared: SiloFacts) -> bool:
    """Whether the files for an alignment pack are here: all of a pack of random frames, or of the pivot's."""
    alignment, home = work.brief.alignment, work.session.home
    if alignment is None or alignment.frames == "random":
        return alignment is not None
    is_pivot = prepared.profile.base_model == alignment.pivot
    return has_anchors(home) and (is_pivot or has_pack(home, alignment.pivot))


def _deliver_pack(work: SyncRound, prepared: SiloFacts) -> None:
    """Deliver the pack that was built, and store the one in use.

    Raises:
        PivotPackAwaited: there is none, since the pivot's is not stored.
    """
    session, alignment, slug = work.session, work.brief.alignment, prepared.profile.base_model
    delivery = _delivery(work, prepared)
    if not delivery.built_file(slug).exists():
        raise PivotPackAwaited(session.federation_id, alignment.pivot if alignment is not None else "")
    write_durably(session.home / PACK, delivery.deliver(slug))


def _delivery(work: OpenedRound, prepared: SiloFacts) -> PackDelivery:
    session, alignment = work.session, work.brief.alignment
    if alignment is None:
        raise RuntimeError(f"the plan of {prepared.profile.base_model} has no alignment")
    return PackDelivery(session.api, session.federation_id, session.home, alignment)


def _push(work: SyncRound) -> bytes:
    """Deliver the update; without its reference in the coordinator, it must be encoded again.

    Raises:
        WorkNeeded: the update is encoded again where the model is.
    """
    try:
        return deliver(work)
    except CoordinatorRefused as refusal:
        note_reference(work, refusal)
    # Its absence makes `tessera agent work` encode it again.
    work.folder.forget(UPDATE)
    raise WorkNeeded("the coordinator lacks the update's reference, and it is encoded again")


_PLAIN = ((RECEIPT, _push), (SCORES_SENT, report_scores))
_SUMMED = ((READY, report_ready), (SUMMED, run_sum), (SCORES_SENT, report_scores))


def require_affordable_steps(work: OpenedRound, records: int, dp: PrivateTrainingPlan) -> None:
    """Check that the budget pays for the steps of a round, without paying.

    Args:
        records: the number of different training examples.

    Raises:
        TrainingBudgetSpent: the budget is too small for a round.
        TooFewRecords, LedgerDamaged: see `training_mechanism` and `Ledger`.
    """
    plan = work.brief.training
    # The number of trained values is not known without the model: 1 is the least strict.
    mechanism = training_mechanism(records, 1, plan, dp)
    ledger = Ledger(work.participant.workspace.folder)
    ledger.with_steps(work.session.federation_id, work.brief.round, mechanism, plan.steps, dp)
