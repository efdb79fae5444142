"""The silos of the demo, their tickets and their plans: a draw of examples/studies/helpdesks.toml."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.model.examples import Example
from schemas.messages.federations import FederationPlan
from studies.methods import merge_tables, methods_of, plan_of
from studies.partition import draw_examples
from studies.study import Study, read_study

STUDY: Final = Path(__file__).resolve().parent.parent / "studies" / "helpdesks.toml"
ALONE: Final = "local_lora"
FEDERATED: Final = "fedmosaic_lora"
NAME: Final = "Helpdesks"
CONFIG: Final = "silo.toml"
_QUICK: Final = {"rounds.total": 1, "training.steps": 2, "training.batch_size": 2, "scores.examples": 4}


@dataclass(frozen=True, slots=True)
class Helpdesk:
    """A silo: its name, its scheme of routing and answering, and whether it joins late."""

    name: str
    scheme: str
    late: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """Everything that both sides of the comparison share: silos, model, plans and the draw of the tickets."""

    study: Study
    seed: int

    @classmethod
    def of(cls, models: Path, seed: int) -> Cast:
        return cls(read_study(STUDY, models=models.absolute()), seed)

    def quick(self) -> Cast:
        """Return the cast that only shows that everything works: two silos, one round of two steps."""
        plan = merge_tables(self.study.plan, _QUICK)
        smaller = {"silo": self.study.founders[:2], "tests": 4, "plan": plan}
        return Cast(self.study.model_copy(update=smaller), self.seed)

    @property
    def helpdesks(self) -> list[Helpdesk]:
        return [Helpdesk(silo.name, silo.group or "", silo.joins_after > 0) for silo in self.study.silo]

    @property
    def founders(self) -> list[str]:
        return [desk.name for desk in self.helpdesks if not desk.late]

    @property
    def latecomer(self) -> str | None:
        return next((desk.name for desk in self.helpdesks if desk.late), None)

    def plan(self, method: str) -> FederationPlan:
        """Return the plan of a method, as `tessera compare` runs it."""
        resolved = methods_of(self.study, [method])[0]
        return plan_of(self.study, resolved, self.seed, None).model_copy(update={"name": NAME})

    def write_data(self, folder: Path) -> None:
        """Write every silo's training and test tickets: those that `tessera compare` draws with this seed."""
        for name, data in draw_examples(self.study, self.seed).items():
            (folder / name).mkdir(parents=True)
            for side, examples in (("train", data.train), ("test", data.test)):
                (folder / name / f"{side}.jsonl").write_text(_lines(examples))

    def write_config(self, name: str, data: Path, folder: Path, url: str) -> Path:
        """Write a silo's TOML file into its folder, and return its path."""
        silo = next(silo for silo in self.study.silo if silo.name == name)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / CONFIG
        file.write_text(
            f'url = "{url}"\n'
            f'folder = "state"\n'
            f'model = "{silo.model}"\n'
            # Relative, so that the folder of an earlier demo works under its new name too.
            f'train = "{os.path.relpath(data / name / "train.jsonl", folder)}"\n'
            f'test = "{os.path.relpath(data / name / "test.jsonl", folder)}"\n'
            f"metrics = {json.dumps(silo.metrics)}\n"
            f"validation_share = 0.0\n"  # eight tickets are few: all of them train, and the plan has the rate
            f'generated_scores = "ends"\n'  # the table shows nothing in between, and generating takes longest
            f"threads = 1\n"
        )
        return file


def _lines(examples: Sequence[Example]) -> str:
    return "".join(json.dumps(_row(example)) + "\n" for example in examples)


def _row(example: Example) -> dict[str, object]:
    turns = [(turn.role, turn.content) for turn in example.turns] + [("assistant", example.completion)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}
