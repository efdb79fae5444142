"""Measure a round with adapters in all layers, in the last ones, and with the layers below them stored.

    python -m benchmarks.frozen_prefix [--model runs/models/smollm2] [--layers 6] [--examples 32]
        [--scored 32] [--rounds 3] [--out FILE.json]

A round is 8 steps of 4 texts of about 60 tokens, and the scores of the model before and after them: the loss,
and which of four options is the likeliest. `make real-models` fetches the model. Seconds are this process's
processor time, of the median round; the first round of each way is left out, and shown beside it, since with
stored layers it computes what is stored. The goal: a round is four times as fast with stored layers as with
adapters in all layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from benchmarks import figures
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import train
from schemas.maths.seeded_random import permutation
from schemas.messages.federations import AdapterPlan, TrainingPlan

GOAL = 4.0
_RATE = 1e-3
_ROOM = 2**32
_PLAN = TrainingPlan(steps=8, batch_size=4, max_length=128, learning_rate=_RATE)
_OPTIONS = (" north", " south", " east", " west")
_SENTENCE = "the ship left its harbour at dawn with grain and timber for an island that few people had seen"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one round, and its last loss."""

    training: float
    scoring: float
    loss: float

    @property
    def total(self) -> float:
        return self.training + self.scoring


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure rounds with and without stored layers.")
    parser.add_argument("--model", default="runs/models/smollm2")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--scored", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console()
    base = load_base_model(options.model, device=torch.device("cpu"))
    texts = examples(options.examples + options.scored)
    train_side, test_side = texts[: options.examples], texts[options.examples :]
    ways = {
        "all layers": (None, False),
        f"last {options.layers}": (options.layers, False),
        f"last {options.layers}, stored below": (options.layers, True),
    }
    costs: dict[str, list[Cost]] = {}
    with TemporaryDirectory() as folder:
        for name, (layers, stored) in ways.items():
            console.print(f"measuring {name}")
            base.prefix.store = PrefixStore(Path(folder), _ROOM) if stored else None
            costs[name] = rounds(base, layers, train_side, test_side, options.rounds + 1)
    typical = {name: _median(laps[1:]) for name, laps in costs.items()}
    whole = typical["all layers"].total
    rows = [
        [name, cost.training, cost.scoring, cost.total, whole / cost.total, costs[name][0].total]
        for name, cost in typical.items()
    ]
    columns = ["adapters in", "training s", "scoring s", "round s", "times as fast", "first round s"]
    figures.show(console, f"{base.slug}, {options.examples} examples, {options.scored} scored", columns, rows)
    ratio = rows[-1][4]
    console.print(f"a round with stored layers is {ratio:.1f} times as fast (goal: {GOAL:.0f})")
    if options.out is not None:
        results = {name: [asdict(cost) for cost in laps] for name, laps in costs.items()}
        figures.write(options.out, {"machine": figures.machine(), "rounds": results})


def examples(count: int) -> list[Example]:
    """Return distinct texts of about 60 tokens, each with one of four options as its answer."""
    texts, sentence = [], _SENTENCE.split(" ")
    for number in range(count):
        order = permutation(len(sentence), "frozen prefix", number)
        words = " ".join(sentence[index] for index in (*order, *order, *order))
        texts.append(
            Example(
                f"Report {number}: {words}.\nIt sailed",
                _OPTIONS[number % len(_OPTIONS)],
                options=_OPTIONS,
                metrics=("option_accuracy",),
            )
        )
    return texts


def rounds(
    base: BaseModel,
    layers: int | None,
    train_side: Sequence[Example],
    test_side: Sequence[Example],
    count: int,
) -> list[Cost]:
    """Run rounds of one silo on a fresh adapter."""
    costs = []
    with inject_lora(base, AdapterPlan(kind="lora", rank=8, layers=layers)) as adapter:
        texts = encode_for(base, train_side, _PLAN.max_length)
        for number in range(1, count + 1):
            scoring = _seconds_of_scores(base, test_side)
            started = time.process_time()
            outcome = train(
                base,
                adapter,
                texts,
                _PLAN,
                learning_rate=_RATE,
                seed=0,
                round_number=number,
                total_rounds=count,
            )
            training = time.process_time() - started
            scoring += _seconds_of_scores(base, test_side)
            costs.append(Cost(training, scoring, outcome.losses[-1]))
    return costs


def _seconds_of_scores(base: BaseModel, test_side: Sequence[Example]) -> float:
    started = time.process_time()
    evaluate(base, test_side, max_length=_PLAN.max_length)
    return time.process_time() - started


def _median(laps: Sequence[Cost]) -> Cost:
    middle = statistics.median_low([lap.total for lap in laps])
    return next(lap for lap in laps if lap.total == middle)


if __name__ == "__main__":
    main()
