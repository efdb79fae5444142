"""Planted faults: each replaces one safeguard.

A module registers its faults as it is imported. A fault's name is that of its function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from sqlalchemy import exists, or_, select

from coordinator import workers
from coordinator.db.tables.federations import PayloadRow
from coordinator.storage import garbage_collection
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan

Where = Callable[[Plan, FaultRates], bool]
Plant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Mutant:
    """A planted fault; `where` says in which schedules it could show."""

    name: str
    plant: Plant
    where: Where


MUTANTS: list[Mutant] = []


def always(plan: Plan, rates: FaultRates) -> bool:
    return True


def do_nothing(*_: object, **__: object) -> None:
    """Stand in for a check that raises, or for a step that is left out."""


def mutant(where: Where = always) -> Callable[[Plant], Plant]:
    """Register a context manager within which a fault lives."""

    def register(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(plant.__name__.replace("_", " "), plant, where))
        return plant

    return register


def replaces(
    owner: object, name: str, where: Where = always
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that takes the place of another one, which is its first argument."""

    def register(fault: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def plant() -> Iterator[None]:
            real = getattr(owner, name)

            def call(*args: Any, **options: Any) -> Any:
                return fault(real, *args, **options)

            with patch.object(owner, name, call):
                yield

        MUTANTS.append(Mutant(fault.__name__.replace("_", " "), plant, where))
        return fault

    return register


def omits(
    name: str, owner: object, attribute: str, where: Where = always, *, value: object = do_nothing
) -> None:
    """Register the loss of one check or step."""
    MUTANTS.append(Mutant(name, lambda: patch.object(owner, attribute, value), where))


@contextmanager
def collecting_at_once(condition: Any, needed: Sequence[Any]) -> Iterator[None]:
    """Collect, at every look, payloads of any age to which none of some columns refers."""
    collect = garbage_collection.collect
    is_needed = or_(*(exists().where(column == PayloadRow.id) for column in needed))
    unreferenced = select(PayloadRow.id).where(~is_needed, condition)

    def at_once(database: Any, **_: Any) -> int:
        return collect(database, grace=timedelta(0))

    with (
        patch.object(garbage_collection, "_UNREFERENCED", unreferenced),
        patch.object(garbage_collection, "collect", at_once),
        patch.object(workers, "_COLLECT_EVERY_SECONDS", 0.0),
    ):
        yield
