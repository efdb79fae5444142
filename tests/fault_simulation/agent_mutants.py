"""Faults planted in the agent: its journal is what makes a retry the same update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import patch

from client_agent.identity import key_rotation, membership
from client_agent.storage import round_folder
from client_agent.storage.round_folder import RECEIPT, TRAINED, UPDATE, RoundFolder
from tests.fault_simulation.weather import Plan, Weather


@contextmanager
def does_not_sync_its_journal() -> Iterator[None]:
    """What was written is there, until the power goes."""

    def write(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    with patch.object(round_folder, "write_durably", write):
        yield


@contextmanager
def trains_again_for_a_retry() -> Iterator[None]:
    """What was trained and not yet acknowledged is made anew."""
    has = RoundFolder.has

    def forgetful(self: RoundFolder, name: str) -> bool:
        return has(self, name) and (name not in (TRAINED, UPDATE) or has(self, RECEIPT))

    with patch.object(RoundFolder, "has", forgetful):
        yield


@contextmanager
def sends_a_key_before_it_is_safe() -> Iterator[None]:
    """The next key is there, until the power goes."""
    write = membership.write_durably

    def careless(path: Path, content: bytes) -> None:
        if path.name == "next.key":
            path.write_bytes(content)
        else:
            write(path, content)

    with patch.object(membership, "write_durably", careless):
        yield


@contextmanager
def takes_up_a_key_unseen() -> Iterator[None]:
    """A new key that is there is used, whether the coordinator has heard of it or not."""
    with patch.object(key_rotation, "_is_accepted", lambda *_: True):
        yield


def _keys_are_replaced(plan: Plan, weather: Weather) -> bool:
    return plan.rotations > 0 and plan.at_once and weather.agent_crash > 0.01 and weather.power > 0


def _replacing_is_cut_short(plan: Plan, weather: Weather) -> bool:
    return plan.rotations == 2 and weather.agent_crash > 0.01


def _power_goes(plan: Plan, weather: Weather) -> bool:
    return weather.power == 1 and weather.agent_crash > 0.01 and weather.lost_reply > 0.1


def _replies_are_lost(plan: Plan, weather: Weather) -> bool:
    return weather.lost_reply > 0 and weather.agent_crash > 0


AGENT_MUTANTS: tuple[
    tuple[str, Callable[[], AbstractContextManager[object]], Callable[[Plan, Weather], bool]], ...
] = (
    ("does not sync its journal", does_not_sync_its_journal, _power_goes),
    ("trains again for a retry", trains_again_for_a_retry, _replies_are_lost),
    ("sends a key before it is safe", sends_a_key_before_it_is_safe, _keys_are_replaced),
    ("takes up a key unseen", takes_up_a_key_unseen, _replacing_is_cut_short),
)
