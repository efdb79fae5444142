"""Measure how much of relevance remains under differential privacy of sketches.

    python -m benchmarks.private_relevance [--draws 3] [--out FILE.json]

Two silos each of the tasks cipher, cipher_b (the same prompts, another table) and label. Their records'
sketches are made once with examples/models/tiny-s; then each silo releases what the agent's own code makes,
round after round, with the noise that the accountant asks for, and the coordinator's own strategy weighs what
was sent. The mass of a silo is split over its own cluster, itself (it hears nobody) and the other clusters.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.privacy.release import MeanRelease, averaged, release, sample_records
from client_agent.rounds.sketch import mechanism_for
from client_agent.sketches.gradient import Sketch, sketch_of
from client_agent.sketches.per_record import record_sketches
from coordinator.strategies.base import ClientFacts, Cohort
from coordinator.strategies.base import Sketch as Sent
from coordinator.strategies.fedmosaic import Strategy
from examples.tasks import TASKS, draw
from schemas.messages.federations import SignatureDpPlan, SignaturePlan
from schemas.strategies.fedmosaic import FedMosaicOptions

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("cipher", "cipher_b", "label")
SILOS = 2
COUNTS = (12, 64, 256)
BUDGETS = (8.0, 4.0, 1.0)
DIMS = (64, 256)
RELEASES = 20
ROUNDS = (1, 6, 20)
Records = list[Example]
Sketches = list[NDArray[np.float64]]
Mass = tuple[float, float, float]


@dataclass(frozen=True)
class Silo:
    """A silo's task, records and their sketches: the longest; shorter ones are folded from it."""

    task: str
    records: Records
    sketches: Sketches

    @classmethod
    def of(cls, base: BaseModel, task: str, records: Records) -> Silo:
        return cls(task, records, list(record_sketches(base, records, SignaturePlan(dim=max(DIMS)))))

    def folded(self, dim: int) -> Sketches:
        """Reduce the sketches to `dim` numbers: neighbours share one, signs are the same."""
        return [sketch.reshape(dim, -1).sum(1) for sketch in self.sketches]


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.private_relevance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=3, help="draws of the examples (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/private_relevance.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    base = load_base_model(str(ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    result = []
    with Progress(console=console) as progress:
        bar = progress.add_task("silos", total=len(COUNTS) * len(cases()))
        for count in COUNTS:
            drawn_silos = [
                [Silo.of(base, *item) for item in silos(count, seed)] for seed in range(arguments.draws)
            ]
            for plan in cases():
                result.append(measured(base, drawn_silos, plan))
                progress.advance(bar)
    figures.write(arguments.out, {**figures.machine(), "draws": arguments.draws, "cases": result})
    columns = ("records, budget, releases, numbers", "noise", *(f"round {number}" for number in ROUNDS))
    rows = [(item["case"], item["noise"], *(_split(item["mass"][str(n)]) for n in ROUNDS)) for item in result]
    figures.show(console, "share of weight: own cluster / alone / wrong cluster", columns, rows)


def cases() -> list[SignaturePlan]:
    """Return the plans to compare: no privacy, and budgets over 20 releases and in item."""
    built = [SignaturePlan()]
    for dim in DIMS:
        for budget in BUDGETS:
            # Twelve records are fewer than the default allows: this shows why.
            dp = SignatureDpPlan(epsilon=budget, releases=RELEASES, minimum_sample=12)
            built.append(SignaturePlan(dim=dim, dp=dp))
    for budget in BUDGETS:
        built.append(SignaturePlan(dp=SignatureDpPlan(epsilon=budget, releases=1, minimum_sample=12)))
    return built


def silos(count: int, seed: int) -> list[tuple[str, Records]]:
    """Draw the silos' records, none in two silos."""
    built: list[tuple[str, Records]] = []
    for name in NAMES:
        pool = draw(TASKS[name], SILOS * count, random.Random(f"private:{name}:{seed}"))
        texts = [Example(item.prompt, item.completion) for item in pool]
        built += [(name, texts[i::SILOS]) for i in range(SILOS)]
    return built


def measured(base: BaseModel, draws: Sequence[list[Silo]], plan: SignaturePlan) -> dict[str, Any]:
    """Simulate 20 rounds for every draw's silos, and average what the coordinator makes of it."""
    masses: dict[int, list[Mass]] = {number: [] for number in ROUNDS}
    for members in draws:
        sending = [released_sketches(base, silo, plan) for silo in members]
        for number in range(1, max(ROUNDS) + 1):
            sketches = [next(item) for item in sending]
            if number in masses:
                masses[number].append(mass([silo.task for silo in members], sketches))
    records = draws[0][0].records
    noise = mechanism_for(records, plan, plan.dp).noise_multiplier if plan.dp is not None else 0.0
    reported = f"epsilon {plan.dp.epsilon:g}, {plan.dp.releases}" if plan.dp is not None else "none, -"
    return {
        "case": f"{len(records)}, {reported}, {plan.dim}",
        "noise": noise,
        "mass": {str(number): np.mean(of, axis=0).tolist() for number, of in masses.items()},
    }


def released_sketches(base: BaseModel, silo: Silo, plan: SignaturePlan) -> Iterator[Sketch]:
    """Yield the sketches that a silo sends, round after round."""
    if plan.dp is None:
        fixed = sketch_of(base, silo.records, plan)
        while True:
            yield fixed
    mechanism, sketches = mechanism_for(silo.records, plan, plan.dp), silo.folded(plan.dim)
    chance = random.SystemRandom().randrange
    built: MeanRelease | None = None
    while True:
        if built is None or built.releases < (plan.dp.releases or 0):
            sample = [sketches[record] for record in sample_records(mechanism, chance)]
            built = averaged(built, release(sample, mechanism, chance), mechanism, epsilon=0.0)
        yield Sketch(built.mean.astype(np.float32), built.reliability, built)


def mass(tasks: Sequence[str], sketches: Sequence[Sketch]) -> Mass:
    """Weigh as the coordinator does: the mean share of weight on the own cluster, on itself, on others."""
    facts = [
        ClientFacts(
            client=f"{i:03d}",
            base_model="one",
            alignment_set=None,
            modules={"b0.v": (("b0.v.P", (2, 2)),)},
            age=0,
            examples=1,
            sketch=Sent(item.vector, item.reliability, item.epsilon),
            sketch_model="one",
            is_source=True,
        )
        for i, item in enumerate(sketches)
    ]
    relevance = Strategy(FedMosaicOptions(mix="gate")).weigh(Cohort(facts, decay=0.5)).relevance
    local = np.array([[item == peer for peer in tasks] for item in tasks])
    alone = float(np.diag(relevance).mean())
    right = float((relevance * local).sum(axis=1).mean()) - alone
    return right, alone, 1 - right - alone


def _split(shares: Sequence[float]) -> str:
    return " / ".join(f"{abs(share):.2f}" for share in shares)


if __name__ == "__main__":
    main()
