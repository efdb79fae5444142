"""Measure how much of relevance remains under differential privacy of sketches.

    python -m benchmarks.private_relevance [--draws 3] [--out FILE.json]
    python -m benchmarks.private_relevance --study examples/studies/groups.toml --data FOLDER

Without a study: two silos each of the tasks cipher, cipher_b (the same prompts, another table) and label, on
examples/models/tiny-s. With a study of one base model: its silos and its text. The records' sketches are made
once; then each silo releases what the agent's own code makes, round after round, with the noise that the
accountant asks for, and the coordinator's own strategy weighs what was sent, before any changes are compared.
The weight of a silo is divided over its own task, itself (it hears nobody) and the other tasks.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from client_agent.model.examples import Example, probe_set
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
from studies.partition import draw_examples
from studies.study import Study, read_study

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("cipher", "cipher_b", "label")
SILOS = 2
COUNTS = (12, 64, 256)
BUDGETS = (8.0, 4.0, 1.0)
DIMS = (64, 256)
RELEASES = 20
ROUNDS = (1, 6, 20)

TEXT_COUNTS = (32, 64, 128)
TEXT_BUDGETS = (8.0, 3.0, 1.0)
TEXT_ROUNDS = (1, 6)

Records = list[Example]
Sketches = list[NDArray[np.float64]]
Sketched = dict[str, NDArray[np.float64]]
"""Sketches by the key of their record."""


@dataclass(frozen=True)
class Silo:
    """A silo's task, its distinct records, and their sketches of `max(DIMS)` numbers."""

    task: str
    records: Records
    sketches: Sketches

    @classmethod
    def drawn(cls, base: BaseModel, task: str, examples: Records, sketched: Sketched) -> Silo:
        """Sketch a silo's records, of which some may be `sketched` for a smaller draw."""
        # The agent counts a repeated record once.
        records = probe_set(examples, len(examples))
        new = [record for record in records if record.key not in sketched]
        sketches = record_sketches(base, new, SignaturePlan(dim=max(DIMS)))
        sketched |= {record.key: sketch for record, sketch in zip(new, sketches, strict=True)}
        return cls(task, records, [sketched[record.key] for record in records])

    def folded(self, dim: int) -> Sketches:
        """Reduce the sketches to `dim` numbers: neighbours share one, signs are the same."""
        return [sketch.reshape(dim, -1).sum(1) for sketch in self.sketches]


