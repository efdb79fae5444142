"""Steps of a round in which updates are summed: encode the input, report ready, take part in the sum."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from client_agent.adapters.expert_bank import expert_tensors
from client_agent.errors import AgentError
from client_agent.experts.memory import Choice
from client_agent.identity.membership import read_key
from client_agent.rounds.bank import plain_names, read_bank, read_index
from client_agent.rounds.served_weights import read_weights
from client_agent.rounds.sum_input import RoundResult, SumInput
from client_agent.rounds.work import Work
from client_agent.secure_sum.calls import HttpSumCalls
from client_agent.secure_sum.drive import SumTask, take_part_in_sum
from client_agent.secure_sum.errors import SumRefused
from client_agent.secure_sum.expectation import Expectation
from client_agent.secure_sum.journal import SumJournal
from client_agent.secure_sum.progress import SumProgress
from client_agent.secure_sum.unmask_marks import UnmaskMarks
from client_agent.storage.round_folder import INPUT, PARTIAL, PARTIAL_COMMON, SUM_PROGRESS, WEIGHTS
from schemas.identity.keys import public_key
from schemas.maths.adapter import Layout, in_order
from schemas.maths.bank import SHARED, bank_layout, manifest
from schemas.messages.secure_sum import Segment, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import SecureSumPlan
from schemas.secure_sum.counts import count_segments, groups_of
from schemas.secure_sum.segments import segment_of, segments_of

log = logging.getLogger(__name__)

_EVIDENCE = "evidence"
_UNMASKED = "unmasked"
_LEFT_OUT = "left-out-of-sum"


class NotCounted(AgentError):
    """The sum of a round ended without this client's input; `reason` is a slug."""

    def __init__(self, reason: str, explanation: str) -> None:
        super().__init__(explanation)
        self.reason = reason


def encode_input(work: Work) -> bytes:
    """Return the encoded input of the round. Later steps use this file: it is rounded at random, and once."""
    layout, trained = _layout(work), work.trained.of(work.folder)
    is_bank = work.opened.traits.routing is not None
    result = RoundResult(
        plan=work.session.manifests.plan,
        summed=_plan(work),
        layout=layout,
        served={} if is_bank else read_weights(work.folder.read(WEIGHTS), layout),
        trained=trained.adapter,
        scores=trained.scores,
        examples=len(work.trainer.silo.data.train),
        base=work.folder.base,
        groups=_groups(work),
    )
    content = (_of_bank(work, result) if is_bank else result).encode(work.brief.round)
    work.folder.forget(PARTIAL, PARTIAL_COMMON)
    return content


def _of_bank(work: Work, result: RoundResult) -> RoundResult:
    """Return a round's result with the experts that were served, and with this client's choice among them.

    Without the choice, whose file was lost or damaged, the client belongs to the experts that it changed.
    """
    index, choice = read_index(work.folder), work.expert_memory.rounds.get(work.brief.round)
    served = read_bank(work.session.home, work.folder, _expert_layout(work))
    return replace(
        result,
        served=plain_names(served),
        trained=plain_names(result.trained),
        bank=index,
        responsibilities=_trained_responsibilities(choice) if choice is not None else None,
        rejects=choice is not None and choice.rejects,
    )


def _trained_responsibilities(choice: Choice) -> dict[int, float]:
    return {expert: choice.responsibilities[expert] for expert in choice.trained}


def report_ready(work: Work) -> bytes:
    """Report that this client waits for the sum, and return the receipt."""
    receipt = _calls(work).ready(_input(work).ready)
    log.info("round %d: ready for the sum", work.brief.round)
    return receipt.model_dump_json().encode()


