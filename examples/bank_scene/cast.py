"""The silos of the scene: names, arrivals and departures, examples and plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.model.examples import Example
from schemas.messages.federations import FederationPlan
from studies.methods import methods_of, plan_of
from studies.partition import draw_examples
from studies.study import Study, read_study

STUDY: Final = Path(__file__).resolve().parent.parent / "studies" / "bank_scene.toml"
METHOD: Final = "scene"
CONFIG: Final = "silo.toml"
SIDES: Final = ("train", "validation", "test")

LEAVING: Final = "label"
LEAVES_AFTER: Final = 12
"""The round after which the silos of `LEAVING` are stopped and revoked."""

ENROLLED_BEFORE: Final = 2
"""How many rounds before it joins a late silo enrols."""

TRAINING_VICTIM, TRAINING_KILL = "cipher-2", 2
UNMASKING_VICTIM, UNMASKING_KILL = "cipher_c-4", 6
COORDINATOR_KILL: Final = 4
"""The round in which the coordinator is killed; the agents of the two others die in their rounds."""

VICTIMS: Final = (TRAINING_VICTIM, UNMASKING_VICTIM)


@dataclass(frozen=True, slots=True)
class Cast:
    """The study of the scene with one seed."""

    study: Study
    seed: int

    @classmethod
    def of(cls, seed: int) -> Cast:
        return cls(read_study(STUDY), seed)

    @property
    def plan(self) -> FederationPlan:
        """The plan of the federation, as `tessera compare` runs it; rounds wait ten minutes at most."""
        plan = plan_of(self.study, methods_of(self.study, [METHOD])[0], self.seed, None)
        rounds = plan.rounds.model_copy(update={"collect_seconds": 600.0})
        return plan.model_copy(update={"name": "Bank of experts", "rounds": rounds})

    @property
    def group_of(self) -> dict[str, str]:
        """The group of each silo, by its name."""
        return {silo.name: silo.group or silo.name for silo in self.study.silo}

    @property
    def arrivals(self) -> dict[int, list[str]]:
        """The silos that join after each round; 0 = before the first."""
        by_round: dict[int, list[str]] = {}
        for silo in self.study.silo:
            by_round.setdefault(silo.joins_after, []).append(silo.name)
        return dict(sorted(by_round.items()))

    @property
    def newcomer(self) -> str:
        """The silo that joins last, alone."""
        (name,) = list(self.arrivals.values())[-1]
        return name

    @property
    def fourth_group(self) -> str:
        """The group whose silos are all late."""
        founding = {self.group_of[name] for name in self.arrivals[0]}
        return next(group for group in self.group_of.values() if group not in founding)

    @property
    def leaving(self) -> list[str]:
        return [name for name, group in self.group_of.items() if group == LEAVING]

    def members(self, number: int) -> list[str]:
        """Return the silos that take part in a round."""
        present = [name for after, names in self.arrivals.items() if after < number for name in names]
        return [name for name in present if number <= LEAVES_AFTER or name not in self.leaving]

    def write_data(self, folder: Path) -> None:
        """Write the examples of every silo: those that `tessera compare` draws with this seed."""
        for name, data in draw_examples(self.study, self.seed).items():
            (folder / name).mkdir(parents=True)
            for side in SIDES:
                (folder / name / f"{side}.jsonl").write_text(_lines(getattr(data, side)))

    def write_config(self, name: str, data: Path, folder: Path, url: str) -> Path:
        """Write a silo's TOML file into its folder, and return its path."""
        silo = next(silo for silo in self.study.silo if silo.name == name)
        folder.mkdir(parents=True, exist_ok=True)
        sources = "".join(f'{side} = "{data / name / side}.jsonl"\n' for side in SIDES)
        file = folder / CONFIG
        file.write_text(
            f'url = "{url}"\nfolder = "state"\nmodel = "{silo.model}"\n{sources}'
            f'generated_scores = "ends"\n'  # losses tell the experts apart, and generating takes longest
            f"threads = 1\n"
        )
        return file


def _lines(examples: Sequence[Example]) -> str:
    rows = [{"prompt": example.prompt, "completion": example.completion} for example in examples]
    return "".join(json.dumps(row) + "\n" for row in rows)
