"""Measure the cost of a round beside its training: tokenising the silo's texts, and scoring.

    python -m benchmarks.round_cost [--examples 10000] [--size tiny|small|1b|7b] [--epochs 1]
        [--scored 256] [--rounds 2] [--generated] [--out FILE.json]

A Llama-shaped model with random weights, an ordinary LoRA, texts of skewed lengths, and in each round as many
steps as `--epochs` passes need. A round is scored twice, served and trained, on `--scored` held-out examples:
by the loss, and with `--generated` also by generated answers of the default length.
Seconds are this process's processor time. The goals: scoring takes less than 10 % of the training, and rounds
after the first tokenise nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import figures
from benchmarks.random_llama import SIZES, built
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import Example, probe_set
from client_agent.model.loading import BaseModel
from client_agent.training.data import SiloData
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import Step, train
from client_agent.training.silo import Silo
from schemas.maths.seeded_random import permutation
from schemas.messages.federations import AdapterPlan, TrainingPlan

GOAL = 0.1
_RATE = 1e-4
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one round."""

    tokenising: float
    scoring: float
    training: float

    @property
    def tokenising_share(self) -> float:
        return self.tokenising / self.training

    @property
    def scoring_share(self) -> float:
        return self.scoring / self.training


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure tokenising and scoring beside training.")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--scored", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console()
    size = SIZES[options.size]
    torch.manual_seed(0)
    base = built(size, device=torch.device("cpu"), dtype=torch.float32, quantization="none")
    test = skewed(max(options.scored, options.examples // 4), size.length, "test")
    if options.generated:
        test = tuple(replace(example, metrics=("exact_match",)) for example in test)
    data = SiloData(train=skewed(options.examples, size.length, "train"), validation=(), test=test)
    plan = TrainingPlan(
        steps=max(1, round(options.epochs * options.examples / size.batch)),
        batch_size=size.batch,
        max_length=size.length,
        learning_rate=_RATE,
    )
    costs = measure(Silo(base, data, None), plan, options.rounds, options.scored, console)
    columns = [
        "round",
        "tokenising s",
        "scoring s",
        "training s",
        "tokenising / training",
        "scoring / training",
    ]
    rows = [
        [number, cost.tokenising, cost.scoring, cost.training, cost.tokenising_share, cost.scoring_share]
        for number, cost in enumerate(costs, start=1)
    ]
    figures.show(console, f"{options.examples} examples, {plan.steps} steps a round", columns, rows)
    worst = max(cost.scoring_share for cost in costs)
    console.print(f"scoring: {worst:.1%} of the training at most (goal: below {GOAL:.0%})")
    if options.out is not None:
        facts = {"examples": options.examples, "scored": options.scored, "steps": plan.steps}
        facts |= {"generated": options.generated}
        rounds = [asdict(cost) for cost in costs]
        figures.write(options.out, {"machine": figures.machine(), **facts, "rounds": rounds})


def skewed(count: int, length: int, key: str) -> tuple[Example, ...]:
    """Return distinct examples of up to about `length` characters, most of them short."""
    numbers = permutation(count, "round cost", key)
    longest = max(1, length - 20)
    return tuple(
        Example(f"{key[:2]} {number} {'a' * int(longest * (number / count) ** 4)}=", f"{number % 7}")
        for number in numbers
    )


def measure(silo: Silo, plan: TrainingPlan, rounds: int, scored: int, console: Console) -> list[Cost]:
    """Run rounds on one silo; the first of them tokenises."""
    test = probe_set(silo.data.test, scored)
    costs = []
    with inject_lora(silo.base, AdapterPlan(kind="lora", rank=16)) as adapter:
        for number in range(1, rounds + 1):
            started = time.process_time()
            texts = silo.encoded(silo.data.train, plan.max_length)
            silo.encoded(test, plan.max_length)
            tokenised = time.process_time()
            _score(silo.base, test, plan)
            scored_once = time.process_time()
            train(
                silo.base,
                adapter,
                texts,
                plan,
                learning_rate=_RATE,
                seed=0,
                round_number=number,
                total_rounds=rounds,
                on_step=lambda step: _show(console, step),
            )
            trained = time.process_time()
            _score(silo.base, test, plan)
            scoring = scored_once - tokenised + time.process_time() - trained
            costs.append(Cost(tokenised - started, scoring, trained - scored_once))
    return costs


def _score(base: BaseModel, test: list[Example], plan: TrainingPlan) -> None:
    evaluate(base, test, max_length=plan.max_length)


def _show(console: Console, step: Step) -> None:
    if step.number % max(1, step.total // _TENTHS) == 0:
        console.print(f"step {step.number} of {step.total}")


if __name__ == "__main__":
    main()
