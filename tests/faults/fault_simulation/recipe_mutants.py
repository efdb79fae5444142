"""Faults planted in the encoding and decoding of updates, in their packs, and in long polls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sqlalchemy import select

from client_agent.rounds import encode_update
from client_agent.rounds.encode_update import UpdateInputs
from client_agent.storage.round_folder import RESIDUAL, RoundFolder
from coordinator.alignment import intake as packs
from coordinator.db.tables.federations import UpdateRow
from coordinator.rounds import delta_reference, long_poll
from coordinator.updates import validation
from schemas.maths.adapter import Layout
from schemas.messages.recipes import NAMED
from schemas.wire.envelope import slots, unpack
from tests.faults.fault_simulation.agent_mutants import packs_are_contested
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import omits, replaces


def _errors_are_carried(plan: Plan, rates: FaultRates) -> bool:
    return NAMED[plan.recipe].feeds_back and plan.rounds > 1


def _packing_is_cut_short(plan: Plan, rates: FaultRates) -> bool:
    return NAMED[plan.recipe].feeds_back and rates.agent_crash > 0.01


def _errors_are_lost(plan: Plan, rates: FaultRates) -> bool:
    return _packing_is_cut_short(plan, rates) and rates.power == 1 and plan.rounds > 1


def _rounds_come_to_nothing(plan: Plan, rates: FaultRates) -> bool:
    is_short = plan.collect_seconds < 10 and plan.quorum > 1
    return NAMED[plan.recipe].feeds_back and is_short and plan.sluggish


def _last_updates_are_referred_to(plan: Plan, rates: FaultRates) -> bool:
    return NAMED[plan.recipe].reference == "own_last" and plan.rounds > 1


def _replicas_are_prompt(plan: Plan, rates: FaultRates) -> bool:
    return rates.is_prompt and plan.rounds > 1 and not plan.pause


def _liars_name_packs(plan: Plan, rates: FaultRates) -> bool:
    return plan.aligned and plan.two_mouthed


def _stored(folder: RoundFolder, layout: Layout) -> Any:
    """Read what an update lost, whichever update that was."""
    expected = slots(layout)
    with unpack(folder.read(RESIDUAL), encoding=None, expected=expected, max_bytes=2**24) as body:
        return {name: body.read_float32(name) for name in layout}


@replaces(encode_update, "_with_residual", _packing_is_cut_short)
def makes_up_for_its_own_error(with_residual: Any, inputs: UpdateInputs, delta: Any, layout: Any) -> Any:
    """After a kill, an agent takes the residual of this round for that of the round before."""
    summed, folder = with_residual(inputs, delta, layout), inputs.folder
    return encode_update._sum(summed, _stored(folder, layout)) if folder.has(RESIDUAL) else summed


@replaces(encode_update, "_with_residual", _errors_are_carried)
def counts_errors_twice(with_residual: Any, inputs: UpdateInputs, delta: Any, layout: Any) -> Any:
    """The residual is added twice."""
    summed = with_residual(inputs, delta, layout)
    return encode_update._sum(summed, encode_update._difference(summed, delta))


@replaces(encode_update, "_with_residual", _rounds_come_to_nothing)
def makes_up_for_what_came_to_nothing(
    with_residual: Any, inputs: UpdateInputs, delta: Any, layout: Any
) -> Any:
    """The error of an abandoned round is learnt again, and added too."""
    last = inputs.rounds.newest_with(RESIDUAL, before=inputs.folder.number)
    if last is not None and last.base == inputs.folder.base:
        return encode_update._sum(delta, _stored(last, layout))
    return with_residual(inputs, delta, layout)


@replaces(RoundFolder, "write", _errors_are_lost)
def does_not_sync_what_it_lost(write: Any, folder: RoundFolder, name: str, content: bytes) -> None:
    """The residual is lost if the power fails."""
    if name == RESIDUAL:
        (folder.path / name).write_bytes(content)
    else:
        write(folder, name, content)


@replaces(delta_reference, "_counted_before", _last_updates_are_referred_to)
def decodes_against_another_round(newest: Any, session: Any, client_id: str, number: int) -> Any:
    """The newest update that counts is named, and an older one is read, or the newest of anybody."""
    row = newest(session, client_id, number)
    if row is None:
        return None
    counted = select(UpdateRow).where(UpdateRow.reject_reason.is_(None), UpdateRow.id != row.id)
    earlier = counted.where(UpdateRow.round_number < number)
    other_row = session.scalar(earlier.order_by(UpdateRow.client_id != client_id, UpdateRow.id))
    read = other_row or row
    return SimpleNamespace(
        digest=row.digest,
        state_payload_id=read.state_payload_id,
        state_begin=read.state_begin,
        layout=row.layout,
    )


@replaces(long_poll.LongPolls, "_compare", _replicas_are_prompt)
async def wakes_nobody(_: Any, polls: Any) -> None:
    """Long polls are not woken, and end at their time limit."""


# Whoever delivers last has its pack kept.
omits("replaces packs that are in use", packs, "require_replaceable", packs_are_contested)


@replaces(validation, "check_address", _liars_name_packs)
def counts_what_was_learnt_under_any_pack(check: Any, manifest: Any, expected: Any, **facts: Any) -> None:
    """The pack that an update names is not compared with the stored pack."""
    check(manifest, replace(expected, pack=manifest.pack), **facts)