def run_sum(work: Work) -> bytes:
    """Take part in the sum, and return its outcome.

    Raises:
        NotCounted: the sum has no input of this client, or the round was abandoned.
        SumRefused: the coordinator contradicts what this silo knows.
    """
    encoded, session, folder = _input(work), work.session, work.folder
    outcome = take_part_in_sum(
        SumTask(
            calls=_calls(work),
            journal=SumJournal(folder.path, session.home / _EVIDENCE, UnmaskMarks(session.home / _UNMASKED)),
            values=lambda terms: _input(work, terms.segments).values,
            input_digest=encoded.digest,
            expect=lambda terms, counts: _expectation(work, encoded, terms, counts),
            identity=read_key(work.participant.workspace.folder),
            client=session.client_id,
            report=lambda progress: _report(work, progress),
            sleep=work.participant.sleep,
        ),
        work.brief.round,
    )
    if outcome.state == "abandoned":
        raise NotCounted(outcome.reason or "abandoned", f"the round was abandoned: {outcome.reason}")
    counted = outcome.counted or []
    if session.client_id not in counted:
        raise NotCounted(_LEFT_OUT, f"the sum of {len(counted)} members went on without this client")
    log.info("round %d: the sum counts %d members, this client among them", work.brief.round, len(counted))
    return outcome.model_dump_json().encode()


def _report(work: Work, progress: SumProgress) -> None:
    work.folder.write(SUM_PROGRESS, progress.model_dump_json().encode())


def _expectation(work: Work, encoded: SumInput, terms: SumTerms, counts: SumCounts | None) -> Expectation:
    """Return this client's own view of a session, with the roster at the version of its terms.

    A sum after `counts` has segments of those groups that the coordinator asks for, if each keeps `k_min`
    members without the counted ones that are absent.

    Raises:
        SumRefused: the terms go back behind the roster of the round's manifest.
        RosterRefused: the roster at that version is not acceptable.
    """
    session, plan, manifests = work.session, _plan(work), work.session.manifests
    manifest = manifests.read(manifests.last_accepted())
    if terms.roster_version < manifest.roster_version:
        raise SumRefused(
            f"the terms are of version {terms.roster_version} of the roster, and the round's manifest of "
            f"version {manifest.roster_version}"
        )
    keys = session.roster.keys_at(session.federation_id, terms.roster_version, terms.roster_hash, session.api)
    return Expectation(
        federation=session.federation_id,
        round=work.brief.round,
        client=session.client_id,
        server_key=public_key(session.server_key),
        roster=keys,
        roster_version=terms.roster_version,
        roster_hash=terms.roster_hash,
        plan=manifest.plan,
        weights=encoded.ready.values,
        segments=_segments(work, terms, counts),
        bits=plan.bits,
        minimum=plan.minimum,
        kind=terms.kind if _groups(work) else "sum",
        masking=plan.masking,
        least_per_group=plan.k_min,
        groups=_groups(work),
        counts=counts,
    )


def _calls(work: Work) -> HttpSumCalls:
    return HttpSumCalls(work.session.api, work.session.federation_id, work.brief.round)


def _input(work: Work, segments: Sequence[Segment] = ()) -> SumInput:
    return SumInput.from_bytes(work.folder.read(INPUT), segments)


def _segments(work: Work, terms: SumTerms, counts: SumCounts | None) -> tuple[Segment, ...]:
    """Return the segments of a session by this client's own plan, layout and strategy."""
    if terms.kind == "counts":
        return count_segments(_groups(work))
    present: frozenset[str] = frozenset()
    if counts is not None:
        present = manifest(counts.groups, counts.members, terms.lost, _plan(work).k_min)
    return segments_of(work.session.manifests.plan, _layout(work), present & groups_of(terms.segments))


def _groups(work: Work) -> tuple[str, ...]:
    """Return the groups whose members are counted before the sum; () = there are none."""
    return work.opened.strategy.counts(sorted({segment_of(tensor) for tensor in _layout(work)}))


def _layout(work: Work) -> Layout:
    if work.opened.traits.routing is None:
        adapter = work.trained.of(work.folder).adapter
        return in_order({name: values.shape for name, values in adapter.items()})
    experts = (entry.expert for entry in read_index(work.folder).experts)
    return bank_layout(_expert_layout(work), experts)


def _expert_layout(work: Work) -> Layout:
    """Return the layout of one expert, with plain names."""
    shared = expert_tensors(SHARED, work.trained.of(work.folder).adapter)
    return in_order({name: values.shape for name, values in shared.items()})


def _plan(work: Work) -> SecureSumPlan:
    plan = work.sum_plan
    if plan is None:
        raise SumRefused("the federation's plan has no privacy.secure_sum")
    return plan
