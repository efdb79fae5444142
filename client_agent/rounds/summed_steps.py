"""Steps of a round in which updates are summed: encode the input, report ready, and take part in the sum.

Needs no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from client_agent.errors import SumRefused
from client_agent.identity.membership import read_key
from client_agent.rounds.opened_round import OpenedRound
from client_agent.rounds.step_runner import InputNotCounted
from client_agent.rounds.sum_input import RoundResult, SumInput
from client_agent.secure_sum.calls import HttpSumCalls
from client_agent.secure_sum.drive import SumTask, take_part_in_sum
from client_agent.secure_sum.expectation import Expectation
from client_agent.secure_sum.journal import SumJournal
from client_agent.secure_sum.progress import SumProgress
from client_agent.secure_sum.unmask_marks import UnmaskMarks
from client_agent.storage.round_folder import INPUT, PARTIAL, PARTIAL_COMMON, SUM_PROGRESS
from schemas.identity.keys import public_key
from schemas.maths.adapter import Layout
from schemas.maths.bank import manifest
from schemas.messages.secure_sum import Segment, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import SecureSumPlan
from schemas.secure_sum.counts import count_segments, groups_of
from schemas.secure_sum.segments import segment_of, segments_of

if TYPE_CHECKING:
    from client_agent.rounds.work import Work

log = logging.getLogger(__name__)

_EVIDENCE = "evidence"
_UNMASKED = "unmasked"
_LEFT_OUT = "left-out-of-sum"


def encode_input(work: Work) -> bytes:
    """Return the encoded input of the round. Later steps use this file: it is rounded at random, and once."""
    trained = work.trained.of(work.folder)
    result = RoundResult(
        plan=work.session.manifests.plan,
        summed=required_plan(work),
        layout=layout_of(work),
        served={},
        trained=trained.adapter,
        scores=trained.scores,
        examples=len(work.trainer.silo.data.train),
        base=work.folder.base,
        groups=counted_groups(work),
    )
    result = work.opened.strategy.served.summed_result(work, result)
    content = result.encode(work.brief.round)
    # The training is stored; the positions in it are not needed any more.
    work.folder.forget(PARTIAL, PARTIAL_COMMON)
    return content


def report_ready(work: OpenedRound) -> bytes:
    """Report that this client waits for the sum, and return the receipt."""
    receipt = _calls(work).ready(_input(work).ready)
    log.info("round %d: ready for the sum", work.brief.round)
    return receipt.model_dump_json().encode()


def run_sum(work: OpenedRound) -> bytes:
    """Take part in the sum, and return its outcome.

    Raises:
        InputNotCounted: the sum has no input of this client, or the round was abandoned.
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
        raise InputNotCounted(outcome.reason or "abandoned", f"the round was abandoned: {outcome.reason}")
    counted = outcome.counted or []
    if session.client_id not in counted:
        raise InputNotCounted(_LEFT_OUT, f"the sum of {len(counted)} members went on without this client")
    log.info("round %d: the sum counts %d members, this client among them", work.brief.round, len(counted))
    return outcome.model_dump_json().encode()


def _report(work: OpenedRound, progress: SumProgress) -> None:
    work.folder.write(SUM_PROGRESS, progress.model_dump_json().encode())


def _expectation(
    work: OpenedRound, encoded: SumInput, terms: SumTerms, counts: SumCounts | None
) -> Expectation:
    """Return this client's own view of a session, with the roster at the version of its terms.

    A sum after `counts` has segments of those groups that the coordinator asks for, if each keeps `k_min`
    members without the counted ones that are absent.

    Raises:
        SumRefused: the terms go back behind the roster of the round's manifest.
        RosterRefused: the roster at that version is not acceptable.
    """
    session, plan, manifests = work.session, required_plan(work), work.session.manifests
    manifest = manifests.read(manifests.last_accepted())
    # An older roster could bring back a revoked member.
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
        # From this client's own plan and layout, so that the coordinator cannot ask for other values.
        segments=_segments(work, terms, counts),
        bits=plan.bits,
        minimum=plan.minimum,
        kind=terms.kind if counted_groups(work) else "sum",
        masking=plan.masking,
        least_per_group=plan.k_min,
        groups=counted_groups(work),
        counts=counts,
        choices=work.opened.strategy.options.choices if counted_groups(work) else None,
    )


def _calls(work: OpenedRound) -> HttpSumCalls:
    session = work.session
    return HttpSumCalls(session.api, session.federation_id, work.brief.round, session.policy)


def _input(work: OpenedRound, segments: Sequence[Segment] = ()) -> SumInput:
    return SumInput.from_bytes(work.folder.read(INPUT), segments)


def _segments(work: OpenedRound, terms: SumTerms, counts: SumCounts | None) -> tuple[Segment, ...]:
    """Return the segments of a session by this client's own plan, layout and strategy."""
    if terms.kind == "counts":
        return count_segments(counted_groups(work))
    present: frozenset[str] = frozenset()
    if counts is not None:
        present = manifest(counts.groups, counts.members, terms.lost, required_plan(work).k_min)
    return segments_of(work.session.manifests.plan, layout_of(work), present & groups_of(terms.segments))


def counted_groups(work: OpenedRound) -> tuple[str, ...]:
    """Return the groups whose members are counted before the sum; () = there are none."""
    return work.opened.strategy.options.counts(sorted({segment_of(tensor) for tensor in layout_of(work)}))


def layout_of(work: OpenedRound) -> Layout:
    """Return the layout of what members add up."""
    return work.opened.strategy.served.summed_layout(work)


def required_plan(work: OpenedRound) -> SecureSumPlan:
    plan = work.sum_plan
    if plan is None:
        raise SumRefused("the federation's plan has no privacy.secure_sum")
    return plan