@dataclass(frozen=True)
class Shares:
    """What the coordinator makes of the sketches of a round: means over silos.

    Attributes:
        own_task, itself, other_tasks: shares of the weight of a silo, which sum to 1.
        inside, between: the similarity of silos of one task, and of different tasks; None if none are
            compared.
    """

    own_task: float
    itself: float
    other_tasks: float
    inside: float | None
    between: float | None


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.private_relevance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=3, help="draws of the examples (default: 3)")
    parser.add_argument(
        "--study", type=Path, help="study whose silos and text are used (default: tiny tasks)"
    )
    parser.add_argument("--data", type=Path, help="folder of the study's data (default: the study's)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/private_relevance.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    rounds: tuple[int, ...]
    if arguments.study is None:
        counts, plans, rounds = COUNTS, tiny_plans(), ROUNDS
        base = load_base_model(str(ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    else:
        study = read_study(arguments.study, data=arguments.data)
        if len(study.models) != 1:
            parser.error(f"{arguments.study} has {len(study.models)} base models: sketches need one")
        counts, plans, rounds = TEXT_COUNTS, text_plans(), TEXT_ROUNDS
        base = load_base_model(study.models[0], device=torch.device("cpu"))
    cases = []
    sketched: Sketched = {}
    with Progress(console=console) as progress:
        bar = progress.add_task("records", total=len(counts) * arguments.draws)
        for count in counts:
            drawn_silos = []
            for seed in range(arguments.draws):
                drawn = tiny_silos(count, seed) if arguments.study is None else text_silos(study, count, seed)
                drawn_silos.append([Silo.drawn(base, task, records, sketched) for task, records in drawn])
                progress.advance(bar)
            cases += [measured(base, drawn_silos, plan, rounds) for plan in plans]
    figures.write(arguments.out, {**figures.machine(), "draws": arguments.draws, "cases": cases})
    columns = ("records, budget, releases, numbers", "noise", *(f"round {number}" for number in rounds))
    rows = [(case["case"], case["noise"], *(_cell(case["rounds"][str(n)]) for n in rounds)) for case in cases]
    title = "share of weight: own task / itself / other tasks (similarity inside, between tasks)"
    figures.show(console, title, columns, rows)


def tiny_plans() -> list[SignaturePlan]:
    """Return the plans to compare: no privacy, and budgets over 20 releases and in one."""
    plans = [SignaturePlan()]
    for dim in DIMS:
        plans += [private(budget, RELEASES, dim) for budget in BUDGETS]
    return plans + [private(budget, 1) for budget in BUDGETS]


def text_plans() -> list[SignaturePlan]:
    """Return the plans to compare on real text: no privacy, and budgets in one release and over six."""
    return [SignaturePlan(), *(private(budget, n) for n in (1, max(TEXT_ROUNDS)) for budget in TEXT_BUDGETS)]


def private(epsilon: float, releases: int, dim: int = min(DIMS)) -> SignaturePlan:
    # Twelve records are fewer than the default allows: the benchmark shows why.
    return SignaturePlan(dim=dim, dp=SignatureDpPlan(epsilon=epsilon, releases=releases, minimum_sample=12))


def tiny_silos(count: int, seed: int) -> list[tuple[str, Records]]:
    """Draw the tiny silos' records, none in two silos."""
    silos: list[tuple[str, Records]] = []
    for name in NAMES:
        pool = draw(TASKS[name], SILOS * count, random.Random(f"private:{name}:{seed}"))
        texts = [Example(item.prompt, item.completion) for item in pool]
        silos += [(name, texts[i::SILOS]) for i in range(SILOS)]
    return silos


def text_silos(study: Study, count: int, seed: int) -> list[tuple[str, Records]]:
    """Draw the records of a study's silos, by group."""
    drawn = draw_examples(study.with_examples(count), seed)
    return [(silo.group or silo.name, list(drawn[silo.name].train)) for silo in study.silo]


def measured(
    base: BaseModel, draws: Sequence[list[Silo]], plan: SignaturePlan, rounds: Sequence[int]
) -> dict[str, Any]:
    """Simulate the rounds for the silos of every draw, and average what the coordinator makes of them."""
    shares: dict[int, list[Shares]] = {number: [] for number in rounds}
    for members in draws:
        releases = [released_sketches(base, silo, plan) for silo in members]
        for number in range(1, max(rounds) + 1):
            sketches = [next(sketches_of_silo) for sketches_of_silo in releases]
            if number in shares:
                shares[number].append(weighed([silo.task for silo in members], sketches))
    records = draws[0][0].records
    noise = mechanism_for(records, plan, plan.dp).noise_multiplier if plan.dp is not None else 0.0
    reported = f"epsilon {plan.dp.epsilon:g}, {plan.dp.releases}" if plan.dp is not None else "none, -"
    return {
        "case": f"{len(records)}, {reported}, {plan.dim}",
        "noise": noise,
        "rounds": {str(number): _mean(of_draws) for number, of_draws in shares.items()},
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


def weighed(tasks: Sequence[str], sketches: Sequence[Sketch]) -> Shares:
    """Weigh sketches as the coordinator does."""
    facts = [
        ClientFacts(
            client=f"{i:03d}",
            base_model="base",
            alignment_set=None,
            modules={"b0.v": (("b0.v.P", (2, 2)),)},
            age=0,
            examples=1,
            sketch=Sent(sketch.vector, sketch.reliability, sketch.epsilon),
            sketch_model="base",
            is_source=True,
        )
        for i, sketch in enumerate(sketches)
    ]
    weighing = Strategy(FedMosaicOptions(mix="gate")).weigh(Cohort(facts, decay=0.5))
    same = np.array([[task == peer for peer in tasks] for task in tasks])
    peers = same & ~np.eye(len(tasks), dtype=bool)
    itself = float(np.diag(weighing.relevance).mean())
    own_task = float((weighing.relevance * peers).sum(axis=1).mean())
    return Shares(
        own_task,
        itself,
        1 - own_task - itself,
        _mean_compared(weighing.similarity[peers]),
        _mean_compared(weighing.similarity[~same]),
    )


def _mean_compared(similarity: NDArray[np.float64]) -> float | None:
    compared = similarity[~np.isnan(similarity)]
    return float(compared.mean()) if compared.size else None


def _mean(draws: Sequence[Shares]) -> Mapping[str, float | None]:
    """Average over draws; similarities over the draws in which any are compared."""
    fields = ("own_task", "itself", "other_tasks", "inside", "between")
    values = {field: [getattr(shares, field) for shares in draws] for field in fields}
    return {
        field: float(np.mean(measured_values))
        if (measured_values := [value for value in of_draws if value is not None])
        else None
        for field, of_draws in values.items()
    }


def _cell(shares: Mapping[str, float | None]) -> str:
    weights = " / ".join(f"{abs(shares[field] or 0):.2f}" for field in ("own_task", "itself", "other_tasks"))
    inside, between = (
        "-" if (value := shares[field]) is None else f"{value:.2f}" for field in ("inside", "between")
    )
    return f"{weights} ({inside}, {between})"


if __name__ == "__main__":
    main()
