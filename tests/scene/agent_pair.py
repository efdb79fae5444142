"""Two agents of one federation in this process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import RoundFolder
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.rounds import RoundBrief
from tests.scene.agents import QUICK, enrolled, next_brief
from tests.scene.coordinator import Served

CA_PFL_RECIPE = {"reference": "served", "density": 0.9, "values": "int8"}

CA_PFL: dict[str, Any] = {
    "strategy": {"name": "ca_pfl", "options": {"warm_rounds": 1, "density": 0.3}},
    "adapter": {"kind": "lora", "rank": 2, "scale": 4.0, "roles": ["q", "v"]},
    "wire": {"recipe": CA_PFL_RECIPE},
    "training": QUICK,
}


class Pair:
    """Two clients of one federation, on one base model, with unequal numbers of examples of their own."""

    def __init__(self, served: Served, silo: Silo, folder: Path, stack: ExitStack, **plan: Any) -> None:
        self.served = served
        self.federation_id = served.federation(**(CA_PFL | plan))
        halves = {"aster": silo.data.train[:6], "birch": silo.data.train[6:10]}
        self.members = {
            name: enrolled(
                served,
                self.federation_id,
                Silo(silo.base, SiloData(train, (), silo.data.test[:4]), None),
                folder / name,
                stack,
                name=name,
                keep_rounds=9,
            )
            for name, train in halves.items()
        }
        served.start_federation(self.federation_id)

    def brief(self, name: str) -> RoundBrief:
        return next_brief(self.members[name])

    def run_round(self, *names: str) -> dict[str, RoundFolder]:
        """Run the next round for these clients: all join before the first delivers."""
        briefs = {name: self.brief(name) for name in names}
        (number,) = {brief.round for brief in briefs.values()}
        for name in names:
            self.members[name].session.api.join(self.federation_id, number, None)
        for name, brief in briefs.items():
            assert take_part(self.members[name], brief)
        return {name: self.members[name].workspace.rounds.open(number) for name in names}
