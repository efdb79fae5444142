"""Compare masks of an adapter's modules with controls of equal bytes.

    python -m benchmarks.layer_masks STUDY [--data FOLDER] [--seeds 0 1 2] [--rounds N] [--rate 0.001]

The silos of a study with the base model of its first silo train a LoRA under the relevance of `fedmosaic`,
without the guard and with `mix` replace. The agent's training, sketches and encoding and the coordinator's
relevance are called directly, without HTTP. Masked modules have no gradient and are not sent; they are still
averaged. The coordinator mixes each module over the clients that sent it in the last three rounds, halved per
round of age. Ways, with the modules that train and are sent from round 2 on:

    all        all modules
    largest    all modules, of whose difference to the last update the largest quarter of the values is sent
    salient    half of the modules, by gradient times weight (benchmarks/mask_controller.py)
    random     half of the modules, drawn anew for each client and round
    last       the last half of the layers

The table has the mean test loss of the best states, which each client chooses by validation loss, and of the
states after the last round; bytes of all updates; and processor time of all training. Of the study only silos
and plan are used, and the adapter of its `fedmosaic_lora`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from benchmarks.masked_rounds import WAYS, RunFigures, Setting, run
from client_agent.settings import Dtype
from client_agent.sketches.gradient import sketch_of
from client_agent.storage.prefix_store import PrefixStore
from coordinator.strategies.base import ClientFacts, Cohort, Sketch
from coordinator.strategies.fedmosaic import Options, Strategy
from schemas.messages.federations import FederationPlan
from studies.clients import SharedModels, build_silos
from studies.methods import methods_of
from studies.partition import draw_examples
from studies.results import cells_of
from studies.study import Study, read_study

METHOD: Final = "fedmosaic_lora"
PREFIX_BYTES: Final = 8 << 30


def main() -> None:
    """Measure, show, write."""
    arguments = _arguments()
    torch.set_num_threads(1)
    study = _study(arguments)
    models = SharedModels(PrefixStore(arguments.out.parent / "prefixes", PREFIX_BYTES))
    console = Console()
    measured: dict[str, list[RunFigures]] = {way: [] for way in arguments.ways}
    with Progress(console=console) as progress:
        for seed in arguments.seeds or study.seeds:
            setting = setting_of(study, models, seed, arguments.rate, arguments.rounds)
            for way in measured:
                bar = progress.add_task(f"seed {seed}, {way}", total=setting.plan.rounds.total)
                measured[way].append(run(setting, way, progress, bar))
                facts = _facts(arguments, setting.plan, measured)
                figures.write(arguments.out, {**figures.machine(), **facts})
    adapter = setting.plan.adapter
    title = f"{arguments.study.name}: rank {adapter.rank}, {', '.join(adapter.roles or ())}"
    figures.show(console, title, _COLUMNS, list(_rows(measured)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layer_masks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, help="TOML file of a study")
    parser.add_argument("--data", type=Path, help="folder of its data (default: the study's)")
    parser.add_argument("--models", type=Path, help="folder of its models (default: the study's)")
    parser.add_argument("--seeds", type=int, nargs="+", help="(default: the study's)")
    parser.add_argument("--dtype", choices=get_args(Dtype), help="of base models (default: the study's)")
    parser.add_argument("--rounds", type=_count, help="number of rounds (default: the study's)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: .001)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/layer_masks.json"))
    return parser.parse_args()


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _study(arguments: argparse.Namespace) -> Study:
    """Read the study, with its silos in another dtype if one is named."""
    study = read_study(arguments.study, data=arguments.data, models=arguments.models)
    if late := [silo.name for silo in study.silo if silo.joins_after]:
        raise SystemExit(f"{arguments.study}: {late[0]} joins late; name a study without latecomers")
    if arguments.dtype is None:
        return study
    silos = [silo.model_copy(update={"dtype": arguments.dtype}) for silo in study.silo]
    return study.model_copy(update={"silo": silos})


def setting_of(study: Study, models: SharedModels, seed: int, rate: float, rounds: int | None) -> Setting:
    """Draw the examples of a seed, and compute the relevance of its silos from their sketches."""
    (cell,) = cells_of(study, methods_of(study, [METHOD]), [seed])
    built = build_silos(study, draw_examples(study, seed), models)
    base = next(iter(built.values())).base
    silos = {name: silo for name, silo in built.items() if silo.base is base}
    sketches = [sketch_of(base, silo.data.train, cell.plan.signature) for silo in silos.values()]
    facts = [
        ClientFacts(
            client=name,
            base_model=base.slug,
            alignment_set=None,
            modules={"b0.v": (("b0.v.B", (2, 2)),)},
            age=0,
            examples=len(silo.data.train),
            sketch=Sketch(sketch.vector, sketch.reliability, None),
            sketch_model=base.slug,
            is_source=True,
        )
        for (name, silo), sketch in zip(silos.items(), sketches, strict=True)
    ]
    relevance = Strategy(Options(mix="replace", guard="off")).weigh(Cohort(facts, decay=0.5)).relevance
    total = cell.plan.rounds.model_copy(update={"total": rounds or cell.plan.rounds.total})
    return Setting(silos, cell.plan.model_copy(update={"rounds": total}), relevance, rate, seed)


_COLUMNS: Final = ("way", "best states", "to all", "to largest", "last states", "kB", "training s")


def _rows(measured: Mapping[str, list[RunFigures]]) -> Iterator[tuple[object, ...]]:
    """Yield a row per way; differences are of the best states, paired by seed."""
    for way, runs in measured.items():
        differences = [
            _spread([a.best - b.best for a, b in zip(runs, measured.get(control, []), strict=False)])
            for control in ("all", "largest")
        ]
        yield (
            way,
            _spread([values.best for values in runs]),
            *differences,
            _spread([values.last for values in runs]),
            round(statistics.mean(values.bytes for values in runs) / 1e3),
            statistics.mean(values.seconds for values in runs),
        )


def _spread(values: list[float]) -> str:
    """Return the mean and its standard error."""
    if len(values) < 2:
        return ", ".join(f"{value:.4f}" for value in values)
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values) / len(values) ** 0.5:.4f}"


def _facts(
    arguments: argparse.Namespace, plan: FederationPlan, measured: Mapping[str, list[RunFigures]]
) -> dict[str, Any]:
    return {
        "study": arguments.study.name,
        "rate": arguments.rate,
        "plan": plan.model_dump(mode="json"),
        "runs": {way: [asdict(values) for values in runs] for way, runs in measured.items()},
    }


if __name__ == "__main__":
    main()
