"""Faults planted in the agent, whose journal makes a retry the same update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_agent.alignment import pack_exchange
from client_agent.identity import key_rotation, membership
from client_agent.storage import round_folder
from client_agent.storage.round_folder import RECEIPT, TRAINED, UPDATE, RoundFolder
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import omits, replaces


def _keys_are_replaced(plan: Plan, rates: FaultRates) -> bool:
    return plan.rotations > 0 and plan.at_once and rates.agent_crash > 0.01 and rates.power > 0


def _replacing_is_cut_short(plan: Plan, rates: FaultRates) -> bool:
    return plan.rotations == 2 and rates.agent_crash > 0.01


def _power_goes(plan: Plan, rates: FaultRates) -> bool:
    return rates.power == 1 and rates.agent_crash > 0.01 and rates.lost_reply > 0.1


def _replies_are_lost(plan: Plan, rates: FaultRates) -> bool:
    return rates.lost_reply > 0 and rates.agent_crash > 0


def packs_are_contested(plan: Plan, rates: FaultRates) -> bool:
    return plan.aligned and plan.packs_before == 0


@replaces(round_folder, "write_durably", _power_goes)
def does_not_sync_its_journal(_: Any, path: Path, content: bytes) -> None:
    """A written file is lost if the power fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@replaces(RoundFolder, "has", _replies_are_lost)
def trains_again_for_a_retry(has: Any, folder: RoundFolder, name: str) -> bool:
    """An unacknowledged round is trained again."""
    return has(folder, name) and (name not in (TRAINED, UPDATE) or has(folder, RECEIPT))


@replaces(membership, "write_durably", _keys_are_replaced)
def sends_a_key_before_it_is_safe(write: Any, path: Path, content: bytes) -> None:
    """The next key is lost if the power fails."""
    if path.name == "next.key":
        path.write_bytes(content)
    else:
        write(path, content)


# A new key that is there is used, whether the coordinator has heard of it or not.
omits("takes up a key unseen", key_rotation, "_is_accepted", _replacing_is_cut_short, value=lambda *_: True)


@replaces(pack_exchange._PackBuilder, "_deliver", packs_are_contested)
def keeps_to_the_pack_it_made(deliver: Any, builder: Any, base_model: str, make: Any) -> bytes:
    """An agent uses its own pack, though the coordinator has a faster agent's."""
    stored: bytes = deliver(builder, base_model, make)
    file: Path = builder.folder / f"made-{base_model}.safetensors"  # it stays when another was stored
    return file.read_bytes() if file.exists() else stored
