"""Faults planted in how updates are written by a recipe, read again, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from client_agent.rounds import encode_update
from client_agent.rounds.encode_update import UpdateInputs
from client_agent.storage.round_folder import RESIDUAL, RoundFolder
from coordinator.db.tables.federations import UpdateRow
from coordinator.rounds import delta_reference, long_poll
from schemas.maths.adapter import Layout
from schemas.messages.recipes import NAMED
from schemas.wire.envelope import slots, unpack
from tests.fault_simulation.weather import Plan, Weather


@contextmanager
def makes_up_for_its_own_error() -> Iterator[None]:
    """Who is killed after it kept what it lost, and packs again, takes that for the round's before."""
    with_residual = encode_update._with_residual

    def again(inputs: UpdateInputs, delta: Any, layout: Any) -> Any:
        summed, folder = with_residual(inputs, delta, layout), inputs.folder
        return encode_update._sum(summed, _stored(folder, layout)) if folder.has(RESIDUAL) else summed

    with patch.object(encode_update, "_with_residual", again):
        yield


@contextmanager
def counts_errors_twice() -> Iterator[None]:
    """What was lost is added to what travels, and added once more."""
    with_residual = encode_update._with_residual

    def twice(inputs: UpdateInputs, delta: Any, layout: Any) -> Any:
        summed = with_residual(inputs, delta, layout)
        return encode_update._sum(summed, encode_update._difference(summed, delta))

    with patch.object(encode_update, "_with_residual", twice):
        yield


@contextmanager
def makes_up_for_what_came_to_nothing() -> Iterator[None]:
    """The error of an abandoned round is learnt again, and added too."""
    with_residual = encode_update._with_residual

    def always(inputs: UpdateInputs, delta: Any, layout: Any) -> Any:
        last = inputs.rounds.newest_with(RESIDUAL, before=inputs.folder.number)
        if last is not None and last.base == inputs.folder.base:
            return encode_update._sum(delta, _stored(last, layout))
        return with_residual(inputs, delta, layout)

    with patch.object(encode_update, "_with_residual", always):
        yield


@contextmanager
def does_not_sync_what_it_lost() -> Iterator[None]:
    """What an update lost is there, until the power goes."""
    write = RoundFolder.write

    def careless(self: RoundFolder, name: str, content: bytes) -> None:
        if name == RESIDUAL:
            (self.path / name).write_bytes(content)
        else:
            write(self, name, content)

    with patch.object(RoundFolder, "write", careless):
        yield


@contextmanager
def decodes_against_another_round() -> Iterator[None]:
    """The newest update that counts is named, and an older one is read, or the newest of anybody."""
    newest = delta_reference._counted_before

    def older(session: Any, client_id: str, number: int) -> Any:
        row = newest(session, client_id, number)
        if row is None:
            return None
        counted = select(UpdateRow).where(UpdateRow.reject_reason.is_(None), UpdateRow.id != row.id)
        other = session.scalar(
            counted.where(UpdateRow.round_number < number).order_by(
                UpdateRow.client_id != client_id, UpdateRow.id
            )
        )
        read = other or row
        return SimpleNamespace(
            digest=row.digest,
            state_payload_id=read.state_payload_id,
            state_begin=read.state_begin,
            layout=row.layout,
        )

    with patch.object(delta_reference, "_counted_before", older):
        yield


@contextmanager
def wakes_nobody() -> Iterator[None]:
    """Who waits for a round is told when its time is over."""

    async def compare(self: Any) -> None:
        pass

    with patch.object(long_poll.LongPolls, "_compare", compare):
        yield


def _stored(folder: RoundFolder, layout: Layout) -> Any:
    """Read what an update lost, whichever update that was."""
    expected = slots(layout)
    with unpack(folder.read(RESIDUAL), encoding=None, expected=expected, max_bytes=2**24) as kept:
        return {name: kept.read_float32(name) for name in layout}


def _errors_are_carried(plan: Plan, weather: Weather) -> bool:
    return NAMED[plan.recipe].feeds_back and plan.rounds > 1


def _packing_is_cut_short(plan: Plan, weather: Weather) -> bool:
    return NAMED[plan.recipe].feeds_back and weather.agent_crash > 0.01


def _errors_are_lost(plan: Plan, weather: Weather) -> bool:
    return _packing_is_cut_short(plan, weather) and weather.power == 1 and plan.rounds > 1


def _rounds_come_to_nothing(plan: Plan, weather: Weather) -> bool:
    is_short = plan.collect_seconds < 10 and plan.quorum > 1
    return NAMED[plan.recipe].feeds_back and is_short and plan.sluggish


def _last_updates_are_referred_to(plan: Plan, weather: Weather) -> bool:
    return NAMED[plan.recipe].reference == "own_last" and plan.rounds > 1


def _replicas_are_prompt(plan: Plan, weather: Weather) -> bool:
    return weather.is_prompt and plan.rounds > 1 and not plan.pause


RECIPE_MUTANTS: tuple[
    tuple[str, Callable[[], AbstractContextManager[object]], Callable[[Plan, Weather], bool]], ...
] = (
    ("counts errors twice", counts_errors_twice, _errors_are_carried),
    ("makes up for its own error", makes_up_for_its_own_error, _packing_is_cut_short),
    ("makes up for what came to nothing", makes_up_for_what_came_to_nothing, _rounds_come_to_nothing),
    ("does not sync what it lost", does_not_sync_what_it_lost, _errors_are_lost),
    ("decodes against another round", decodes_against_another_round, _last_updates_are_referred_to),
    ("wakes nobody", wakes_nobody, _replicas_are_prompt),
)
