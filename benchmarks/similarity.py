"""Compare the similarity of silos of one task and of different tasks, and the clients that a floor keeps.

    python -m benchmarks.similarity [--draws 8] [--out FILE.json]

Four silos each of the tasks cipher, cipher_b (the same prompts, another table) and label; their sketches
are made with examples/models/tiny-s. Compared are plain cosines and those corrected for noise
(docs/decisions/0014-noise-corrected-similarity.md).
"""

from __future__ import annotations

import argparse
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from benchmarks import figures
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.sketches.gradient import Sketch, sketch_of
from examples.tasks import TASKS, draw
from schemas.messages.federations import SignaturePlan

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("cipher", "cipher_b", "label")
SILOS = 4
COUNTS = (8, 12, 16, 24, 64)
FLOORS = {"cosine": (0.4, 0.5), "corrected": (0.5, 0.6, 0.7)}
Pair = tuple[str, str, float, float]


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.similarity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=8, help="draws of the examples (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/similarity.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    base = load_base_model(str(ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    result = {
        count: summarised(
            [pair for seed in range(arguments.draws) for pair in pairs(silos(base, count, seed))]
        )
        for count in track(COUNTS, description="examples per silo", console=console)
    }
    figures.write(arguments.out, {**figures.machine(), "draws": arguments.draws, "cases": result})
    for kind, floors in FLOORS.items():
        columns = ("examples", "one task", "lowest", "same prompts", "highest", *(f"> {f}" for f in floors))
        figures.show(console, kind, columns, [(count, *_row(of[kind])) for count, of in result.items()])
    console.print("> floor: share of pairs of one task that it loses / of the same prompts that it keeps")


def silos(base: BaseModel, count: int, seed: int) -> list[tuple[str, Sketch]]:
    """Draw the silos' examples, none in two silos, and sign them."""
    signed: list[tuple[str, Sketch]] = []
    plan = SignaturePlan(probe_examples=count)
    for name in NAMES:
        pool = draw(TASKS[name], SILOS * count, random.Random(f"similarity:{name}:{seed}"))
        texts = [Example(item.prompt, item.completion) for item in pool]
        signed += [(name, sketch_of(base, texts[i::SILOS], plan)) for i in range(SILOS)]
    return signed


def pairs(signed: list[tuple[str, Sketch]]) -> list[Pair]:
    """Compare all pairs: the two tasks, cos, and cos / sqrt(rho_i rho_j)."""
    built: list[Pair] = []
    for (item, a), (peer, b) in combinations(signed, 2):
        cosine = float(a.vector @ b.vector / (np.linalg.norm(a.vector) * np.linalg.norm(b.vector)))
        built.append((item, peer, cosine, cosine / float(np.sqrt(a.reliability * b.reliability))))
    return built


def summarised(compared: list[Pair]) -> dict[str, Any]:
    """Summarise pairs of one task beside pairs that share only their prompts."""
    built: dict[str, Any] = {}
    for at, kind in enumerate(FLOORS, start=2):
        same = np.array([pair[at] for pair in compared if pair[0] == pair[1]], float)
        alike = np.array([pair[at] for pair in compared if pair[:2] == ("cipher", "cipher_b")], float)
        built[kind] = {
            "one_task": {"mean": same.mean(), "lowest": same.min()},
            "same_prompts": {"mean": alike.mean(), "highest": alike.max()},
            "floors": {
                str(floor): {"lost": float((same <= floor).mean()), "kept": float((alike > floor).mean())}
                for floor in FLOORS[kind]
            },
        }
    return built


def _row(of: dict[str, Any]) -> list[object]:
    floors = [f"{item['lost']:.2f} / {item['kept']:.2f}" for item in of["floors"].values()]
    return [*of["one_task"].values(), *of["same_prompts"].values(), *floors]


if __name__ == "__main__":
    main()
