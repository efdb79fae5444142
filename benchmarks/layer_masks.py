"""What masks of an adapter's modules save and cost: layerwise routing beside its controls.

    python -m benchmarks.layer_masks STUDY [--data FOLDER] [--seeds 0 1 2] [--rounds N] [--rate 0.001]

The silos of a study with the base model of its first silo train a LoRA under the relevance of `fedmosaic`,
without the guard and with `mix` replace. The agent's training, sketches and encoding and the coordinator's
relevance are called directly, without HTTP. Masked modules have no gradient and are not sent; they are still
averaged. The coordinator mixes each module over the clients that sent it in the last three rounds, halved per
round of age. Ways, with the modules that train and are sent from round 2 on:

    all        all modules; its losses after fewer rounds are the control of equal work
    largest    all modules, of whose difference to the last update the largest quarter of the values is sent
    salient    half of the modules, by gradient times weight (benchmarks/mask_controller.py)
    random     half of the modules, drawn anew for each client and round
    last       the last half of the layers

The table has the mean test loss of the states after the last training, bytes of all updates, and processor
time of all training.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from benchmarks.masked_rounds import WAYS, Course, Scene, run
from client_agent.settings import Dtype
from client_agent.simulation.clients import SharedModels, build_silos
from client_agent.simulation.methods import methods_of
from client_agent.simulation.partition import draw_examples
from client_agent.simulation.results import cells_of
from client_agent.simulation.study import Study, read_study
from client_agent.sketches.gradient import sketch_of
from client_agent.storage.prefix_store import PrefixStore
from coordinator.strategies.base import ClientFacts, Cohort, Sketch
from coordinator.strategies.fedmosaic import Options, Strategy

METHOD: Final = "fedmosaic_lora"
PREFIX_BYTES: Final = 8 << 30


def main() -> None:
    """Measure, show, write."""
    arguments = _arguments()
    torch.set_num_threads(1)
    study = read_study(arguments.study, data=arguments.data, models=arguments.models)
    silos = [silo.model_copy(update={"dtype": arguments.dtype}) for silo in study.silo]
    study = study.model_copy(update={"silo": silos})
    models = SharedModels(PrefixStore(arguments.out.parent / "prefixes", PREFIX_BYTES))
    console = Console()
    courses: dict[str, list[Course]] = {way: [] for way in arguments.ways}
    with Progress(console=console) as progress:
        for seed in arguments.seeds:
            scene = scene_of(study, models, seed, arguments)
            for way in arguments.ways:
                bar = progress.add_task(f"seed {seed}, {way}", total=scene.plan.rounds.total)
                courses[way].append(run(scene, way, progress, bar))
                figures.write(arguments.out, {**figures.machine(), **_facts(arguments, courses)})
    rows = list(_rows(courses))
    figures.show(console, f"{arguments.study.name}, seeds {arguments.seeds}", _COLUMNS, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layer_masks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, help="TOML file of a study")
    parser.add_argument("--data", type=Path, help="folder of its data (default: the study's)")
    parser.add_argument("--models", type=Path, help="folder of its models (default: the study's)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="auto", help="of base models (default: auto)"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds (default: the study's)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: .001)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/layer_masks.json"))
    return parser.parse_args()


def scene_of(study: Study, models: SharedModels, seed: int, arguments: argparse.Namespace) -> Scene:
    """Draw the examples of a seed, and compute the relevance of its silos from their sketches."""
    (cell,) = cells_of(study, methods_of(study, [METHOD]), [seed])
    built = build_silos(study, draw_examples(study, seed), models)
    first = next(iter(built.values())).base
    silos = {name: silo for name, silo in built.items() if silo.base is first}
    sketches = [sketch_of(first, silo.data.train, cell.plan.signature) for silo in silos.values()]
    facts = [
        ClientFacts(
            client=name,
            base_model=first.slug,
            alignment_set=None,
            modules={"b0.v": (("b0.v.B", (2, 2)),)},
            age=0,
            examples=len(silo.data.train),
            sketch=Sketch(sketch.vector, sketch.reliability, None),
            sketch_model=first.slug,
            is_source=True,
        )
        for (name, silo), sketch in zip(silos.items(), sketches, strict=True)
    ]
    strategy = Strategy(Options(mix="replace", guard="off"))
    relevance = strategy.weigh(Cohort(facts, decay=0.5)).relevance
    rounds = cell.plan.rounds.model_copy(update={"total": arguments.rounds or cell.plan.rounds.total})
    plan = cell.plan.model_copy(update={"rounds": rounds})
    return Scene(silos, plan, relevance, arguments.rate, seed)


_COLUMNS: Final = ("way", "rounds", "loss", "to all", "kB", "training s")


def _rows(courses: Mapping[str, list[Course]]) -> Iterator[tuple[object, ...]]:
    """Yield a row per way, and for `all` one after each of the last three rounds."""
    control = courses.get("all", [])
    for way, runs in courses.items():
        total = max(len(course.losses) for course in runs)
        for rounds in range(max(1, total - 2), total + 1):
            losses = [course.losses[rounds - 1] for course in runs]
            share = rounds / total
            paired = [a - course.losses[-1] for a, course in zip(losses, control, strict=False)]
            yield (
                *(way, rounds if way == "all" else "all", _spread(losses), _spread(paired)),
                round(statistics.mean(course.bytes for course in runs) * share / 1e3),
                statistics.mean(course.seconds for course in runs) * share,
            )


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return ", ".join(f"{value:.3f}" for value in values)
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ± {error:.3f}"


def _facts(arguments: argparse.Namespace, courses: Mapping[str, list[Course]]) -> dict[str, Any]:
    return {
        "study": arguments.study.name,
        "seeds": arguments.seeds,
        "rate": arguments.rate,
        "rounds": arguments.rounds,
        "dtype": arguments.dtype,
        "courses": {
            way: [{"losses": c.losses, "bytes": c.bytes, "seconds": c.seconds} for c in runs]
            for way, runs in courses.items()
        },
    }


if __name__ == "__main__":
    main()
