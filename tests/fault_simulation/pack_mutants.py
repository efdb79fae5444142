"""Faults planted in who may say what an alignment pack is, and in what an update was learnt under."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from client_agent.alignment import pack_exchange
from coordinator.alignment import intake as packs
from coordinator.updates import validation
from tests.fault_simulation.weather import Plan, Weather


@contextmanager
def replaces_packs_that_are_in_use() -> Iterator[None]:
    """Whoever delivers last has its pack kept."""
    with patch.object(packs, "require_replaceable", lambda *_, **__: None):
        yield


@contextmanager
def counts_what_was_learnt_under_any_pack() -> Iterator[None]:
    """What an update says of its pack is not compared with the pack that is stored."""
    check = validation.check_address

    def lenient(manifest: Any, wanted: Any, **said: Any) -> None:
        check(manifest, replace(wanted, pack=manifest.pack), **said)

    with patch.object(validation, "check_address", lenient):
        yield


@contextmanager
def keeps_to_the_pack_it_made() -> Iterator[None]:
    """An agent uses its own pack, though the coordinator has a faster agent's."""
    deliver = pack_exchange._PackBuilder._deliver

    def stubborn(self: Any, base_model: str, make: Any) -> bytes:
        stored = deliver(self, base_model, make)
        file = self.folder / f"made-{base_model}.safetensors"  # it stays when another was stored
        return file.read_bytes() if file.exists() else stored

    with patch.object(pack_exchange._PackBuilder, "_deliver", stubborn):
        yield


def _packs_are_contested(plan: Plan, weather: Weather) -> bool:
    return plan.aligned and plan.packs_before == 0


def _liars_name_packs(plan: Plan, weather: Weather) -> bool:
    return plan.aligned and plan.two_mouthed


PACK_MUTANTS: tuple[
    tuple[str, Callable[[], AbstractContextManager[object]], Callable[[Plan, Weather], bool]], ...
] = (
    ("replaces packs that are in use", replaces_packs_that_are_in_use, _packs_are_contested),
    ("counts what was learnt under any pack", counts_what_was_learnt_under_any_pack, _liars_name_packs),
    ("keeps to the pack it made", keeps_to_the_pack_it_made, _packs_are_contested),
)
