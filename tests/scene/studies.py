"""Small studies on the example models, and fabricated results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from client_agent.storage.final_scores import FinalScores
from client_agent.training.data import SiloData
from schemas.messages.scores import Change, Score, Scores
from studies.results import CellResult, ClientResult, ClientRound
from studies.study import Study, read_study
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.plans import federation_plan

TINY = {
    "rounds": {"total": 2},
    "adapter": {"rank": 4, "roles": ["v"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
    "alignment": {"anchors": 64},
}

MIXING = Change(value=-0.125, error=0.01, count=8)
"""The change by mixing in each round but the first of a fabricated federated run."""


def write_pools(folder: Path, count: int = 20) -> None:
    """Write pools of `count` training examples and as many test items."""
    for task, answer in (("copy", "b"), ("flip", "c")):
        for part, letter in (("train", "a"), ("test", "b")):
            lines = [
                {
                    "prompt": f"{task.upper()} {letter}{chr(97 + i // 10)}{chr(97 + i % 10)}=",
                    "completion": answer,
                }
                for i in range(count)
            ]
            file = folder / task / f"{part}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def silo_table(name: str, task: str = "copy", model: str = "S", **more: object) -> str:
    """Write one silo's table."""
    lines = {
        "name": name,
        "model": str(MODELS[model]),
        "train": f"{task}/train.jsonl",
        "test": f"{task}/test.jsonl",
        "examples": 4,
        "group": task,
    } | more
    return "[[silo]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())


def write_study(folder: Path, *silos: str, more: str = "") -> Path:
    """Write a study of these silos, and its pools."""
    write_pools(folder)
    file = folder / "study.toml"
    plan = "".join(
        f"plan.{table}.{key} = {json.dumps(value)}\n"
        for table, values in TINY.items()
        for key, value in values.items()
    )
    file.write_text(
        f'pivot_model = "{MODELS["S"]}"\nanchors = "{EXAMPLES / "anchors.json"}"\ntests = 8\n'
        + "validation = 2\nseeds = [0, 1]\n"
        + plan
        + more
        + "\n"
        + "\n".join(silos or (silo_table("aster"), silo_table("birch")))
    )
    return file


def study(folder: Path, *silos: str, more: str = "") -> Study:
    """Write a study and read it."""
    return read_study(write_study(folder, *silos, more=more))


def result(
    method: str,
    seed: int,
    losses: Mapping[str, Sequence[float]],
    *,
    joins_after: Mapping[str, int] = {},
    final: Mapping[str, float] = {},
    validated: bool = False,
    rate: float = 0.01,
) -> CellResult:
    """Fabricate a run from, per client, the test loss at its start and after each round.

    `validated`: with validation losses, equal to the test losses.
    """
    clients = [
        ClientResult(
            name=name,
            base_model="tiny",
            joins_after=joins_after.get(name, 0),
            rounds=[
                ClientRound(
                    round=joins_after.get(name, 0) + i + 1,
                    scores=Scores(
                        served=scored(before),
                        trained=scored(after),
                        kept="trained",
                        mixing=MIXING if i and not method.startswith("local") else None,
                    ),
                    validation={"served": before, "trained": after} if validated else {},
                    bytes_up=1000,
                    bytes_down=2000,
                )
                for i, (before, after) in enumerate(itertools.pairwise(values))
            ],
            final=FinalScores(scores=scored(final[name]), validation_loss=final[name] if validated else None)
            if name in final
            else None,
            learning_rate=rate,
            forgetting=0.25,
        )
        for name, values in losses.items()
    ]
    rounds = max(len(values) for values in losses.values()) - 1
    plan = federation_plan(rounds={"total": rounds}, training={"steps": 10})
    return CellResult(
        digest=f"{method}{seed}",
        method=method,
        seed=seed,
        alone=method.startswith("local"),
        plan=plan,
        clients=clients,
        wall_seconds=2.0,
        cpu_seconds=1.0,
        search_cpu_seconds=0.5,
    )


def keys_of(data: dict[str, SiloData], side: str) -> list[str]:
    """Return the keys of all silos' examples of a side: train, validation or test."""
    return [example.key for of_silo in data.values() for example in getattr(of_silo, side)]


def scored(loss: float) -> dict[str, Score]:
    """Fabricate the scores of a loss; the exact match is 1 minus a tenth of it."""
    values = {"loss": loss, "perplexity": 1.0, "exact_match": 1 - loss / 10}
    return {name: Score(value=value, count=8) for name, value in values.items()}
